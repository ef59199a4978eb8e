"""The floor: what moving the same bytes costs when nobody reads them.

`relay PORT` frames HTTP messages by Content-Length and passes them on, uvloop protocols on both sides; `upstream`
answers every request with one canned reply.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import cast

from tugline.testing.bench_proc import answer_lines
from tugline.testing.bench_talk import canned_reply


class Framer:
    """Cuts a byte stream into HTTP/1.1 messages with Content-Length. One message at a time: no pipelining."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._end = 0

    def feed(self, data: bytes) -> bytes | None:
        """The message that `data` completes, head included."""
        self._buffer += data
        if not self._end:
            head = self._buffer.find(b"\r\n\r\n")
            if head < 0:
                return None
            length = bytes(self._buffer[:head]).lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._end = head + 4 + int(length or b"0")
        if len(self._buffer) < self._end:
            return None
        message = bytes(self._buffer[: self._end])
        del self._buffer[: self._end]
        self._end = 0
        return message


class Peer(asyncio.Protocol):
    """One connection; whole messages go to `on_message`."""

    def __init__(self, on_message: Callable[[Peer, bytes], None]) -> None:
        self._framer = Framer()
        self._on_message = on_message
        self.transport: asyncio.Transport | None = None
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        message = self._framer.feed(data)
        if message is not None:
            self._on_message(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def send(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)


class Relay:
    """Passes requests to an upstream port over a pool of kept connections."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Peer] = []
        self._waiting: dict[Peer, Peer] = {}
        self._opening: set[asyncio.Task[None]] = set()

    def request(self, client: Peer, message: bytes) -> None:
        """Pass one request on."""
        if self._free:
            self._pass(client, self._free.pop(), message)
        else:
            task = asyncio.ensure_future(self._open(client, message))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, client: Peer, message: bytes) -> None:
        loop = asyncio.get_running_loop()
        _, server = await loop.create_connection(lambda: Peer(self._reply), "127.0.0.1", self._port)
        self._pass(client, server, message)

    def _pass(self, client: Peer, server: Peer, message: bytes) -> None:
        self._waiting[server] = client
        server.send(message)

    def _reply(self, server: Peer, message: bytes) -> None:
        client = self._waiting.pop(server)
        self._free.append(server)
        client.send(message)


async def main(read: Callable[[], Awaitable[bytes]], write: Callable[[object], None]) -> None:
    """Listen until the input ends; the first line asks for the port."""
    if sys.argv[1] == "relay":
        on_message = Relay(int(sys.argv[2])).request
    else:
        body = canned_reply()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        whole = head.encode() + body

        def on_message(client: Peer, message: bytes) -> None:
            client.send(whole)

    server = await asyncio.get_running_loop().create_server(lambda: Peer(on_message), "127.0.0.1", 0)
    while await read():
        write({"port": server.sockets[0].getsockname()[1]})
    server.close()


if __name__ == "__main__":
    answer_lines(main)
