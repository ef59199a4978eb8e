"""`tugline rejudge RUN`: score stored sessions again."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from tugline.cli import output
from tugline.cli.boxes import choose_sandbox, sandbox_limits
from tugline.cli.runner import TASKS_META, orderly_end
from tugline.config.load import load
from tugline.core.errors import RunError, TuglineError
from tugline.core.task import Task
from tugline.rollout.judging import Judging
from tugline.rollout.rejudge import Again, Rejudge, make_stand
from tugline.store import RunStore
from tugline.tasks import load_tasks, with_verifier
from tugline.verifiers import verifier, verifier_for

HELP = """Score the sessions of a run again, from what their agents left, in fresh sandboxes. No model runs.

[bold]Examples[/]

  tugline rejudge runs/first
  tugline rejudge runs/first --verifier function:my_judges:style --json
  tugline rejudge runs/first --task ./my-task --apply

Without --apply the run keeps its rewards; with it the new ones replace them, in the rows too.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rejudge", help=HELP)(rejudge)


def rejudge(
    run: Annotated[Path, typer.Argument(help="Run directory.", metavar="RUN")],
    verifier_name: Annotated[
        str | None, typer.Option("--verifier", help="Another verifier than the tasks name, e.g. function:MODULE:NAME.")
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option("--task", help="Tasks to judge by; default: where the run found them.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Judgements at once.")] = 2,
    apply: Annotated[bool, typer.Option("--apply", help="Let the new rewards stand.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, no progress.")] = False,
) -> None:
    """See HELP."""
    try:
        if verifier_name is not None:
            verifier(verifier_name)
        with orderly_end(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            agains, changed = runner.run(
                _rejudge(run.absolute(), verifier_name, task or [], jobs, apply=apply, quiet=as_json)
            )
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    judged = [a for a in agains if a.judged is not None]
    if as_json:
        rewards = [a.after for a in judged if a.after is not None]
        output.emit({
            "ok": bool(judged), "run": str(run), "verifier": verifier_name, "judged": len(judged), "applied": changed,
            "reward": {"mean": sum(rewards) / len(rewards) if rewards else None, "n": len(rewards)},
            "sessions": [a.as_json() for a in agains],
        })  # fmt: skip
    else:
        _show(agains, changed, apply=apply)
    raise typer.Exit(output.OK if judged else output.FAILED)


async def _rejudge(
    run: Path, name: str | None, given: Sequence[str], jobs: int, *, apply: bool, quiet: bool
) -> tuple[list[Again], int]:
    settings = load(run / "run.toml", {}, {}).settings if (run / "run.toml").is_file() else None
    if settings is None:
        raise RunError(f"{run} is not a run directory")
    console = output.console()
    async with RunStore.open(run, write=apply) as store:
        tasks = _tasks(store, given)
        if name is not None:
            tasks = {task_id: with_verifier(task, name) for task_id, task in tasks.items()}
        with tempfile.TemporaryDirectory(prefix="tugline-rejudge-") as scratch:
            provider = await choose_sandbox(settings, Path(scratch), tuple(tasks.values()))
            try:
                say = console.print if not quiet else (lambda *_: None)
                judges = Judging(provider, verifier_for, sandbox_limits(settings), say)
                folder = (
                    f"rejudged-{time.strftime('%Y%m%d-%H%M%S')}-{re.sub(r'[^A-Za-z0-9]+', '-', name or 'task')[:60]}"
                )
                work = Rejudge(judges, tasks, run / "sessions", settings.limits.judge_timeout, folder, jobs)
                columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
                with Progress(*columns, console=console, disable=quiet, transient=True) as bar:
                    at = bar.add_task("judging", total=len(store.sessions()))
                    agains = await work.run(store, lambda again: bar.update(at, advance=1))
            finally:
                await provider.close()
        changed = await make_stand(store, agains) if apply else 0
    return agains, changed


def _tasks(store: RunStore, given: Sequence[str]) -> dict[str, Task]:
    """The run's tasks by id. Raises RunError when nothing says where they are."""
    if given:
        return {t.task_id: t for t in load_tasks(list(given), env=dict(os.environ))}
    kept = store.meta(TASKS_META)
    if not kept:
        raise RunError("this run does not say where its tasks are; name them with --task")
    entries = msgspec.convert(kept, list[dict[str, str]])
    places = list(dict.fromkeys(e["path"] for e in entries if Path(e["path"]).exists()))
    found = {(str(t.path), t.name): t for t in (load_tasks(places, env=dict(os.environ)) if places else [])}
    return {e["task"]: found[key] for e in entries if (key := (e["path"], e["name"])) in found}


def _show(agains: Sequence[Again], changed: int, *, apply: bool) -> None:
    console = output.console()
    table = Table("session", "task", "before", "after", "", box=None, pad_edge=False)
    for again in agains:
        note = again.skipped or ("  ".join(again.marks))
        table.add_row(
            again.session_id, escape(again.task_id), _number(again.before), _number(again.after), escape(note)
        )
    console.print(table)
    judged = [a for a in agains if a.judged is not None]
    other = sum(a.before != a.after for a in judged)
    stands = f"{changed} sessions changed" if apply else "the run keeps its rewards (--apply replaces them)"
    console.print(f"{len(judged)} of {len(agains)} judged again, {other} otherwise than before; {stands}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
