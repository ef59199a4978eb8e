"""podman has no daemon: whoever kills its client while it makes a container leaves half of one. None of it may stay."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from contract.leftover_kit import CLIENTS, MONITORS, Seen, owners
from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.errors import SandboxError
from tugline.core.task import Environment
from tugline.sandboxes import SandboxOptions, runtimes
from tugline.sandboxes import provider as find
from tugline.sandboxes.warden import podman

EXPECTED = os.environ.get("TUGLINE_TEST_SANDBOXES", "").split()
RUNTIME = """#!/bin/sh
# Stands still once: at `start`, or when `create` has done its work.
for word in "$@"; do
  if [ "$word" = {step} ] && mkdir {place}/once 2>/dev/null; then
    [ {step} = create ] && {{ {real} "$@" || exit 1; }}
    mkdir {place}/reached; sleep 3
    [ {step} = create ] && exit 0
  fi
done
exec {real} "$@"
"""
SERVICE = """
import asyncio, sys
from pathlib import Path
from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.task import Environment
from tugline.sandboxes import SandboxOptions, provider, runtimes

runtimes.podman_options = lambda: tuple(sys.argv[2:])

async def main(place):
    boxes = provider("container", place / "state", "t", options=SandboxOptions(cache=place / "cache", runtime="podman"))
    box = await boxes.start(Environment("", "/app"), "s", Limits(disk=8 << 20))
    await box.run(Command(("true",)), Deadline.after(60))

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture(params=["start", "create"])
async def options(request, tmp_path):
    """podman's options with a runtime that lets the first container wait half made."""
    probe = provider(tmp_path / "probe", tmp_path)
    missing = await probe.check()
    await probe.close()
    if missing:
        assert "podman" not in EXPECTED, missing[0]
        pytest.skip(missing[0])
    given = runtimes.podman_options()
    real = given[given.index("--runtime") + 1] if "--runtime" in given else shutil.which("crun") or shutil.which("runc")
    wrapper = tmp_path / "bin" / os.path.basename(real)
    wrapper.parent.mkdir()
    wrapper.write_text(RUNTIME.format(step=request.param, place=tmp_path, real=real))
    wrapper.chmod(0o755)
    rest = given[: given.index("--runtime")] if "--runtime" in given else given
    return (*rest, "--runtime", str(wrapper))


def provider(state, place):
    return find("container", state, "t", options=SandboxOptions(runtime="podman", cache=place / "cache"))


async def reached(place, seen):
    """The first container is half made."""
    async with asyncio.timeout(30):
        while not (place / "reached").exists():
            await asyncio.sleep(0.02)
    await asyncio.to_thread(seen.look, place / "state")  # not by asking podman: it waits for the container's lock
    assert await asyncio.to_thread(seen.processes)


async def test_the_client_is_killed(options, tmp_path, monkeypatch):
    monkeypatch.setattr(runtimes, "podman_options", lambda: options)
    seen = Seen(runtimes.find("podman", os.environ))
    boxes = provider(tmp_path / "state", tmp_path)
    box = await boxes.start(Environment("", "/app"), "s", Limits(disk=8 << 20))
    running = asyncio.create_task(box.run(Command(("true",)), Deadline.after(60)))
    await reached(tmp_path, seen)
    assert await asyncio.to_thread(seen.kill, *CLIENTS)
    with pytest.raises(SandboxError):
        await running
    await box.close()
    async with asyncio.timeout(10):  # a conmon and its cleaner end shortly after their container
        while await asyncio.to_thread(seen.processes):
            await asyncio.sleep(0.05)
    other = await boxes.start(Environment("", "/app"), "s", Limits(disk=8 << 20))
    assert (await other.run(Command(("true",)), Deadline.after(60))).code == 0
    await boxes.close()
    assert await asyncio.to_thread(seen.left) == {}


@pytest.mark.parametrize("also", [(), (*CLIENTS, *MONITORS)], ids=["service", "engine"])
async def test_everything_is_killed(also, options, tmp_path):
    seen = Seen(runtimes.find("podman", os.environ))
    path = os.pathsep.join([str(Path(__file__).parents[2] / "src"), *sys.path])
    argv = [sys.executable, "-c", SERVICE, str(tmp_path), *options]
    service = await asyncio.to_thread(subprocess.Popen, argv, env={**os.environ, "PYTHONPATH": path})
    await reached(tmp_path, seen)
    service.kill()
    for _, owner in owners(tmp_path / "state"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner.warden, 9)
    await asyncio.to_thread(seen.kill, *also)
    await asyncio.to_thread(service.wait)
    assert await provider(tmp_path / "state", tmp_path).reap() == 1
    assert await asyncio.to_thread(seen.left) == {}
    assert list((tmp_path / "state").iterdir()) == []


def test_containers_that_others_are_making_stay():
    """podman shows what has storage and is not in its database yet, whatever name is asked for."""
    if not shutil.which("podman") or os.geteuid() != 0:
        assert "podman" not in EXPECTED
        pytest.skip("no podman")
    with tempfile.TemporaryDirectory(prefix="tl-", dir="/tmp", ignore_cleanup_errors=True) as name:
        place = Path(name)  # podman takes no long path for what it runs from
        options = [part for kind in ("root", "runroot", "tmpdir") for part in (f"--{kind}", f"{name}/{kind}")]
        argv, env = ["podman", *runtimes.podman_options(), *options], dict(os.environ)

        def ask(*args):
            return subprocess.run([*argv, *args], env=env, capture_output=True, text=True, check=True).stdout.split()

        (place / "files").mkdir()
        for made in ("tugline-box_a-1", "tugline-box_b-1"):
            ask("create", "--name", made, "--rootfs", f"{name}/files", "/bin/sh")
        for database in (*place.glob("root/libpod/bolt_state.db"), *place.glob("root/db.sql")):
            database.unlink()
        shown = ("ps", "-a", "--external", "--format", "{{.Names}}")
        assert sorted(ask(*shown)) == ["tugline-box_a-1", "tugline-box_b-1"]
        assert podman.drop_storage(argv, env, "tugline-box_a-") == 1
        assert ask(*shown) == ["tugline-box_b-1"]
        assert podman.drop_storage(argv, env, "tugline-box_b-") == 1
