"""The sandbox contract on every provider that works on this machine."""

from __future__ import annotations

import pytest
from blockbuster import BlockBuster

from tugline.sandboxes import provider as find
from tugline.testing.sandbox_suite import CHECKS, Bench


@pytest.fixture(params=["bubblewrap", "local"])
async def provider(request, tmp_path):
    provider = find(request.param, tmp_path / "state", "test")
    if missing := await provider.check():
        pytest.skip(missing[0])
    yield provider
    await provider.close()
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.name)
async def test_contract(provider, check, tmp_path):
    if check.isolating and not provider.isolating:
        pytest.skip("not promised by a provider that does not isolate")
    detector = BlockBuster()
    detector.activate()
    try:
        await check.run(Bench(provider, tmp_path))
    finally:
        detector.deactivate()
