"""Harbor's verifier contract: tests/ is uploaded after the agent, test.sh runs, a reward file says the score.

The exit status is ignored; reward.json wins over reward.txt; no file, an empty one or a non-finite number is a
verifier error, never a reward of 0.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Sandbox, Verdict
from tugline.core.errors import VerifierError
from tugline.core.task import Task
from tugline.verifiers.rewards import from_json, from_text

LOGS = "/logs/verifier"
MAX_REWARD_BYTES = 64 * 1024
KEPT = ("ctrf.json", "reward-details.json")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HarborVerifier:
    """Implements core Verifier."""

    name = "harbor"

    async def judge(self, task: Task, box: Sandbox, deadline: Deadline, out: Path) -> Verdict:
        """Raises VerifierError when there is no valid verdict."""
        if task.verifier_dir is None:
            raise VerifierError("the task has no tests/")
        await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
        await box.upload(task.verifier_dir, "/tests")
        script = f"rm -rf {LOGS}; mkdir -p {LOGS} && chmod +x /tests/test.sh && exec /tests/test.sh"
        log = out / "test-stdout.txt"
        command = Command(
            argv=("/bin/sh", "-c", script),
            env={"PATH": PATH, "HOME": "/root", **task.environment.env, **task.verifier_env},
            cwd=box.workdir,
            stdout=log,
            stderr=log,
            root=True,
        )
        ended = await box.run(command, deadline)
        if ended.timed_out:
            raise VerifierError("the verifier ran into its time limit")
        verdict = await self._reward(box, out)
        if verdict is None:
            raise VerifierError(f"no reward file (exit status {ended.code}); see verifier/test-stdout.txt")
        return verdict

    async def _reward(self, box: Sandbox, out: Path) -> Verdict | None:
        for name, parse in (("reward.json", from_json), ("reward.txt", from_text)):
            data = await box.read(f"{LOGS}/{name}", MAX_REWARD_BYTES)
            if data is not None:
                await asyncio.to_thread((out / name).write_bytes, data)
                for extra in KEPT:
                    kept = await box.read(f"{LOGS}/{extra}", 1 << 20)
                    if kept is not None:
                        await asyncio.to_thread((out / extra).write_bytes, kept)
                return parse(data, name)
        return None
