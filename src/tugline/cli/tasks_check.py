"""`tugline tasks check`: read tasks, then try each with its solution and with nothing done."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tugline.cli import output
from tugline.cli.boxes import choose_sandbox, sandbox_limits
from tugline.cli.flags import RunFlags, load_settings
from tugline.cli.runner import orderly_end
from tugline.core.task import Copy, Task
from tugline.rollout.check import Checker, TaskCheck, Trial
from tugline.rollout.judging import Judging
from tugline.rollout.spec import StageLimits
from tugline.verifiers import verifier_for

_RUNS_PYTEST = re.compile(r"\b(?:pytest|py\.test|unittest)\b")


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """What to check, how often, where."""

    tasks: tuple[Task, ...]
    repeats: int
    jobs: int
    sandbox: str | None
    keep: Path | None
    quiet: bool


def run_checks(request: CheckRequest) -> list[TaskCheck]:
    """Raises ConfigError when the sandbox does not work here."""
    with contextlib.ExitStack() as stack:
        if request.keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tugline-check-")))
        else:
            folder = request.keep.absolute()
            folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(orderly_end())
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        return runner.run(_run(request, folder))


async def _run(request: CheckRequest, folder: Path) -> list[TaskCheck]:
    settings = load_settings(None, RunFlags(sandbox=request.sandbox)).settings
    console = output.console()
    provider = await choose_sandbox(settings, folder, request.tasks)
    try:
        limits = sandbox_limits(settings)
        judging = Judging(provider, verifier_for, limits, lambda line: console.print(line, markup=False))
        stages = StageLimits(settings.limits.boot_timeout, settings.limits.agent_timeout, settings.limits.judge_timeout)
        checker = Checker(provider, judging, limits, stages, folder / "trials")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, disable=request.quiet, transient=True) as bar:
            total = len(request.tasks) * request.repeats * 2
            progress = bar.add_task("trials", total=total)

            def seen(found: TaskCheck, trial: Trial) -> None:
                bar.update(progress, advance=1, description=f"{found.task_id} {trial.work}")

            return await checker.check(request.tasks, request.repeats, request.jobs, seen)
    finally:
        await provider.close()


def warnings(task: Task) -> list[str]:
    """What makes a task easier to cheat at than it need be."""
    said = []
    script = task.verifier_dir / "test.sh" if task.verifier_dir else None
    beside = task.verifier == "harbor" and task.carry is None and script is not None and script.is_file()
    if beside and script is not None and _RUNS_PYTEST.search(script.read_text(errors="replace")):
        said.append(
            "test.sh runs Python tests where the agent has written: a conftest.py of its own decides there; "
            'use [metadata.tugline] verifier = "pytest", or environment_mode = "separate" with artifacts'
        )
    copied = [step.source for step in task.environment.steps if isinstance(step, Copy)]
    if task.verifier != "swe" and any((source / ".git").exists() for source in copied):
        said.append("brings a .git: history, refs and objects that nothing points to may hold the solution")
    if task.environment.network != "no-network":
        said.append("asks for a network; sandboxes here give none")
    return said


def show(checks: Sequence[TaskCheck], tasks: Sequence[Task]) -> None:
    """For people."""
    console = output.console()
    grid = Table("task", "oracle", "nothing", "", box=None, pad_edge=False)
    for check in checks:
        state = "ok" if not check.problems else "; ".join(check.problems)
        if not check.solvable:
            state = f"no solution; {state}"
        grid.add_row(check.task_id, _said(check.rewards("oracle")), _said(check.rewards("nothing")), state)
    console.print(grid)
    for task in tasks:
        for line in warnings(task):
            console.print(f"  {task.task_id}: {line}", markup=False, style="yellow")
    bad = sum(bool(c.problems) for c in checks)
    console.print(f"{len(checks)} tasks: {'ok' if not bad else f'{bad} with problems'}")


def _said(rewards: list[float | None]) -> str:
    return " ".join("-" if r is None else f"{r:g}" for r in rewards) or "-"
