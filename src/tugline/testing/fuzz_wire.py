"""The wire half of the fuzzer: bodies posted to a real gateway with a scripted engine."""

from __future__ import annotations

import asyncio
import gc
import resource
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec

from tugline.cli.wiring import PILOT, chat_model
from tugline.core.contracts import Dialect, Policy
from tugline.core.turn import Sampling
from tugline.dialects import DIALECTS
from tugline.engines.scripted import ScriptedEngine
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.store import RunStore
from tugline.testing.fuzz_bodies import Bodies

AT_ONCE = 8
PER_SESSION = 100
"""Bodies of one session at most: its forest is released with it, and so must be all that it held."""
WINDOW = 1 << 18
SCRIPT: tuple[object, ...] = (
    {"settings": {"noncanonical": 0.3, "seed": 1, "repeat": True}},
    {"reasoning": "Think.", "text": "  Ok\n", "calls": [{"name": "bash", "arguments": '{"command" :  "ls"}'}]},
    {"text": "Done."},
    {"text": "This is cu", "finish": "length"},
    {"calls": [{"name": "bash", "arguments": "{"}]},
)


@dataclass(slots=True)
class Served:
    """How a gateway answered."""

    calls: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    slowest_ms: float = 0.0
    grown: int = 0
    """Bytes of resident memory after the first quarter."""
    failures: list[str] = field(default_factory=list)


def resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def through_gateway(
    dialect: Dialect, bodies: Bodies, numbers: Sequence[int], scratch: Path, limit_s: float = 30.0
) -> Served:
    """Post bodies to a gateway of our own on a TCP port. `scratch` takes its run. Each call may take `limit_s`."""
    paths = sorted({r.path.replace("{model}", "policy") for r in dialect.routes if r.kind == "generate"})
    store = await asyncio.to_thread(RunStore.create, scratch / "run", "")
    folder = await asyncio.to_thread(_wide, scratch)
    engine = ScriptedEngine(SCRIPT, folder, scratch / "engine")
    await engine.start()
    gateway = LocalGateway(engine, await asyncio.to_thread(chat_model, folder), store, DIALECTS, GatewayOptions())
    await gateway.start()
    served, base = Served(), resident()
    size = max(10, min(PER_SESSION, len(numbers) // 10))
    try:
        async with httpx.AsyncClient(timeout=limit_s) as client:
            for start in range(0, len(numbers), size):
                if start <= len(numbers) // 4:  # what is loaded at first use, and what allocators keep
                    gc.collect()
                    base, served.slowest_ms = resident(), 0.0
                name = f"ses_{start}"
                access = await gateway.open(name, Policy(Sampling(max_tokens=40)))
                waiting = list(numbers[start : start + size])
                urls = [f"{access.secret_url}{path}" for path in paths]
                await asyncio.gather(*(_post(client, urls, bodies, waiting, served) for _ in range(AT_ONCE)))
                await gateway.close(name)
    finally:
        await gateway.stop()
        await engine.close()
        await store.close()
    gc.collect()
    served.grown = max(0, resident() - base)
    return served


def _wide(scratch: Path) -> Path:
    """The shipped policy's tokenizer and template with a window that real harnesses' prompts fit."""
    folder = scratch / "model"
    shutil.copytree(PILOT, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    facts = msgspec.json.decode((folder / "tugline.json").read_bytes())
    (folder / "tugline.json").write_bytes(msgspec.json.encode({**facts, "context": WINDOW}))
    return folder


async def _post(
    client: httpx.AsyncClient, urls: Sequence[str], bodies: Bodies, waiting: list[int], served: Served
) -> None:
    while waiting:
        number = waiting.pop()
        body = bodies.body(number)
        begun = time.perf_counter()
        served.calls += 1
        try:
            response = await client.post(
                urls[number % len(urls)], content=body, headers={"content-type": "application/json"}
            )
        except httpx.HTTPError as err:
            served.failures.append(f"body {number} over HTTP: {type(err).__name__} {err}")
            continue
        served.slowest_ms = max(served.slowest_ms, (time.perf_counter() - begun) * 1000)
        served.statuses[response.status_code] += 1
        if response.status_code >= 500 or not (response.status_code == 200 or _is_object(response.content)):
            said = f"{response.status_code} {response.content[:200]!r}"
            served.failures.append(f"body {number} over HTTP: {said} for {body[:120]!r}")


def _is_object(data: bytes) -> bool:
    try:
        return isinstance(msgspec.json.decode(data), dict | list)
    except msgspec.DecodeError:
        return False
