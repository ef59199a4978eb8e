"""Installing Pi for real: once for everybody who asks, and plain words when npm cannot."""

from __future__ import annotations

import asyncio

import pytest

from tugline.core.errors import HarnessError
from tugline.harnesses import harness

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]


async def test_two_at_once_install_once(tmp_path):
    said: list[str] = []
    bundles = await asyncio.gather(*(harness("pi").install(tmp_path, said.append) for _ in range(2)))
    assert bundles[0] == bundles[1]
    assert len([line for line in said if line.startswith("installed pi")]) == 1
    assert [p.name for p in (tmp_path / "bundles").iterdir() if not p.name.endswith(".lock")] == ["pi-1.6.0"]
    quiet: list[str] = []
    assert await harness("pi").install(tmp_path, quiet.append) == bundles[0]
    assert quiet == []


async def test_without_a_registry_the_error_says_what_npm_said_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm"))
    with pytest.raises(HarnessError) as caught:
        await harness("pi").install(tmp_path / "cache", lambda _: None)
    assert "ECONNREFUSED" in caught.value.message
    assert "npm_config_registry" in caught.value.message
    assert [p.name for p in (tmp_path / "cache/bundles").iterdir() if not p.name.endswith(".lock")] == []
