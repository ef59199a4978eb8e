"""Shipped tasks in a real sandbox under Harbor's verifier: nothing done = 0, the solution = 1."""

from __future__ import annotations

import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.ident import new_id
from tugline.sandboxes import provider as find
from tugline.tasks import load_tasks
from tugline.verifiers import verifier_for

PATH = {"PATH": "/usr/bin:/bin"}


@pytest.fixture(params=["bubblewrap", "local"])
async def provider(request, tmp_path):
    provider = find(request.param, tmp_path / "state", "test")
    if missing := await provider.check():
        pytest.skip(missing[0])
    yield provider
    await provider.close()


@pytest.mark.parametrize("task", load_tasks(["quickstart"], env={}), ids=lambda t: t.task_id)
async def test_nothing_done_is_zero_and_the_solution_is_one(provider, task, tmp_path):
    box = await provider.start(task.environment, new_id("s"), Limits(disk=64 << 20))
    try:
        rewards = []
        for step in ("nothing", "solution"):
            if step == "solution":
                await box.write(f"{box.workdir}/.solve", (task.solution_dir / "solve.sh").read_bytes(), 0o755)
                script = 'APP_DIR="$PWD" ./.solve; status=$?; rm .solve; exit $status'
                ended = await box.run(Command(("/bin/sh", "-c", script), PATH), Deadline.after(30))
                assert ended.code == 0
            judging = await box.clone()
            try:
                verdict = await verifier_for(task).judge(task, judging, Deadline.after(30), tmp_path / step)
            finally:
                await judging.close()
            rewards.append(verdict.reward)
    finally:
        await box.close()
    assert rewards == [0.0, 1.0]
