"""The sandbox contract on every provider that works on this machine."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from blockbuster import BlockBuster

from tugline.sandboxes import SandboxOptions
from tugline.sandboxes import provider as find
from tugline.testing.sandbox_suite import CHECKS, Bench

NAMES = {
    "bubblewrap": ("bubblewrap", SandboxOptions()),
    "local": ("local", SandboxOptions()),
    "podman": ("container", SandboxOptions(runtime="podman")),
    "docker": ("container", SandboxOptions(runtime="docker")),
    "apptainer": ("apptainer", SandboxOptions()),
}
EXPECTED = os.environ.get("TUGLINE_TEST_SANDBOXES", "").split()
"""Those that have to work on this machine; the others are skipped where they do not."""


@pytest.fixture(scope="session")
def known(tmp_path_factory):
    """(what is missing, by name; a cache of unpacked images)."""
    return {}, tmp_path_factory.mktemp("sandbox-cache")


def stand_in(folder, monkeypatch):
    """apptainer is not packaged for the systems that tests run on."""
    folder.mkdir(exist_ok=True)
    program = folder / "apptainer"
    fake = Path(__file__).with_name("fake_apptainer.py")
    source = Path(__file__).parents[2] / "src"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={source} exec {sys.executable} {fake} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.fixture(params=list(NAMES))
async def provider(request, tmp_path, known, monkeypatch):
    name, options = NAMES[request.param]
    missing, cache = known
    if name == "apptainer":
        stand_in(cache / "bin", monkeypatch)
    if name in ("container", "apptainer"):
        options = replace(options, cache=cache)
    provider = find(name, tmp_path / "state", "test", options=options)
    if request.param not in missing:
        missing[request.param] = await provider.check()
    if missing[request.param]:
        assert request.param not in EXPECTED, missing[request.param][0]
        await provider.close()
        pytest.skip(missing[request.param][0])
    yield provider
    await provider.close()
    assert list((tmp_path / "state").glob("*")) == []


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
