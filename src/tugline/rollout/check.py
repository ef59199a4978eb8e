"""Does a task tell right work from none? Its solution must score 1 and doing nothing 0, every time it is asked.

No model and no gateway take part: sandboxes and the task's verifier are those of a rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits, Sandbox, SandboxProvider
from tugline.core.errors import SandboxError, TaskError, TuglineError, VerifierError, describe
from tugline.core.task import Task
from tugline.rollout.judging import CLOSE_SECONDS, Judged, Judging
from tugline.rollout.spec import StageLimits
from tugline.rollout.stages import become_healthy
from tugline.rollout.steps import enough, set_up, step_task, together
from tugline.verifiers import unified
from tugline.verifiers.pytest_runner import OUTCOMES_NAME

SOLUTION = "/solution"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SOLVE = 'cd "$APP_DIR" && chmod +x "$SOLUTION_DIR/solve.sh" && exec "$SOLUTION_DIR/solve.sh"'
Work = Literal["nothing", "oracle"]


@dataclass(frozen=True, slots=True)
class Trial:
    """One judgement. `error`: why there was no verdict. `tests`: outcome by test id, where the verifier knows."""

    work: Work
    reward: float | None
    error: str | None = None
    marks: tuple[str, ...] = ()
    tests: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TaskCheck:
    """All trials of a task."""

    task_id: str
    trials: list[Trial] = field(default_factory=list)
    solvable: bool = True
    """Whether the task brings a solution."""

    def rewards(self, work: Work) -> list[float | None]:
        """In the order of the trials."""
        return [t.reward for t in self.trials if t.work == work]

    @property
    def flaky(self) -> list[str]:
        """Ids of tests that did not always say the same about the same work."""
        found = set()
        for work in ("nothing", "oracle"):
            seen: dict[str, set[str]] = {}
            trials = [t for t in self.trials if t.work == work and t.tests]
            for trial in trials:
                for test, outcome in trial.tests.items():
                    seen.setdefault(test, set()).add(outcome)
            found |= {test for test, outcomes in seen.items() if len(outcomes) > 1}
        return sorted(found)

    @property
    def problems(self) -> list[str]:
        """Why the task must not be trained on, in words; empty = fine."""
        said = []
        for work, wanted in (("oracle", 1.0), ("nothing", 0.0)):
            rewards = self.rewards(work)  # type: ignore[arg-type]
            errors = [t.error for t in self.trials if t.work == work and t.error]
            if errors:
                said.append(f"{work}: no verdict in {len(errors)} of {len(rewards)} trials: {errors[0]}")
            wrong = [r for r in rewards if r is not None and r != wanted]
            if wrong:
                said.append(f"{work}: reward {_values(rewards)}, not {wanted:g}")
        if any(m.startswith("!") for t in self.trials if t.work == "oracle" for m in t.marks):
            flags = sorted({m for t in self.trials if t.work == "oracle" for m in t.marks if m.startswith("!")})
            said.append(f"oracle: the verifier takes the solution for a cheat: {', '.join(flags)}")
        if self.flaky:
            said.append(f"flaky: {', '.join(self.flaky[:10])}{' ...' if len(self.flaky) > 10 else ''}")
        return said

    def as_json(self) -> dict[str, object]:
        """Part of `tugline tasks check --json`."""
        return {
            "task": self.task_id, "ok": not self.problems, "oracle": self.rewards("oracle"),
            "nothing": self.rewards("nothing"), "solvable": self.solvable, "flaky": self.flaky,
            "problems": self.problems,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checker:
    """What checks need. `folder` holds the verifiers' files of every trial."""

    sandboxes: SandboxProvider
    judging: Judging
    limits: Limits
    stages: StageLimits
    folder: Path

    async def check(
        self, tasks: Sequence[Task], repeats: int, jobs: int, seen: Callable[[TaskCheck, Trial], None]
    ) -> list[TaskCheck]:
        """`repeats` trials of each kind and task, `jobs` at once; `seen` hears of each as it ends."""
        slots = asyncio.Semaphore(jobs)
        checks = [TaskCheck(task.task_id, solvable=solvable(task)) for task in tasks]

        async def one(task: Task, found: TaskCheck, work: Work, number: int) -> None:
            async with slots:
                trial = await self._trial(task, work, self.folder / task.task_id / f"{work}-{number}")
            found.trials.append(trial)
            seen(found, trial)

        async with asyncio.TaskGroup() as group:
            for number in range(repeats):
                for task, found in zip(tasks, checks, strict=True):
                    group.create_task(one(task, found, "nothing", number))
                    if found.solvable:
                        group.create_task(one(task, found, "oracle", number))
        return checks

    async def _trial(self, task: Task, work: Work, folder: Path) -> Trial:
        await asyncio.to_thread(folder.mkdir, parents=True)
        try:
            async with asyncio.timeout(task.budgets.boot or self.stages.boot):
                box = await self.sandboxes.start(task.environment, f"check_{task.task_id}", self.limits)
            try:
                await become_healthy(task, box)
                judged = await self._judged(task, box, work, folder)
            finally:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await asyncio.shield(box.close())
        except TimeoutError:
            return Trial(work, None, "a sandbox was not ready, or not removed, in time")
        except TuglineError as err:
            return Trial(work, None, describe(err))
        tests = await asyncio.to_thread(_outcomes, folder / "verifier")
        return Trial(work, judged.verdict.reward, None, judged.marks, tests)

    async def _judged(self, task: Task, box: Sandbox, work: Work, folder: Path) -> Judged:
        """One judgement, or one for each step."""
        seen: list[Judged] = []
        for number, step in enumerate(task.steps):
            if step.setup is not None and not await set_up(box, step.setup):
                if not seen:
                    raise SandboxError(f"setup.sh of the first step, {step.name}, failed")
                break
            seen.append(await self._judged(step_task(task, number), box, work, folder / step.name))
            if not enough(seen[-1].verdict, step):
                break
        whole = together(task, seen)
        if whole is not None:
            return whole
        if work == "oracle":
            await solve(task, box, task.budgets.agent or self.stages.agent, folder)
        return await self.judging.judge(task, box, task.budgets.judge or self.stages.judge, folder)


