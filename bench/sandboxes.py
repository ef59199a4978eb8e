"""What a sandbox costs over a large prepared work directory: preparing, starting, first command, clone, removal.

python bench/sandboxes.py                          500 MB in 20,000 files, every sandbox that works here
python bench/sandboxes.py --files 2000 --mb 50 --only podman
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import socket
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Gateway, Limits, SandboxProvider
from tugline.core.task import Copy, Environment
from tugline.sandboxes import SandboxOptions, provider

KINDS = {
    "bubblewrap": ("bubblewrap", "auto"),
    "podman": ("container", "podman"),
    "docker": ("container", "docker"),
}
LIMITS = Limits(disk=256 << 20)


def workspace(top: Path, files: int, size: int) -> None:
    """`files` files of random bytes in directories of 100, `size` bytes together."""
    each = size // files
    rng = random.Random(0)
    for number in range(files):
        folder = top / f"d{number // 100}"
        if number % 100 == 0:
            folder.mkdir(parents=True)
        (folder / f"f{number}").write_bytes(rng.randbytes(each))


def shown(values: list[float]) -> dict[str, float]:
    """Milliseconds: median, 95th percentile, least."""
    ordered = sorted(values)
    return {
        "p50": round(statistics.median(ordered) * 1e3, 1),
        "p95": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))] * 1e3, 1),
        "min": round(ordered[0] * 1e3, 1),
        "n": len(ordered),
    }


async def measure(boxes: SandboxProvider, source: Path, rounds: int) -> dict[str, object]:
    """One provider."""
    environment = Environment("", "/app", steps=(Copy(source, "/app/"),), digest=f"bench-{source}-{os.getpid()}")
    times: dict[str, list[float]] = defaultdict(list)
    began = time.perf_counter()
    group = await asyncio.gather(*(boxes.start(environment, f"g{i}", LIMITS) for i in range(8)))
    prepared = time.perf_counter() - began
    for box in group:
        await box.close()
    for number in range(rounds):
        began = time.perf_counter()
        box = await boxes.start(environment, f"s{number}", LIMITS)
        times["start"].append(time.perf_counter() - began)
        end = await box.run(Command(("true",)), Deadline.after(60))
        assert end.code == 0, end
        times["start to first command's end"].append(time.perf_counter() - began)
        began = time.perf_counter()
        await box.run(Command(("true",)), Deadline.after(60))
        times["another command"].append(time.perf_counter() - began)
        await box.write("/app/d0/f0", b"changed")
        began = time.perf_counter()
        clone = await box.clone()
        times["clone for judging"].append(time.perf_counter() - began)
        began = time.perf_counter()
        await clone.close()
        times["close"].append(time.perf_counter() - began)
        await box.close()
    await boxes_ahead(boxes, environment, times, rounds)
    snapshots = getattr(boxes, "prepared", None)
    out: dict[str, object] = {name: shown(values) for name, values in times.items()}
    return {"prepare, then 8 boxes (s)": round(prepared, 2), "prepared": snapshots, **out}


async def boxes_ahead(
    boxes: SandboxProvider, environment: Environment, times: dict[str, list[float]], rounds: int
) -> None:
    """As in a run: a sandbox is there some time before its agent starts, and agents have been seen before."""

    async def serve(listener: socket.socket) -> Callable[[], Awaitable[None]]:
        async def close() -> None:
            listener.close()

        return close

    for number in range(rounds + 1):
        box = await boxes.start(environment, f"a{number}", LIMITS)
        await asyncio.sleep(2 if number else 0)
        began = time.perf_counter()
        await box.run(Command(("true",)), Deadline.after(60), Gateway(8000, serve))
        if number:
            times["an agent's command in a sandbox that waited"].append(time.perf_counter() - began)
        await box.close()


async def main(args: argparse.Namespace) -> None:
    top = Path(tempfile.mkdtemp(prefix="tugline-bench-", dir=args.place))
    try:
        source = top / "source"
        await asyncio.to_thread(workspace, source, args.files, args.mb << 20)
        for kind, (name, runtime) in KINDS.items():
            if args.only and kind not in args.only:
                continue
            options = SandboxOptions(cache=top / kind, runtime=runtime)
            boxes = provider(name, top / "state", "bench", options=options)
            try:
                if missing := await boxes.check():
                    print(json.dumps({kind: missing}))
                    continue
                print(
                    json.dumps({kind: await measure(boxes, source, args.rounds), "load": os.getloadavg()[0]}, indent=1)
                )
            finally:
                await boxes.close()
    finally:
        await asyncio.to_thread(shutil.rmtree, top)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--mb", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--place", default=None, help="directory on the disk to measure")
    parser.add_argument("--only", nargs="*", choices=KINDS)
    asyncio.run(main(parser.parse_args()))
