"""Tasks in steps: one sandbox, one session, one judgement for each step. Pure but for `set_up`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Sandbox, Verdict
from tugline.core.task import Budgets, Step, Task
from tugline.rollout.judging import Judged

SETUP_SECONDS = 600.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def step_task(task: Task, number: int) -> Task:
    """A step as a task of its own in the same environment."""
    step = task.steps[number]
    return replace(
        task,
        instruction=step.instruction,
        verifier_dir=step.verifier_dir,
        verifier_env={**task.verifier_env, **step.verifier_env},
        solution_dir=step.solution_dir,
        budgets=Budgets(
            task.budgets.boot, step.agent_seconds or task.budgets.agent, step.judge_seconds or task.budgets.judge
        ),
        steps=(),
    )


async def set_up(box: Sandbox, folder: Path) -> bool:
    """Copy a step's files into the work directory and run its setup.sh, if any: whether that ended well. What an
    earlier step's agent left may be why it does not. Raises SandboxError when the sandbox fails."""
    await box.upload(folder, box.workdir)
    if (folder / "setup.sh").is_file():
        command = Command(("/bin/sh", "-c", "sh ./setup.sh && rm -f setup.sh"), {"PATH": PATH}, box.workdir, root=True)
        ended = await box.run(command, Deadline.after(SETUP_SECONDS))
        return ended.code == 0 and not ended.timed_out
    return True


def enough(verdict: Verdict, step: Step) -> bool:
    """Whether a step's verdict lets the next one begin. A part that is not there is not enough."""
    parts = {**verdict.parts, "reward": verdict.reward}
    return all(parts.get(name, float("-inf")) >= least for name, least in step.min_reward.items())


def together(task: Task, seen: Sequence[Judged]) -> Judged | None:
    """One verdict of all steps: the mean over the task's steps, those never begun counting 0, or the last one's.
    Parts are the steps' rewards by name. None when no step was judged."""
    if not seen:
        return None
    rewards = [j.verdict.reward for j in seen]
    done = len(seen) == len(task.steps)
    total = sum(rewards)
    mean = total / len(task.steps) if isfinite(total) else sum(r / len(task.steps) for r in rewards)
    reward = mean if task.step_reward == "mean" else rewards[-1] if done else 0.0
    parts = {"reward": reward, **{step.name: r for step, r in zip(task.steps, rewards, strict=False)}}
    marks = {mark for judged in seen for mark in judged.marks}
    return Judged(Verdict(reward, parts), tuple(sorted(marks)))
