from __future__ import annotations

import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.errors import SandboxError
from tugline.core.task import Environment
from tugline.sandboxes import provider as find


@pytest.fixture
async def boxes(tmp_path):
    provider = find("local", tmp_path / "state", "test")
    yield provider
    await provider.close()
    assert list((tmp_path / "state").iterdir()) == []


async def test_it_says_what_it_is(boxes):
    assert boxes.isolating is False
    assert "NO isolation" in await boxes.describe()


async def test_sandbox_paths_in_the_environment_become_host_paths(boxes, tmp_path):
    box = await boxes.start(Environment("", "/app"), "s", Limits())
    out = tmp_path / "out"
    env = {"HOME": "/home/agent", "OTHER": "/usr/lib", "X": "/app/x", "PATH": "/usr/bin:/bin"}
    await box.run(Command(("env",), env=env, stdout=out), Deadline.after(20))
    seen = dict(line.split("=", 1) for line in out.read_text().splitlines())
    top = box.workdir.removesuffix("/app")
    assert seen == {
        "HOME": f"{top}/home/agent", "OTHER": "/usr/lib", "X": f"{top}/app/x", "PATH": "/usr/bin:/bin",
        "APP_DIR": box.workdir, "TUGLINE_WORKDIR": box.workdir, "LOGS_DIR": f"{top}/logs/verifier",
        "TMPDIR": f"{top}/tmp",
    }  # fmt: skip
    await box.write("/home/agent/.x", b"1")
    assert await box.read(f"{top}/home/agent/.x") == b"1"


async def test_a_file_of_the_home_directory_can_be_named_as_an_argument(boxes, tmp_path):
    box = await boxes.start(Environment("", "/app"), "s", Limits())
    await box.write("/home/agent/task.md", b"text")
    out = tmp_path / "out"
    await box.run(Command(("cat", "/home/agent/task.md"), stdout=out), Deadline.after(20))
    assert out.read_bytes() == b"text"


async def test_run_steps_never_touch_the_host(boxes, tmp_path):
    mark = tmp_path / "mark"
    with pytest.raises(SandboxError) as caught:
        await boxes.start(Environment("", "/app", steps=(f"touch {mark}",), digest="d"), "s", Limits())
    assert "use bubblewrap" in caught.value.message
    assert not mark.exists()


async def test_judging_happens_in_isolation_where_possible(boxes, tmp_path):
    if "judged in bubblewrap" not in await boxes.describe():
        pytest.skip("no bubblewrap here")
    box = await boxes.start(Environment("", "/app"), "s", Limits(disk=8 << 20))
    await box.write("/app/x", b"left", 0o600)
    clone = await box.clone()
    assert clone.isolated
    assert clone.workdir == "/app"
    assert await clone.read("/app/x") == b"left"
    await box.close()
    await clone.close()


async def test_a_killed_keeper_leaves_nothing(boxes, tmp_path):
    """An agent that kills its own keeper gains nothing: the warden inherits and ends what is left."""
    from tugline.testing.sandbox_suite import alive

    box = await boxes.start(Environment("", "/app"), "s", Limits())
    script = "setsid bash -c 'exec -a tugmark-kk sleep 1000' & sleep 0.2; kill -9 $PPID; exec -a tugmark-kk sleep 1000"
    end = await box.run(Command(("bash", "-c", script)), Deadline.after(20))
    assert end.code == -9
    assert not await alive("tugmark-kk")
