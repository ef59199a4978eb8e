"""`tugline gc RUN`: remove what dead processes left behind."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from tugline.cli import output
from tugline.core.errors import RunError, TuglineError
from tugline.sandboxes import provider as sandbox_provider

HELP = """Remove sandboxes that a killed run left behind. Records and logs stay.

[bold]Example[/]

  tugline gc runs/first
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gc", help=HELP)(gc)


def gc(
    run: Annotated[Path, typer.Argument(help="Run directory.", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """See HELP."""
    try:
        removed = asyncio.run(_reap(run.absolute()))
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    if as_json:
        output.emit({"removed": removed})
    else:
        typer.echo(f"removed {removed} left-over sandboxes")


async def _reap(run: Path) -> int:
    if not (run / "run.db").is_file():
        raise RunError(f"{run} is not a run directory (no run.db in it)")
    removed = 0
    for name in ("bubblewrap", "local"):
        provider = sandbox_provider(name, run / "sandboxes", run.name)
        removed += await provider.reap()
        await provider.close()
    return removed
