"""Image references on every engine of this machine. The images are made from this machine's own programs."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.errors import SandboxError
from tugline.core.task import Environment
from tugline.sandboxes import SandboxOptions, hostroot
from tugline.sandboxes import provider as find
from tugline.sandboxes.runtimes import find as find_runtime

EXPECTED = os.environ.get("TUGLINE_TEST_SANDBOXES", "").split()
TAG = f"localhost/tugline-test-{os.getpid()}:1"


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory):
    """A root file system with a mark in it."""
    root = tmp_path_factory.mktemp("images") / "rootfs"
    root.mkdir()
    hostroot.build(root)
    (root / "mark").write_text("from the image\n")
    (root / "srv/work").mkdir(parents=True)
    (root / "srv/work/brought").write_text("by the image\n")
    return root


@pytest.fixture(params=["podman", "docker"])
async def made(request, tmp_path, rootfs, tmp_path_factory):
    """(engine, function that calls it, SandboxOptions); the engine has the image as TAG."""
    probe = find("container", tmp_path / "probe", "t", options=SandboxOptions(runtime=request.param))
    missing = await probe.check()
    await probe.close()
    if missing:
        assert request.param not in EXPECTED, missing[0]
        pytest.skip(missing[0])
    runtime = find_runtime(request.param, os.environ)

    def call(*args):
        argv = [*runtime.argv, *args]
        done = subprocess.run(argv, env=dict(runtime.env), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    tar = tmp_path_factory.getbasetemp() / "rootfs.tar"
    if not tar.exists():
        subprocess.run(["tar", "-C", str(rootfs), "-cf", str(tar), "."], check=True)
    call("import", "--change", "ENV FROM_IMAGE=yes", str(tar), TAG)
    yield request.param, call, SandboxOptions(runtime=request.param, cache=tmp_path / "cache", pull=False)
    call("rmi", "--force", TAG)


async def see(options, state, named, workdir="/app", script="cat /mark; echo $FROM_IMAGE"):
    """What a command in a sandbox of an image prints."""
    provider = find("container", state, "t", options=options)
    try:
        box = await provider.start(Environment(named, workdir), "s", Limits(disk=8 << 20))
        out = state.parent / "out"
        end = await box.run(Command(("sh", "-c", script), stdout=out, stderr=out), Deadline.after(30))
        assert end.code == 0, out.read_text()
        used = await provider.images()
        await box.close()
        return out.read_text(), used
    finally:
        await provider.close()


async def test_a_tag_and_its_digest_are_the_same_image(made, tmp_path):
    _, call, options = made
    text, used = await see(options, tmp_path / "state", TAG)
    assert text == "from the image\nyes\n"
    digest = call("image", "inspect", "--format", "{{.Id}}", TAG).removeprefix("sha256:")
    assert used == {TAG: f"sha256:{digest}"}
    text, again = await see(options, tmp_path / "state", f"sha256:{digest}" if made[0] == "docker" else digest)
    assert text == "from the image\nyes\n" and list(again.values()) == list(used.values())
    assert len(list((tmp_path / "cache/images").glob("[!.]*"))) == 1, "one image was unpacked twice"


async def test_a_moved_tag_is_another_image(made, tmp_path):
    _, call, options = made
    _, before = await see(options, tmp_path / "state", TAG)
    (tmp_path / "context").mkdir()
    (tmp_path / "context/Dockerfile").write_text(f"FROM {TAG}\nCOPY mark /mark\nENV FROM_IMAGE=moved\n")
    (tmp_path / "context/mark").write_text("another\n")
    old = call("image", "inspect", "--format", "{{.Id}}", TAG)
    call("build", "--quiet", "--tag", TAG, str(tmp_path / "context"))
    text, after = await see(options, tmp_path / "state", TAG)
    assert text == "another\nmoved\n" and before != after
    made = call("image", "inspect", "--format", "{{.Id}}", TAG)
    call("tag", old, TAG)
    call("rmi", "--force", made.removeprefix("sha256:"))


async def test_archives_and_builds(made, tmp_path):
    kind, call, options = made
    archive = tmp_path / "image.tar"
    formats = ("oci-archive", "docker-archive") if kind == "podman" else ("docker-archive",)
    for form in formats:
        archive.unlink(missing_ok=True)
        call("save", *(("--format", form) if kind == "podman" else ()), "--output", str(archive), TAG)
        mapped = replace(options, images={"task/*": f"{form}:{archive}"})
        text, _ = await see(mapped, tmp_path / "state", "task/image:3")
        assert text == "from the image\nyes\n", form
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM {TAG}\nRUN echo built > /mark\n")
    text, used = await see(replace(options, images={"*": f"build:{context}"}), tmp_path / "state", "anything")
    assert text == "built\nyes\n"
    call("rmi", "--force", used["anything"].removeprefix("sha256:"))


async def test_a_root_file_system_is_used_in_place_and_never_written(made, rootfs, tmp_path):
    _, _, options = made
    before = sorted(str(p) for p in rootfs.rglob("*"))
    script = "cat brought; echo mine > brought; cat brought; id -u; ls -ld ."
    text, _ = await see(replace(options, image=f"rootfs:{rootfs}"), tmp_path / "state", "", "/srv/work", script)
    assert text.splitlines()[:3] == ["by the image", "mine", "1000"]
    assert (rootfs / "srv/work/brought").read_text() == "by the image\n"
    assert sorted(str(p) for p in rootfs.rglob("*")) == before


async def test_refusals_say_what_to_do(made, tmp_path):
    _, _, options = made
    with pytest.raises(SandboxError, match=r"sandbox\.pull is off"):
        await see(options, tmp_path / "state", "localhost/no-such-image:7")
    with pytest.raises(SandboxError, match="not pinned"):
        await see(replace(options, pinned=True), tmp_path / "state", TAG)
    with pytest.raises(SandboxError, match="cannot fetch"):
        await see(replace(options, pull=True), tmp_path / "state", "localhost:1/no-such-image:7")
    for ref in ("oci-archive:/no/file.tar", "rootfs:/no/dir", f"build:{tmp_path}/none"):
        with pytest.raises(SandboxError):
            await see(replace(options, image=ref), tmp_path / "state", "")
    assert list(Path(tmp_path / "state").glob("*")) == []