def solvable(task: Task) -> bool:
    """Whether a task brings its solution, for every step."""
    if task.steps:
        return all(s.solution_dir is not None and (s.solution_dir / "solve.sh").is_file() for s in task.steps)
    return bool(task.solution_patch) or (task.solution_dir is not None and (task.solution_dir / "solve.sh").is_file())


async def solve(task: Task, box: Sandbox, seconds: float, folder: Path) -> None:
    """Put a task's solution into a box. Raises SandboxError, TaskError when it does not fit, VerifierError when its
    script fails."""
    if task.solution_patch:
        await _patch(task, box)
        return
    if task.solution_dir is None:
        raise TaskError("has no solution", where=task.name)
    await box.upload(task.solution_dir, SOLUTION)
    home = {"HOME": "/root"} if box.isolated else {}
    own = {"SOLUTION_DIR": SOLUTION, "APP_DIR": box.workdir}
    await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    log = folder / "oracle.log"
    command = Command(
        ("/bin/sh", "-c", SOLVE), {"PATH": PATH, **home, **task.environment.env, **task.solution_env, **own},
        box.workdir, stdout=log, stderr=log, root=True,
    )  # fmt: skip
    ended = await box.run(command, Deadline.after(seconds))
    if ended.timed_out:
        raise VerifierError("the solution ran into the agent's time limit")


async def _patch(task: Task, box: Sandbox) -> None:
    try:
        before = {}
        for path in unified.touched(task.solution_patch):
            data = await box.read(f"{box.workdir}/{path}", 8 << 20)
            if data is not None:
                before[path] = data
        after = unified.apply(task.solution_patch, before)
    except unified.PatchError as err:
        raise TaskError(f"the solution does not fit: {err}", where=task.name) from err
    for path, content in after.items():
        if content is not None:
            await box.write(f"{box.workdir}/{path}", content)
            continue
        argv = ("rm", "-f", "--", path)
        gone = await box.run(Command(argv, {"PATH": PATH}, box.workdir, root=True), Deadline.after(60))
        if gone.code != 0:
            raise SandboxError(f"{path} could not be removed")


def _outcomes(folder: Path) -> dict[str, str]:
    """Outcome by test: of our own runner, or of a ctrf.json that a Harbor test script left."""
    file, ctrf = folder / OUTCOMES_NAME, folder / "ctrf.json"
    try:
        if file.is_file():
            return msgspec.json.decode(file.read_bytes(), type=dict[str, str])
        if ctrf.is_file():
            tests = msgspec.json.decode(ctrf.read_bytes())["results"]["tests"]
            return {str(t["name"]): str(t["status"]) for t in tests}
    except (msgspec.DecodeError, KeyError, TypeError):
        return {}
    return {}


def _values(rewards: Sequence[float | None]) -> str:
    return ", ".join("none" if r is None else f"{r:g}" for r in rewards)
