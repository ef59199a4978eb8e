"""The service is killed at random moments of boot, preparation, command and clone. Nothing of it may stay.

TUGLINE_TEST_CYCLES sets how often, per sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from contract.leftover_kit import CLIENTS, MONITORS, Seen, owners
from tugline.sandboxes import SandboxOptions, instance
from tugline.sandboxes import provider as find
from tugline.sandboxes.runtimes import find as find_runtime
from tugline.sandboxes.stores import sweep
from tugline.testing.sandbox_suite import alive

CYCLES = int(os.environ.get("TUGLINE_TEST_CYCLES", "5"))
EXPECTED = os.environ.get("TUGLINE_TEST_SANDBOXES", "").split()
NAMES = {
    "bubblewrap": ("bubblewrap", "auto"),
    "local": ("local", "auto"),
    "podman": ("container", "podman"),
    "docker": ("container", "docker"),
}
VICTIMS = ((), (), ("warden",), ("clients",), ("warden", "clients"), ("warden", "clients", "monitors"))
"""What is killed with the service: monitors = conmon and the runtime, of which docker's belong to its daemon."""
SERVICE = """
import asyncio, sys
from pathlib import Path
from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.ident import new_id
from tugline.core.task import Copy, Environment
from tugline.sandboxes import SandboxOptions, provider

async def main(name, runtime, place, mark, fresh):
    options = SandboxOptions(cache=Path(place) / "cache", runtime=runtime)
    boxes = provider(name, Path(place) / "state", "soak", options=options)
    print("begun", flush=True)
    digest = new_id("env") if fresh == "1" else "soak"
    environment = Environment("", "/app", steps=(Copy(Path(place) / "source", "/app/"),), digest=digest)
    async def one(number):
        box = await boxes.start(environment, f"s{number}", Limits(disk=8 << 20))
        script = f"(setsid bash -c 'exec -a {mark} sleep 1000' &); sleep 0.2; echo x > y"
        await box.run(Command(("bash", "-c", script)), Deadline.after(60))
        clone = await box.clone()
        await clone.run(Command(("bash", "-c", f"exec -a {mark} sleep 1000")), Deadline.after(60))
    await asyncio.gather(*(one(number) for number in range(2)))
asyncio.run(main(*sys.argv[1:]))
"""


async def gone(pids, seconds=60.0):
    async with asyncio.timeout(seconds):
        while any(instance.alive(pid, started) for pid, started in pids):
            await asyncio.sleep(0.02)


async def making(seen, state, seconds=3.0):
    """Until a client of the engine is about to make a container, if one does so soon."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not await asyncio.to_thread(seen.making, state):
                await asyncio.sleep(0.01)


async def cycle(rng, kind, place, mark, seen):
    """One service from its start to its end by SIGKILL; sometimes its warden is killed too."""
    name, runtime = NAMES[kind]
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), *sys.path])
    environ = {**os.environ, "PYTHONPATH": path}
    argv = [sys.executable, "-c", SERVICE, name, runtime, str(place), mark, str(rng.randrange(2))]
    service = await asyncio.to_thread(subprocess.Popen, argv, env=environ, stdout=subprocess.PIPE)
    assert service.stdout is not None
    assert await asyncio.to_thread(service.stdout.readline) == b"begun\n"
    await asyncio.sleep(rng.uniform(0, 2.5 if name == "container" else 0.8))
    if name == "container" and rng.randrange(2):
        await making(seen, place / "state")
        await asyncio.sleep(rng.uniform(0, 0.4))
    assert service.poll() is None, "the service ended by itself"
    await asyncio.to_thread(seen.look, place / "state", await alive(mark))
    wardens = [(owner.warden, owner.warden_started) for _, owner in owners(place / "state") if owner.warden]
    if rng.randrange(2):  # takes a while, in which the service goes on
        await asyncio.to_thread(seen.ask)
    victims = rng.choice(VICTIMS)
    service.kill()
    if "warden" in victims:
        for pid, _ in wardens:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if "clients" in victims:
        monitors = MONITORS if "monitors" in victims and runtime == "podman" else ()
        await asyncio.to_thread(seen.kill, *CLIENTS, *monitors)
    await asyncio.to_thread(service.wait)
    service.stdout.close()
    await asyncio.to_thread(seen.look, place / "state")
    await gone(wardens)


@pytest.mark.timeout(120 + 30 * CYCLES)
@pytest.mark.parametrize("kind", list(NAMES))
async def test_a_killed_service_leaves_nothing(kind, tmp_path):
    name, runtime = NAMES[kind]
    probe = find(name, tmp_path / "probe", "t", options=SandboxOptions(runtime=runtime, cache=tmp_path / "cache"))
    missing = await probe.check()
    await probe.close()
    if missing:
        assert kind not in EXPECTED, missing[0]
        pytest.skip(missing[0])
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_text("x")
    (tmp_path / "state").mkdir()
    engine = find_runtime(runtime, os.environ) if name == "container" else None
    mark = f"tugsoak{os.getpid()}"
    seed = int(os.environ.get("TUGLINE_TEST_SEED", time.time()))
    rng = random.Random(seed)
    for number in range(CYCLES):
        seen = Seen(engine)
        await cycle(rng, kind, tmp_path, mark, seen)
        reaper = find(name, tmp_path / "state", "next", options=SandboxOptions(runtime=runtime))
        await reaper.reap()
        said = f"cycle {number} of seed {seed}"
        async with asyncio.timeout(15):  # where the warden was killed too, the kernel ends its processes by and by
            while await alive(mark):
                await asyncio.sleep(0.02)
        assert list((tmp_path / "state").iterdir()) == [], said
        left = await asyncio.to_thread(seen.left)
        assert left == {}, said
    await asyncio.to_thread(sweep, tmp_path / "cache", 0, 0)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.parent.name in ("snapshots", "images")] == []
