"""What the contract suite does not ask: snapshots, crashes, left-overs, other users."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits, Mount
from tugline.core.errors import SandboxError
from tugline.core.task import Environment
from tugline.sandboxes import provider as find
from tugline.sandboxes.bubblewrap import hidden_dirs
from tugline.testing.sandbox_suite import Bench, alive

SMALL = Limits(disk=16 << 20)


@pytest.fixture
async def boxes(tmp_path):
    provider = find("bubblewrap", tmp_path / "state", "test")
    if missing := await provider.check():
        pytest.skip(missing[0])
    yield provider
    await provider.close()
    assert list((tmp_path / "state").iterdir()) == []


def env(*steps: str, digest: str = "d") -> Environment:
    return Environment(image="", workdir="/app", steps=steps, digest=digest)


async def test_one_digest_is_prepared_once_however_many_ask(boxes, tmp_path):
    environment = env("cat /proc/sys/kernel/random/uuid > id; mkdir /data; echo kept > /data/x")
    made = await asyncio.gather(*(boxes.start(environment, f"s{i}", SMALL) for i in range(6)))
    assert len({await box.read("/app/id") for box in made}) == 1
    assert await made[0].read("/data/x") == b"kept\n"
    other = await boxes.start(env(*environment.steps, digest="e"), "s", SMALL)
    assert await other.read("/app/id") != await made[0].read("/app/id")


async def test_a_failing_step_says_so_and_is_tried_again(boxes, tmp_path):
    environment = env("echo no such thing; exit 3")
    for _ in range(2):
        with pytest.raises(SandboxError) as caught:
            await boxes.start(environment, "s", SMALL)
        assert "ended with 3: no such thing" in caught.value.message
    assert list(next((tmp_path / "state").iterdir()).joinpath("snapshots").iterdir()) == []


async def test_a_step_cannot_lead_a_mount_astray(boxes, tmp_path):
    """bwrap would follow the link when it mounts the work directory, and make directories where it leads."""
    steps = (f"mv /w /old && ln -s {tmp_path} /w",)
    environment = Environment(image="", workdir="/w/deep", steps=steps, digest="d")
    box = await boxes.start(environment, "s", SMALL)
    with pytest.raises(SandboxError) as caught:
        await box.run(Command(("true",)), Deadline.after(20))
    assert "replaced by a link" in caught.value.message
    assert not (tmp_path / "deep").exists()


async def test_mounts_show_a_private_host_directory_read_only(boxes, tmp_path):
    private = tmp_path / "private"
    private.mkdir()
    (private / "tool").write_text("#!/bin/sh\necho tool\n")
    (private / "tool").chmod(0o755)
    private.chmod(0o755)
    tmp_path.chmod(0o700)
    bench = Bench(boxes, tmp_path)
    box = await bench.start()
    out = tmp_path / "out"
    command = Command(
        ("bash", "-c", "/opt/x/tool; touch /opt/x/y || echo refused; ls /opt"),
        stdout=out,
        mounts=(Mount(private, "/opt/x"),),
    )
    end = await box.run(command, Deadline.after(20))
    assert end.code == 0
    assert out.read_text() == "tool\nrefused\nx\n"
    with pytest.raises(SandboxError):
        await box.run(Command(("true",), mounts=(Mount(tmp_path / "none", "/opt/x"),)), Deadline.after(20))


async def test_root_inside_overrides_modes_but_has_no_power_outside(boxes, tmp_path):
    bench = Bench(boxes, tmp_path)
    box = await bench.start()
    await bench.sh(box, "mkdir d; echo x > d/f; chmod 000 d/f d")
    out = tmp_path / "out"
    script = "id -u; cat /app/d/f; touch /x && echo writes; mknod /n b 8 0 || echo no"
    script += "; (echo core > /proc/sys/kernel/core_pattern) || echo no"
    await box.run(Command(("bash", "-c", script), stdout=out, root=True), Deadline.after(20))
    assert out.read_text() == "0\nx\nwrites\nno\nno\n"


async def test_a_dead_warden_is_an_error_never_a_fresh_sandbox(tmp_path):
    boxes = find("bubblewrap", tmp_path / "state", "test")
    if missing := await boxes.check():
        pytest.skip(missing[0])
    bench = Bench(boxes, tmp_path)
    box = await bench.start()
    task = asyncio.create_task(bench.sh(box, "exec -a tugmark-w sleep 1000"))
    while not await alive("tugmark-w"):
        await asyncio.sleep(0.01)
    host = await boxes._started()
    os.kill(host.warden.process.pid, signal.SIGKILL)
    with pytest.raises(SandboxError):
        await task
    with pytest.raises(SandboxError):
        await box.read("/app/x")
    with pytest.raises(SandboxError):
        await bench.start()
    async with asyncio.timeout(10):
        while await alive("tugmark-w"):
            await asyncio.sleep(0.01)
    await box.close()
    await boxes.close()
    assert not any(Path(group).exists() for group in host.warden.cgroups)
    assert not Path(host.place.stage).exists()


@pytest.mark.parametrize("what", ["bytes", "files"])
async def test_a_disk_that_the_agent_has_filled_can_still_be_cloned_for_judging(boxes, tmp_path, what):
    bench = Bench(boxes, tmp_path)
    box = await bench.start(limits=Limits(disk=8 << 20))
    fill = {
        "bytes": "cat /dev/zero > /app/z",
        "files": "mkdir m; cd m; i=0; while mkdir $i.{0..999}; do i=$((i + 1)); done",
    }[what]
    _, said = await bench.sh(box, fill)
    assert "No space left" in said
    for _ in range(3):
        clone = await box.clone()
        await clone.write("/tests/x", b"1" * 100_000)
        assert await clone.read("/tests/x") == b"1" * 100_000
        await clone.close()
    _, said = await bench.sh(box, "cat /dev/zero > /app/y; stat -f -c '%b %S' /app")
    blocks, size = said.split()[-2:]
    assert int(blocks) * int(size) <= (8 + 3) << 20


@pytest.mark.skipif(not os.access("/usr/local/src", os.W_OK), reason="needs a directory below /usr to write to")
async def test_tests_and_runs_below_usr_are_hidden(tmp_path):
    place = Path(tempfile.mkdtemp(prefix="tugline-test-", dir="/usr/local/src"))
    boxes = find("bubblewrap", tmp_path / "state", "test", [place / "tasks", place / "tasks/one", place / "locked/x"])
    try:
        (place / "tasks/one/tests").mkdir(parents=True)
        (place / "tasks/one/tests/test.sh").write_text("the answer")
        (place / "locked/x").mkdir(parents=True)
        (place / "locked").chmod(0o700)
        (place / "other").write_text("seen")
        place.chmod(0o755)
        if missing := await boxes.check():
            pytest.skip(missing[0])
        bench = Bench(boxes, tmp_path)
        box = await bench.start()
        end, said = await bench.sh(box, f"cat {place}/other; find {place}/tasks; touch {place}/tasks/x; true")
        assert said.startswith(f"seen{place}/tasks\ntouch:")
        assert end.code == 0
    finally:
        await boxes.close()
        shutil.rmtree(place)


def test_what_is_hidden_lies_below_what_is_shown(tmp_path):
    (tmp_path / "shown/a/b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "shown/a")
    shown = (str(tmp_path / "shown"),)
    paths = [tmp_path / p for p in ("shown", "shown/a/b", "link", "other", "shown/none")]
    assert hidden_dirs(paths, shown, os.geteuid()) == (str(tmp_path / "shown/a"),)


SERVICE = """
import asyncio, sys
from pathlib import Path
from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.task import Environment
from tugline.sandboxes import provider

