"""Every isolating sandbox that works on this machine."""

from __future__ import annotations

import contextlib

import pytest

from tugline.core.errors import ConfigError
from tugline.sandboxes import NAMES
from tugline.sandboxes import provider as find

ISOLATING = sorted({*NAMES, "podman", "docker"} - {"local", "container"})


@pytest.fixture(params=ISOLATING)
async def provider(request, tmp_path):
    state, run = tmp_path / "run" / "sandboxes", tmp_path / "run"
    state.mkdir(parents=True)
    try:
        made = find(request.param, state, "redteam", (run, tmp_path / "task"))
    except ConfigError:
        pytest.skip(f"no sandbox of the name {request.param}")
    with contextlib.suppress(OSError):
        tmp_path.chmod(0o755)
    if missing := await made.check():
        await made.close()
        pytest.skip(missing[0])
    yield made
    await made.close()
    assert not [p for p in state.iterdir() if p.name != "cache"]
