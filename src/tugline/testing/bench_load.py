"""The load: sessions that talk turn by turn, all at turn t before any begins turn t + 1.

Keeping step makes the CPU of a turn measurable: the server's clock is read between turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from tugline.testing.bench_proc import answer_lines, cpu_seconds
from tugline.testing.bench_relay import Peer
from tugline.testing.bench_talk import PATH, Talk


class Job(msgspec.Struct, frozen=True):
    """A round. `sessions` maps names to credentials; `pid` is the process whose CPU is measured."""

    port: int
    pid: int
    sessions: dict[str, str]
    turns: int
    concurrency: int


class Took(msgspec.Struct, frozen=True):
    """What a round took. cpu[t] = CPU seconds of the measured process in turn t, all sessions together;
    latency = seconds per call; sent[t] = bytes of request bodies per turn."""

    cpu: list[float]
    latency: list[float]
    sent: list[int]
    answered: int
    error: str | None


class Client:
    """One kept connection, one request at a time."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._answer: asyncio.Future[bytes] | None = None

    @classmethod
    async def connect(cls, port: int) -> Client:
        """Raises OSError."""
        made: list[Client] = []
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(lambda: Peer(lambda _p, m: made[0].heard(m)), "127.0.0.1", port)
        made.append(cls(peer))
        return made[0]

    def heard(self, message: bytes) -> None:
        """A whole response is here."""
        if self._answer is not None:
            self._answer.set_result(message)

    async def post(self, key: str, body: bytes) -> tuple[int, bytes]:
        """(status, body)."""
        self._answer = asyncio.get_running_loop().create_future()
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._peer.send(head.encode() + body)
        async with asyncio.timeout(60):
            head_bytes, _, answer = (await self._answer).partition(b"\r\n\r\n")
        return int(head_bytes[9:12]), answer

    def close(self) -> None:
        """Drop the connection."""
        if self._peer.transport is not None:
            self._peer.transport.close()


class Round:
    """One job under way."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._talks = {name: Talk(name) for name in job.sessions}
        self._latency: list[float] = []
        self._error: str | None = None

    async def run(self) -> Took:
        """All turns. A call that is not answered well ends the round and is named."""
        job = self._job
        clients = [await Client.connect(job.port) for _ in range(min(job.concurrency, len(job.sessions)))]
        cpu: list[float] = []
        sent: list[int] = []
        for _ in range(job.turns):
            todo = [(name, key, self._talks[name].body()) for name, key in job.sessions.items()]
            sent.append(sum(len(body) for _, _, body in todo))
            replies: list[tuple[str, bytes]] = []
            before = cpu_seconds(job.pid)
            await asyncio.gather(*(self._work(client, todo, replies) for client in clients))
            cpu.append(cpu_seconds(job.pid) - before)
            if self._error:
                break
            for name, reply in replies:
                self._talks[name].heard(reply)
        for client in clients:
            client.close()
        return Took(cpu, self._latency, sent, len(self._latency), self._error)

    async def _work(self, client: Client, todo: list[tuple[str, str, bytes]], replies: list[tuple[str, bytes]]) -> None:
        while todo and not self._error:
            name, key, body = todo.pop()
            begun = time.perf_counter()
            try:
                status, answer = await client.post(key, body)
            except TimeoutError:
                self._error = f"{name}: no answer within 60 s"
                return
            if status != 200:
                self._error = f"{name}: status {status}: {answer[:300].decode('utf-8', 'replace')}"
                return
            self._latency.append(time.perf_counter() - begun)
            replies.append((name, answer))


async def main(read: Callable[[], Awaitable[bytes]], write: Callable[[object], None]) -> None:
    """One job per line."""
    while line := await read():
        write(await Round(msgspec.json.decode(line, type=Job)).run())


if __name__ == "__main__":
    answer_lines(main)
