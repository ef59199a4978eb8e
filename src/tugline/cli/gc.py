"""`tugline gc`: remove what dead processes left behind, and what nobody uses any more."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer

from tugline.cli import output
from tugline.config.load import load
from tugline.core.errors import ConfigError, RunError, TuglineError, boundary
from tugline.core.paths import expanded
from tugline.sandboxes import provider as sandbox_provider
from tugline.sandboxes.locks import Swept
from tugline.sandboxes.stores import sweep

HELP = """Remove sandboxes that a killed run left behind, or prepared snapshots and unpacked images that nobody uses.

Records and logs stay, and so does what a run uses at this moment.

[bold]Examples[/]

  tugline gc runs/first
  tugline gc --snapshots
  tugline gc --snapshots --older-than 7d --max-size 20GiB
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gc", help=HELP)(gc)


def gc(
    run: Annotated[Path | None, typer.Argument(help="Run directory.", metavar="[RUN]")] = None,
    snapshots: Annotated[bool, typer.Option("--snapshots", help="Snapshots and images in the cache.")] = False,
    older_than: Annotated[str | None, typer.Option(help="Unused for so long; default: sandbox.keep.")] = None,
    max_size: Annotated[str | None, typer.Option(help="Bytes to keep at most; default: sandbox.cache_size.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """See HELP."""
    try:
        if run is None and not snapshots:
            raise ConfigError("name a run directory, or --snapshots", where="gc")
        if (older_than or max_size) and not snapshots:
            raise ConfigError("--older-than and --max-size need --snapshots", where="gc")
        removed = asyncio.run(_reap(run.absolute())) if run is not None else None
        swept = _sweep(older_than, max_size) if snapshots else None
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    if as_json:
        parts = {"removed": removed, "snapshots": swept}
        output.emit({name: value for name, value in parts.items() if value is not None})
        return
    if removed is not None:
        typer.echo(f"removed {removed} left-over sandboxes")
    if swept is not None:
        typer.echo(f"removed {swept.removed} entries ({swept.freed} bytes); {swept.kept} ({swept.size} bytes) are left")


async def _reap(run: Path) -> int:
    if not (run / "run.db").is_file():
        raise RunError(f"{run} is not a run directory (no run.db in it)")
    removed = 0
    for name in ("bubblewrap", "local"):
        provider = sandbox_provider(name, run / "sandboxes", run.name)
        removed += await provider.reap()
        await provider.close()
    return removed


def _sweep(older_than: str | None, max_size: str | None) -> Swept:
    given = {"sandbox.keep": older_than, "sandbox.cache_size": max_size}
    settings = load(None, dict(os.environ), {k: v for k, v in given.items() if v is not None}).settings
    cache = expanded(settings.cache.dir, "cache.dir") / "sandboxes"
    with boundary(RunError, f"clean {cache}"):
        return sweep(cache, settings.sandbox.keep, settings.sandbox.cache_size)
