"""`tugline quickstart`: the main job on this machine, in minutes, with nothing but package registries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tugline.cli import output
from tugline.cli.flags import RunFlags, load_settings
from tugline.cli.runner import RunRequest, run_and_report
from tugline.core.errors import TuglineError

HELP = """Run Pi, a real coding agent, on the shipped pilot policy: sandboxed, scored, captured, proven token by token.

[bold]Examples[/]

  tugline quickstart
  tugline quickstart --out runs/hello -n 4
  tugline quickstart --json
"""

DEFAULT_N = 4


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quickstart", help=HELP)(quickstart)


def quickstart(
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/<time>-quickstart.")] = None,
    n: Annotated[int | None, typer.Option("-n", help=f"Sessions per task (default {DEFAULT_N}).")] = None,
    harness: Annotated[str | None, typer.Option(help="Default: pi.")] = None,
    sandbox: Annotated[str | None, typer.Option(help="auto, bubblewrap, container, apptainer or local.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling seed.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, no progress.")] = False,
) -> None:
    """See HELP."""
    try:
        flags = RunFlags(harness=harness or "pi", n=n or DEFAULT_N, sandbox=sandbox, out=out, seed=seed)
        loaded = load_settings(None, flags, name="quickstart")
        code = run_and_report(RunRequest(("quickstart",), loaded, next_steps=True), as_json=as_json)
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    raise typer.Exit(code)
