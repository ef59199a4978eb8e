"""Every isolating sandbox that works on this machine."""

from __future__ import annotations

import contextlib

import pytest

from tugline.sandboxes import SandboxOptions
from tugline.sandboxes import provider as find

IMAGES = {"xingyaoww/sweb.eval.x86_64.owner_s_repo-1:latest": "host"}
ISOLATING = {
    "bubblewrap": ("bubblewrap", SandboxOptions()),
    "podman": ("container", SandboxOptions(runtime="podman", images=IMAGES)),
    "docker": ("container", SandboxOptions(runtime="docker", images=IMAGES)),
}


@pytest.fixture(params=ISOLATING)
async def provider(request, tmp_path):
    state, run = tmp_path / "run" / "sandboxes", tmp_path / "run"
    state.mkdir(parents=True)
    name, options = ISOLATING[request.param]
    made = find(name, state, "redteam", (run, tmp_path / "task"), options)
    with contextlib.suppress(OSError):
        tmp_path.chmod(0o755)
    if missing := await made.check():
        await made.close()
        pytest.skip(missing[0])
    yield made
    await made.close()
    assert list(state.iterdir()) == []
