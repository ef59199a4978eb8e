"""`tugline doctor sandbox`: which sandboxes work here, how, and what the others would need."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tugline.core.contracts import SandboxProvider
from tugline.core.errors import TuglineError
from tugline.sandboxes import SandboxOptions
from tugline.sandboxes import provider as sandbox_provider

KINDS = (
    ("bubblewrap", "auto", "agents reach the gateway and nothing else"),
    ("container", "podman", "agents reach the gateway and nothing else; tasks have their own images"),
    ("container", "docker", "agents reach the gateway and nothing else; tasks have their own images"),
    ("apptainer", "auto", "as containers; not proven, for want of a system that has it"),
    ("local", "auto", "no isolation: trusted only"),
)


@dataclass(frozen=True, slots=True)
class Check:
    """One line. `ok` None = works in part; `hint` says what to do."""

    part: str
    ok: bool | None
    what: str
    hint: str = ""


def sandboxes() -> list[Check]:
    """One line each; a working one says how it works."""
    checks = []
    with tempfile.TemporaryDirectory(prefix="tugline-doctor-") as scratch:
        for name, runtime, promise in KINDS:
            shown = name if runtime == "auto" else f"{name} with {runtime}"
            try:
                provider = sandbox_provider(name, Path(scratch), "doctor", options=SandboxOptions(runtime=runtime))
                problems, how = asyncio.run(_probe(provider))
            except TuglineError as err:
                problems, how = [err.message], ""
            checks.append(Check("sandbox", not problems, f"{shown} ({promise}){how}", "; ".join(problems)))
    return checks


async def _probe(provider: SandboxProvider) -> tuple[list[str], str]:
    try:
        problems = await provider.check()
        describe = getattr(provider, "describe", None)
        how = f": {await describe()}" if describe is not None and not problems else ""
        return problems, how
    finally:
        await provider.close()
