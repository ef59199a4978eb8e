"""A command whose exit status is the verdict: 0 = reward 1, 1 = reward 0, anything else = no verdict."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Sandbox, Verdict
from tugline.core.errors import VerifierError
from tugline.core.task import Task


class CommandVerifier:
    """Implements core Verifier."""

    name = "command"

    def __init__(self, argv: tuple[str, ...]) -> None:
        self._argv = argv

    async def judge(self, task: Task, box: Sandbox, deadline: Deadline, out: Path) -> Verdict:
        """Raises VerifierError for a time-out or an exit status above 1."""
        log = out / "test-stdout.txt"
        await asyncio.to_thread(log.parent.mkdir, parents=True, exist_ok=True)
        command = Command(self._argv, dict(task.verifier_env), box.workdir, stdout=log, stderr=log, root=True)
        ended = await box.run(command, deadline)
        if ended.timed_out or ended.code not in (0, 1):
            raise VerifierError(f"the verifier ended with status {ended.code}")
        reward = 1.0 - ended.code
        return Verdict(reward, {"reward": reward})
