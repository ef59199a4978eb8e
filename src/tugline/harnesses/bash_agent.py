"""A small agent of our own for machines without Node: one `bash` tool, Python's standard library, Chat API.

It is for trying things out and for tests. For training use a real harness.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tugline.core.contracts import Bundle, Command, Exit, Launch, Mount, Plan
from tugline.harnesses.command import PATH, environment, exit_failure

INSIDE, PYTHON_INSIDE = "/opt/tugline/bash-agent", "/opt/tugline/python"
VERSION = "1"


class BashAgentHarness:
    """See `Harness` in core.contracts."""

    name = "bash-agent"
    dialect = "chat"

    async def install(self, cache: Path, say: Callable[[str], None]) -> Bundle:
        """Nothing to fetch. Shows this interpreter inside when the system has no python3."""
        program = Mount(Path(__file__).parent / "programs", INSIDE)
        if await asyncio.to_thread(shutil.which, "python3", path=PATH):
            return Bundle((program,), VERSION)
        return Bundle((program, Mount(Path(sys.base_prefix), PYTHON_INSIDE)), VERSION)

    def plan(self, launch: Launch, bundle: Bundle) -> Plan:
        """The instruction comes on standard input."""
        paths = [m.target if launch.isolated else str(m.source) for m in bundle.mounts]
        python = f"{paths[1]}/bin/python3" if len(paths) > 1 else "python3"
        env = {**environment(launch), "TUGLINE_MAX_TOKENS": str(launch.max_tokens), "PYTHONDONTWRITEBYTECODE": "1"}
        command = Command(
            (python, f"{paths[0]}/bash_agent_program.py"),
            env=env,
            cwd=launch.workdir,
            stdin=launch.instruction.encode(),
            mounts=bundle.mounts if launch.isolated else (),
        )
        return Plan(command)

    def failure(self, exit: Exit, log: bytes) -> str | None:
        """The exit status decides."""
        return exit_failure("bash-agent", exit, log)
