"""A command whose exit status is the verdict: 0 = reward 1, 1 = reward 0, anything else = no verdict."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Sandbox, Verdict
from tugline.core.errors import VerifierError
from tugline.core.task import Task
from tugline.verifiers.harbor import LOG_NAME, PATH


class CommandVerifier:
    """Implements core Verifier. The command runs in the work directory."""

    name = "command"

    def __init__(self, argv: tuple[str, ...]) -> None:
        self._argv = argv

    async def judge(self, task: Task, box: Sandbox, deadline: Deadline, out: Path) -> Verdict:
        """Raises VerifierError for a time-out or an exit status other than 0 and 1."""
        log = out / LOG_NAME
        await asyncio.to_thread(log.parent.mkdir, parents=True, exist_ok=True)
        env = {"PATH": PATH, **task.environment.env, **task.verifier_env}
        ended = await box.run(Command(self._argv, env, box.workdir, stdout=log, stderr=log, root=True), deadline)
        if ended.timed_out:
            raise VerifierError(f"the verifier ran into its time limit; see verifier/{LOG_NAME}")
        if ended.code not in (0, 1):
            raise VerifierError(f"the verifier ended with status {ended.code}; see verifier/{LOG_NAME}")
        reward = 1.0 - ended.code
        return Verdict(reward, {"reward": reward})