async def main():
    boxes = provider(sys.argv[1], Path(sys.argv[2]), "crash")
    async def one(i):
        box = await boxes.start(Environment("", "/app", digest="d"), f"s{i}", Limits(disk=1 << 20))
        script = "setsid bash -c 'exec -a tugmark-k sleep 1000' & exec -a tugmark-k sleep 1000"
        await box.run(Command(("bash", "-c", script)), Deadline.after(100))
    await asyncio.gather(*(one(i) for i in range(3)))

asyncio.run(main())
"""


@pytest.mark.parametrize("name", ["bubblewrap", "local"])
async def test_kill_9_of_the_service_leaves_no_process_and_reap_removes_the_rest(name, tmp_path):
    state = tmp_path / "state"
    path = os.pathsep.join(p for p in sys.path if p)
    service = subprocess.Popen([sys.executable, "-c", SERVICE, name, str(state)], env={"PYTHONPATH": path})
    async with asyncio.timeout(30):
        while len(await alive("tugmark-k")) < 6:
            assert service.poll() is None
            await asyncio.sleep(0.02)
    reaper = find(name, state, "next")
    assert await reaper.reap() == 0, "a living run was reaped"
    service.kill()
    service.wait()
    async with asyncio.timeout(20):
        while await alive("tugmark-k"):
            await asyncio.sleep(0.02)
    left = list(state.iterdir())
    assert await reaper.reap() == len(left) > 0
    assert list(state.iterdir()) == []
    for place in left:
        assert list(Path("/sys/fs/cgroup").glob(f"**/tugline-{place.name}")) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("name", ["bubblewrap", "local"])
def test_the_whole_contract_as_an_unprivileged_user(name, tmp_path):
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    here = Path(__file__).parents[3]
    path = os.pathsep.join([str(here / "src"), *(p for p in sys.path if p.endswith("site-packages"))])
    program = (
        "import asyncio, sys; from pathlib import Path; from tugline.sandboxes import provider\n"
        "from tugline.testing.sandbox_suite import run_suite\n"
        "async def main():\n"
        f"    boxes = provider({name!r}, Path(sys.argv[1]) / 'state', 'r')\n"
        "    assert not await boxes.check(), await boxes.check()\n"
        "    print('FAILURES', await run_suite(boxes, Path(sys.argv[1]) / 'scratch'))\n"
        "    await boxes.close()\n"
        "asyncio.run(main())\n"
    )
    place = Path("/tmp") / f"tugline-test-{os.getpid()}-{name}"
    place.mkdir()
    place.chmod(0o777)
    try:
        run = [
            "setpriv",
            "--reuid",
            "54321",
            "--regid",
            "54321",
            "--clear-groups",
            str(python),
            "-c",
            program,
            str(place),
        ]
        probe = subprocess.run(
            [*run[:7], "-c", "import msgspec, numpy"], env={"PYTHONPATH": path}, capture_output=True, text=True
        )
        if probe.returncode != 0:
            pytest.skip("no python with our libraries that another user can run")
        done = subprocess.run(
            run, env={"PYTHONPATH": path, "HOME": str(place)}, capture_output=True, text=True, timeout=55
        )
        assert done.stdout.strip().endswith("FAILURES []"), done.stdout + done.stderr
    finally:
        shutil.rmtree(place)
