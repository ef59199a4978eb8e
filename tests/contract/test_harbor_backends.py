"""Harbor's back ends as sandboxes, over a stand-in that runs commands in one of our own boxes as a remote machine does:
a command line in, an exit status and two texts out, files only by transfer."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.errors import SandboxError
from tugline.core.task import Copy, Environment
from tugline.sandboxes import provider as find
from tugline.sandboxes.harbor import HarborProvider, write_context
from tugline.testing.sandbox_suite import CHECKS, Bench

NOT_KEPT = {
    "output_arrives_while_the_command_runs": "there is only the end of a command",
    "prepared_snapshot_is_copied_on_write": "the stand-in builds no images",
    "clone_for_judging": "the same: its clone starts without the prepared files",
}


@dataclass
class Ended:
    stdout: str
    stderr: str
    return_code: int


class StandIn:
    """What Harbor's BaseEnvironment does, over a bubblewrap box."""

    def __init__(self, boxes, name, place):
        self._boxes, self._name, self._place, self.box = boxes, name, place, None

    async def start(self, force_build):
        self.box = await self._boxes.start(Environment("", "/app"), self._name, Limits(disk=200 << 20))

    async def stop(self, delete):
        if self.box is not None:
            await self.box.close()

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        out, err = self._place / "o", self._place / "e"
        asked = Command(
            ("bash", "-c", command), {"PATH": "/usr/bin:/bin"}, cwd or "/", stdout=out, stderr=err, root=True
        )
        end = await self.box.run(asked, Deadline.after(timeout_sec or 600))
        if end.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        texts = [path.read_bytes().decode(errors="replace") for path in (out, err)]
        return Ended(*texts, end.code if end.code >= 0 else 128 - end.code)

    async def upload_file(self, source_path, target_path):
        await self.box.upload(Path(source_path), target_path)

    async def upload_dir(self, source_dir, target_dir):
        await self.box.upload(Path(source_dir), target_dir)

    async def download_file(self, source_path, target_path):
        data = await self.box.read(source_path, 100 << 20)
        if data is None:
            raise FileNotFoundError(source_path)
        Path(target_path).write_bytes(data)


@pytest.fixture
async def provider(tmp_path):
    boxes = find("bubblewrap", tmp_path / "remote", "test")
    if missing := await boxes.check():
        pytest.skip(missing[0])
    provider = HarborProvider("harbor:stand-in", tmp_path / "state", lambda _, name, place: StandIn(boxes, name, place))
    yield provider
    await provider.close()
    assert list((tmp_path / "state").glob("*")) == []
    await boxes.close()


@pytest.mark.parametrize("check", [c for c in CHECKS if not c.isolating], ids=lambda c: c.name)
async def test_contract(provider, check, tmp_path):
    if check.name in NOT_KEPT:
        pytest.skip(NOT_KEPT[check.name])
    await check.run(Bench(provider, tmp_path))


async def test_a_clone_has_the_work_directory_and_nothing_else(provider):
    box = await provider.start(Environment("", "/app"), "s", Limits())
    await box.write("/app/sub/x", b"made")
    await box.write("/logs/verifier/reward.txt", b"1")
    clone = await box.clone()
    assert await clone.read("/app/sub/x") == b"made"
    assert await clone.read("/logs/verifier/reward.txt") is None
    await clone.write("/app/sub/x", b"judged")
    assert await box.read("/app/sub/x") == b"made"
    await clone.close()
    await box.close()


def test_the_build_context_says_what_the_environment_is(tmp_path):
    (tmp_path / "files/sub").mkdir(parents=True)
    (tmp_path / "files/sub/a").write_text("a")
    (tmp_path / "one").write_text("1")
    steps = (Copy(tmp_path / "files", "/app/"), Copy(tmp_path / "one", "/app/one"), "echo 'x' > /app/y")
    environment = Environment("img:1", "/app", env={"A": 'b "c" $d\n'}, steps=steps)
    write_context(environment, tmp_path / "context")
    text = (tmp_path / "context/Dockerfile").read_text()
    assert text.splitlines() == [
        "FROM img:1",
        "WORKDIR /app",
        'ENV A="b \\"c\\" \\$d\\n"',
        "COPY copy0/ /app/",
        "COPY copy1/one /app/one",
        "COPY step2.sh /tmp/step2.sh",
        "RUN sh /tmp/step2.sh && rm /tmp/step2.sh",
    ]
    assert (tmp_path / "context/copy0/sub/a").read_text() == "a"
    shutil.rmtree(tmp_path / "context")


async def test_without_harbor_the_check_says_what_to_install(tmp_path):
    boxes = find("harbor:modal", tmp_path, "t")
    (said,) = await boxes.check()
    assert "pip install harbor" in said
    with pytest.raises(SandboxError):
        await boxes.start(Environment("x"), "s", Limits())
    await boxes.close()
    assert list(tmp_path.iterdir()) == []
