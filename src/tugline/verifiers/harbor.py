"""Harbor's verifier contract: tests/ is uploaded after the agent, test.sh runs, a reward file says the score.

The exit status is ignored; reward.json wins over reward.txt. No file, an empty one, anything but finite numbers and a
time-out are verifier errors, never a reward of 0.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Sandbox, Verdict
from tugline.core.errors import SandboxError, VerifierError
from tugline.core.task import Task
from tugline.verifiers.rewards import from_json, from_text

TESTS = "/tests"
LOGS = "/logs/verifier"
LOG_NAME = "test-stdout.txt"
MAX_REWARD_BYTES = 64 * 1024
MAX_KEPT_BYTES = 4 << 20
KEPT = ("ctrf.json", "reward-details.json")
"""Shown to people, never read by us."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SCRIPT = (
    'rm -rf -- "$LOGS_DIR" && mkdir -p -- "$LOGS_DIR" && chmod +x "$TESTS_DIR/test.sh" && exec "$TESTS_DIR/test.sh"'
)
"""Paths travel as variables: a sandbox that is a plain host directory maps those, and never what a script spells."""


class HarborVerifier:
    """Implements core Verifier."""

    name = "harbor"

    async def judge(self, task: Task, box: Sandbox, deadline: Deadline, out: Path) -> Verdict:
        """The verdict of tests/test.sh. Reward files and the log are left in `out`.

        Raises VerifierError when there is no valid verdict, SandboxError when the sandbox itself fails.
        """
        if task.verifier_dir is None:
            raise VerifierError("the task has no tests/")
        await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
        await box.upload(task.verifier_dir, TESTS)
        log = out / LOG_NAME
        home = {"HOME": "/root"} if box.isolated else {}
        own = {"TESTS_DIR": TESTS, "LOGS_DIR": LOGS, "APP_DIR": box.workdir}
        command = Command(
            argv=("/bin/sh", "-c", SCRIPT),
            env={"PATH": PATH, **home, **task.environment.env, **task.verifier_env, **own},
            cwd=box.workdir,
            stdout=log,
            stderr=log,
            root=True,
        )
        ended = await box.run(command, deadline)
        if ended.timed_out:
            raise VerifierError(f"the verifier ran into its time limit; see verifier/{LOG_NAME}")
        if ended.oom:
            raise VerifierError(f"the verifier ran out of memory; see verifier/{LOG_NAME}")
        for name in KEPT:
            await _keep(box, name, out)
        for name, parse in (("reward.json", from_json), ("reward.txt", from_text)):
            data = await _read(box, name)
            if data is not None:
                await asyncio.to_thread((out / name).write_bytes, data)
                return parse(data, name)
        raise VerifierError(f"no reward file (exit status {ended.code}); see verifier/{LOG_NAME}")


async def _read(box: Sandbox, name: str) -> bytes | None:
    """A reward file as an attacker may have left it: a directory, a pipe or a huge file is an error."""
    try:
        return await box.read(f"{LOGS}/{name}", MAX_REWARD_BYTES)
    except SandboxError as err:
        raise VerifierError(f"{name} cannot be read: {err.message}") from err


async def _keep(box: Sandbox, name: str, out: Path) -> None:
    with contextlib.suppress(SandboxError):  # what only people read must not cost a verdict
        data = await box.read(f"{LOGS}/{name}", MAX_KEPT_BYTES)
        if data is not None:
            await asyncio.to_thread((out / name).write_bytes, data)
