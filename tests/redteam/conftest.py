"""Every isolating sandbox that works on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest

from tugline.sandboxes import SandboxOptions, hostroot
from tugline.sandboxes import provider as find

RUNTIMES = ("bubblewrap", "podman", "docker")
EXPECTED = os.environ.get("TUGLINE_TEST_SANDBOXES", "").split()
"""Those that have to work on this machine; the others are skipped where they do not."""
PYTHON = "/usr/bin/python3"
ONCE = ("test_pytest_matrix.py", "test_swe.py", "test_failing.py")
"""What judged work does to the process that it shares with its tests is the same in every sandbox: it is played in
bubblewrap each time, in containers a sample of it, and all of it by `make soak`."""
SAMPLE = (
    "overwrite-tests", "conftest-hook", "forged-lines", "swap-by-subprocess", "speak-once", "kill-the-judge",
    "write-to-the-judge", "leave-a-process", "hang", "honest", "hole", "many-names", "odd-names",
    "write-to-the-way-out", "starve-the-judge", "trace-the-worker", "take-all-memory",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.name in ONCE and item.path.parent == Path(__file__).parent and hasattr(item, "callspec"):
            values = item.callspec.params
            what = values.get("attack", values.get("name"))
            in_container = values.get("provider") in ("podman", "docker")
            if in_container and what is not None and getattr(what, "name", what) not in SAMPLE:
                item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="session")
def image(tmp_path_factory):
    """A root file system with this machine's tools, its Python and git; None where it has no such Python."""
    if not Path(PYTHON).exists():
        return None
    root = tmp_path_factory.mktemp("image") / "rootfs"
    root.mkdir(mode=0o755)
    hostroot.build(root)
    for program in (PYTHON, shutil.which("git", path="/usr/bin:/bin")):
        if program:
            hostroot._add(root, program)
    library = Path("/usr/lib") / Path(PYTHON).resolve().name
    shutil.copytree(
        library, root / str(library)[1:], symlinks=True, dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("test", "tests", "idlelib", "tkinter", "dist-packages", "config-*"),
    )  # fmt: skip
    for extension in library.glob("lib-dynload/*.so"):
        for needed in hostroot._libraries(str(extension)):
            hostroot._copy(root, needed)
    return root


@pytest.fixture(scope="session")
def known(tmp_path_factory):
    """(what is missing, by name; a cache of unpacked images)."""
    return {}, tmp_path_factory.mktemp("redteam-cache")


@pytest.fixture(params=RUNTIMES)
async def provider(request, tmp_path, known, image):
    state, run = tmp_path / "run" / "sandboxes", tmp_path / "run"
    state.mkdir(parents=True)
    missing, cache = known
    name, options = "bubblewrap", SandboxOptions()
    if request.param != "bubblewrap":
        rootfs = f"rootfs:{image}"
        name = "container"
        options = SandboxOptions(runtime=request.param, images={"*": rootfs}, image=rootfs, cache=cache)
    made = find(name, state, "redteam", (run, tmp_path / "task"), options)
    with contextlib.suppress(OSError):
        tmp_path.chmod(0o755)
    if request.param not in missing:
        missing[request.param] = [f"no {PYTHON} to attack with"] if image is None else await made.check()
    if missing[request.param]:
        await made.close()
        assert request.param not in EXPECTED, missing[request.param][0]
        pytest.skip(missing[request.param][0])
    yield made
    await made.close()
    assert list(state.iterdir()) == []
