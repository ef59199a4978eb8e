"""Sandboxes from settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tugline.config.types import Settings
from tugline.core.contracts import Limits, SandboxProvider
from tugline.core.errors import ConfigError, RunError, boundary
from tugline.core.paths import expanded
from tugline.core.task import Task
from tugline.gateway.egress import parse_rule, uncovered
from tugline.sandboxes import SandboxOptions
from tugline.sandboxes import provider as sandbox_provider


def sandbox_options(settings: Settings) -> SandboxOptions:
    """Where sandboxes keep what they share, and which images they are made from."""
    box = settings.sandbox
    cache = expanded(settings.cache.dir, "cache.dir") / "sandboxes"
    return SandboxOptions(cache, box.runtime, box.images, box.image, box.pull, box.pinned)


async def choose_sandbox(settings: Settings, run_dir: Path, tasks: tuple[Task, ...]) -> SandboxProvider:
    """The sandbox asked for; `auto` is bubblewrap where it works. Raises ConfigError saying what is missing.

    No agent sees the run directory or a task's own.
    """
    name = settings.sandbox.name
    asked = "bubblewrap" if name == "auto" else name
    hide = (run_dir, *sorted({task.path for task in tasks}))
    options = await asyncio.to_thread(sandbox_options, settings)
    provider = sandbox_provider(asked, run_dir / "sandboxes", run_dir.name, hide, options)
    problems = ["the check was stopped"]
    try:
        problems = await provider.check()
    finally:
        if problems:
            await provider.close()
    if problems:
        hint = " (--sandbox local runs agents unisolated, for trusted development)" if name == "auto" else ""
        raise ConfigError(f"{asked} does not work here: {'; '.join(problems)}{hint}", where="sandbox.name")
    return provider


def sandbox_limits(settings: Settings) -> Limits:
    """What one sandbox may use."""
    box = settings.sandbox
    return Limits(box.memory, box.disk, box.pids)


def note_images(run_dir: Path, used: Mapping[str, str]) -> None:
    """Add to RUN/images.json: {image as tasks name it: digest of what their sandboxes were made from}."""
    file = run_dir / "images.json"
    with boundary(RunError, f"write {file}"):
        known = msgspec.json.decode(file.read_bytes(), type=dict[str, str]) if file.is_file() else {}
        file.write_bytes(msgspec.json.format(msgspec.json.encode({**known, **used})) + b"\n")


def check_egress(settings: Settings, tasks: tuple[Task, ...]) -> None:
    """Every host that a task asks for is one that the operator allows. Raises ConfigError naming them."""
    allowed = settings.sandbox.egress
    for text in allowed:
        parse_rule(text)
    for task in tasks:
        missing = uncovered(task.environment.hosts, allowed)
        if missing:
            raise ConfigError(
                f"task {task.name} asks for {', '.join(missing)}; allow that with --set 'sandbox.egress={missing[0]}', "
                "or leave the task out",
                where="sandbox.egress",
            )
