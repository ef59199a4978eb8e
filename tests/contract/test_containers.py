"""Containers that are started ahead of their command: used where they fit, never where they would show other files."""

from __future__ import annotations

import os

import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Gateway, Limits, Mount
from tugline.core.task import Environment
from tugline.sandboxes import SandboxOptions
from tugline.sandboxes import provider as find

EXPECTED = os.environ.get("TUGLINE_TEST_SANDBOXES", "").split()
ENVIRONMENT = Environment("", "/app")


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=["podman", "docker"])
async def boxes(request, tmp_path, cache):
    """A provider whose last agent has shown what agents look like."""
    provider = find("container", tmp_path / "state", "t", options=SandboxOptions(runtime=request.param, cache=cache))
    if missing := await provider.check():
        assert request.param not in EXPECTED, missing[0]
        await provider.close()
        pytest.skip(missing[0])
    box = await provider.start(ENVIRONMENT, "first", Limits(disk=8 << 20))
    assert box._ahead is None
    assert await agent(box, tmp_path, "echo first") == "first\n"
    await box.close()
    yield provider
    await provider.close()
    assert list((tmp_path / "state").glob("*")) == []


async def agent(box, place, script, mounts=(), root=False):
    async def serve(listener):
        async def close():
            listener.close()

        return close

    command = Command(("sh", "-c", script), stdout=place / "out", stderr=place / "out", mounts=mounts, root=root)
    end = await box.run(command, Deadline.after(30), None if root else Gateway(8000, serve))
    assert end.code == 0, end
    return (place / "out").read_text()


async def test_it_is_used_and_sees_what_was_written_meanwhile(boxes, tmp_path):
    box = await boxes.start(ENVIRONMENT, "s", Limits(disk=8 << 20))
    waiting = await box._ahead
    await box.write("/app/late", b"written after the container had started\n")
    await box.write("/home/agent/.rc", b"x")
    text = await agent(box, tmp_path, "cat late; cat $HOME/.rc; cat /proc/sys/kernel/hostname")
    assert text == "written after the container had started\nxsandbox\n"
    assert box._ahead is None and not os.path.exists(f"/proc/{waiting.init}"), "another container ran the command"
    await box.close()


async def test_it_is_thrown_away_where_the_command_is_another(boxes, tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/x").write_text("tool\n")
    mount = (Mount(tmp_path / "tools", "/opt/tools"),)
    box = await boxes.start(ENVIRONMENT, "s", Limits(disk=8 << 20))
    assert await agent(box, tmp_path, "cat /opt/tools/x", mount) == "tool\n"
    await box.close()
    box = await boxes.start(ENVIRONMENT, "s", Limits(disk=8 << 20))
    waiting = await box._ahead
    assert waiting.frame.binds[0].target == "/opt/tools"
    assert await agent(box, tmp_path, "id -u", root=True) == "0\n"
    await box.close()


async def test_a_new_top_directory_is_seen(boxes, tmp_path):
    box = await boxes.start(ENVIRONMENT, "s", Limits(disk=8 << 20))
    await box._ahead
    await box.write("/tests/run", b"hidden no more\n")
    assert await agent(box, tmp_path, "cat /tests/run") == "hidden no more\n"
    await box.close()


async def test_it_does_not_outlive_a_clone_or_the_sandbox(boxes, tmp_path):
    box = await boxes.start(ENVIRONMENT, "s", Limits(disk=8 << 20))
    first = await box._ahead
    await box.write("/app/a", b"1")
    clone = await box.clone()
    assert await agent(box, tmp_path, "echo 2 > b; cat a b") == "12\n"
    assert await clone.read("/app/b") is None
    await clone.close()
    await box.close()
    assert not os.path.exists(f"/proc/{first.init}")
    other = await boxes.start(ENVIRONMENT, "s", Limits(disk=8 << 20))
    await other.close()  # while its container may still be starting
