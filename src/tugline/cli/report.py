"""`tugline report RUN`: what a run came to."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from tugline.cli import output
from tugline.cli.show import show_details, show_spent, show_summary
from tugline.core.errors import TuglineError
from tugline.engines.spending import spent_in
from tugline.rollout.drift_report import drift_report
from tugline.rollout.summary import summarise
from tugline.store import RunStore

HELP = """Rewards, outcomes, rows per session, stage times and drift of a run. Works while the run goes on.

[bold]Examples[/]

  tugline report runs/first
  tugline report runs/first --drift
  tugline report runs/first --json
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report", help=HELP)(report)


def report(
    run: Annotated[Path, typer.Argument(help="Run directory.", metavar="RUN")],
    drift: Annotated[
        bool, typer.Option("--drift", help="How calls ended, every deviation with its first example.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """See HELP."""
    try:
        with RunStore.open(run, write=False) as store:
            summary = summarise(store)
            details = drift_report(store) if drift else None
        spent = spent_in(run)
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    if as_json:
        bill = {"spent": {name: asdict(each) for name, each in spent.items()}} if spent else {}
        output.emit(summary.as_json() | bill | ({"details": details.as_json()} if details else {}))
    elif details is not None:
        show_details(output.console(), details)
    else:
        show_summary(output.console(), summary)
        show_spent(output.console(), spent)
    silent = summary.rewards and not summary.tokens["trained"] and not summary.text_only
    if silent:
        output.console().print(f"0 of {summary.total} sessions are trainable although rewards exist", style="bold red")
    raise typer.Exit(output.FAILED if silent else output.OK)
