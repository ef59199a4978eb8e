"""`tugline tasks list|show|check`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tugline.cli import output
from tugline.cli.tasks_check import CheckRequest, run_checks, show, warnings
from tugline.core.errors import TuglineError
from tugline.core.task import Task
from tugline.tasks import load_tasks, shipped_names

app = typer.Typer(no_args_is_help=True, help="Tasks: Harbor task directories, or names that ship with Tugline.")


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="tasks")


@app.command("list")
def list_(as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False) -> None:
    """The shipped tasks.

    Example: tugline tasks list
    """
    names = shipped_names()
    if as_json:
        output.emit({"tasks": names})
    else:
        typer.echo("\n".join(names))


@app.command("show")
def show_task(
    task: Annotated[str, typer.Argument(help="Task directory or shipped name.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """What a task asks and how it is set up.

    Example: tugline tasks show copy-file-0
    """
    loaded = _load([task], as_json=as_json)
    if as_json:
        output.emit([_facts(t) for t in loaded])
        return
    for found in loaded:
        typer.echo(output.table(_facts(found)))


@app.command("check")
def check(
    tasks: Annotated[list[str], typer.Argument(help="Task directories, rows or shipped names.")],
    n: Annotated[int, typer.Option("-n", "--repeat", min=1, help="Trials of each kind per task.")] = 3,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Trials at once.")] = 2,
    sandbox: Annotated[str | None, typer.Option(help="auto, bubblewrap, container, apptainer or local.")] = None,
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep the trials' logs in this directory.")] = None,
    static: Annotated[bool, typer.Option("--static", help="Only read the tasks.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, no progress.")] = False,
) -> None:
    """Read tasks and name every file and field that is wrong (exit 2); then try each with its own solution, which must
    score 1, and with nothing done, which must score 0, every time (exit 1 if not).

    Example: tugline tasks check ./my-tasks -n 5
    """
    loaded = _load(tasks, as_json=as_json)
    if static:
        if as_json:
            output.emit({"ok": True, "tasks": [t.task_id for t in loaded]})
        else:
            typer.echo(f"{len(loaded)} tasks: ok")
        return
    try:
        checks = run_checks(CheckRequest(tuple(loaded), n, jobs, sandbox, keep, quiet=as_json))
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    ok = not any(c.problems for c in checks)
    if as_json:
        said = {t.task_id: warnings(t) for t in loaded}
        output.emit({"ok": ok, "tasks": [c.as_json() | {"warnings": said[c.task_id]} for c in checks]})
    else:
        show(checks, loaded)
    raise typer.Exit(output.OK if ok else output.FAILED)


def _load(specs: list[str], *, as_json: bool) -> list[Task]:
    try:
        return list(load_tasks(specs, env=dict(os.environ)))
    except TuglineError as err:
        output.fail(err, as_json=as_json)


def _facts(task: Task) -> dict[str, object]:
    return {
        "task": task.task_id,
        "name": task.name,
        "instruction": task.instruction,
        "image": task.environment.image,
        "workdir": task.environment.workdir,
        "steps": len(task.environment.steps),
        "agent limit": task.budgets.agent,
        "digest": task.digest,
        "path": str(task.path),
    }
