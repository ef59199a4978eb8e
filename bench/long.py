"""CPU time and memory of a gateway while one Chat session grows: over HTTP, in a process of its own.

    python bench/long.py                2,000 turns of about 80 new tokens
    python bench/long.py --turns 300    a short look

Its engine answers at once, with one short reply and the prompt that it was given. Beside each figure stands what the
same request takes to read here: its JSON alone, and the whole way to items.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import Floats, concat, count, ids
from tugline.core.contracts import EngineInfo, Generation, Policy, Sample
from tugline.core.turn import Sampling
from tugline.dialects import DIALECTS
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.store import RunStore
from tugline.testing.bench_proc import cpu_seconds, rss_bytes

CHAT = DIALECTS[0]
WINDOW = 15
"""Turns around a mark whose median is shown."""
TOOL = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
CALL = 'Now a step.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls -l"}}\n</tool_call>'


class Short:
    """Core `Engine` that says the same each time."""

    def __init__(self) -> None:
        model = chat_model(PILOT)
        self._ids = concat([model.encode(CALL), ids([model.stop_ids[0]])])
        self._info = EngineInfo("short", "m", PILOT, 1 << 30, model.vocab, model.stop_ids)
        self._n = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def start(self) -> None:
        """Always ready."""

    async def generate(self, request: Generation) -> Sample:
        self._n += 1
        values = Floats(b"\0\0\0\xbf" * count(self._ids))
        sample = Sample(self._ids, values, "stop", ((0, 0),), request.prompt_ids)
        return replace(sample, engine_ref=f"short.{self._n}")

    async def abort(self, request_id: str) -> None:
        """Nothing ever runs."""

    async def release(self, session_id: str) -> None:
        """Nothing is held."""

    async def close(self) -> None:
        """Nothing to end."""


async def serve(run: Path) -> None:
    """The measured process: until its input ends."""
    async with RunStore.create(run, "") as store:
        model: Any = chat_model(PILOT)
        model.probe()
        gateway = LocalGateway(Short(), model, store, DIALECTS, GatewayOptions(max_body=1 << 30))
        port = await gateway.start()
        access = await gateway.open("ses", Policy(Sampling(max_tokens=400)))
        print(json.dumps([port, access.secret]), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await gateway.stop()


def body(messages: list[bytes]) -> bytes:
    """The request as an agent resends it, in time linear in its bytes."""
    front = msgspec.json.encode({"model": "m", "tools": [TOOL]})
    return front[:-1] + b',"messages":[' + b",".join(messages) + b"]}"


def drive(port: int, key: str, pid: int, turns: int) -> tuple[list[tuple[float, int]], dict[int, bytes]]:
    """((CPU seconds, resident bytes) of every turn, bodies of the marks)."""
    line = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    messages = [msgspec.json.encode({"role": "user", "content": "Do the work."})]
    found, bodies = [], {}
    for n in range(1, turns + 1):
        data = body(messages)
        begun = cpu_seconds(pid)
        line.request("POST", "/v1/chat/completions", data, headers)
        answer = line.getresponse()
        reply = answer.read()
        assert answer.status == 200, reply
        found.append((cpu_seconds(pid) - begun, rss_bytes(pid)))
        said = json.loads(reply)["choices"][0]["message"]
        words = f"{n}: line of the output; " + "and so on, " * 20
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": words}
        messages += [msgspec.json.encode(said), msgspec.json.encode(result)]
        if n in marks_of(turns):
            bodies[n] = data
    return found, bodies


def marks_of(turns: int) -> list[int]:
    return [n for n in (10, 100, 1000) if n < turns] + [turns]


def least(work: Any, times: int = 9) -> float:
    """Milliseconds of CPU time, the median."""
    spent = []
    for _ in range(times):
        begun = time.thread_time()
        work()
        spent.append(time.thread_time() - begun)
    return float(np.median(spent)) * 1e3


def main() -> None:
    """Serve, or measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=2000)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        asyncio.run(serve(args.serve))
        return
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, __file__, "--serve", str(Path(scratch) / "run")]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert child.stdout is not None
            port, key = json.loads(child.stdout.readline())
            found, bodies = drive(port, key, child.pid, args.turns)
            rows = RunStore.open(Path(scratch) / "run", write=False).iter_turns("ses")
            assert len(list(rows)) == args.turns
        finally:
            child.communicate()
    show(np.array(found), bodies)


def show(found: np.ndarray[Any, Any], bodies: dict[int, bytes]) -> None:
    """The tables."""
    print("| turn | request, KB | CPU, ms | JSON alone, ms | request to items, ms | share of both | RSS, MB |")
    print("|---|---|---|---|---|---|---|")
    for n, data in bodies.items():
        spent = float(np.median(found[max(0, n - WINDOW) : n, 0])) * 1e3
        plain = least(lambda data=data: msgspec.json.decode(data))
        read = least(lambda data=data: CHAT.decode(data, {}))
        print(
            f"| {n:,} | {len(data) / 1e3:,.0f} | {spent:.1f} | {plain:.2f} | {read:.2f} "
            f"| {plain / spent:.0%}, {read / spent:.0%} | {found[n - 1, 1] / 1e6:.0f} |"
        )
    whole = found[: len(found) // WINDOW * WINDOW].reshape(-1, WINDOW, 2)
    turns, medians = np.arange(1, len(whole) + 1) * WINDOW, np.median(whole, axis=1)
    cpu, rss = np.polyfit(turns, medians[:, 0] * 1e6, 1), np.polyfit(turns, medians[:, 1] / 1e3, 1)
    print(f"\nfitted: CPU of a turn {cpu[1] / 1e3:.1f} ms and {cpu[0]:.1f} us per turn before it; ", end="")
    print(f"memory {rss[0]:.1f} KB per turn")


if __name__ == "__main__":
    main()
