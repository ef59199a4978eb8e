"""`tugline config show|check`: which settings hold, and where each comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tugline.cli import output
from tugline.cli.checks import check_start
from tugline.cli.flags import RunFlags, load_settings
from tugline.core.errors import TuglineError

app = typer.Typer(no_args_is_help=True, help="Show or check settings: file, then TUGLINE_* variables, then flags.")


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="config")


@app.command("show")
def show(
    file: Annotated[
        Path | None, typer.Argument(help="TOML file; none = defaults and environment.", metavar="FILE")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="key=value")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Print each setting with its value and source.

    Example: tugline config show run.toml --set engine.slots=8
    """
    try:
        loaded = load_settings(file, RunFlags(extra=tuple(set_ or ())))
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    values = loaded.flat()
    if as_json:
        output.emit({k: {"value": v, "source": loaded.sources.get(k, "default")} for k, v in values.items()})
        return
    width = max(map(len, values))
    for key, value in values.items():
        shown = ", ".join(value) if isinstance(value, tuple) else str(value)
        typer.echo(f"{key.ljust(width)}  {shown:<24}  {loaded.sources.get(key, 'default')}")


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="TOML file.", metavar="FILE")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Exit 0 if a start would take the file, 2 with file, key and line if not. Starts nothing.

    Example: tugline config check run.toml
    """
    try:
        check_start(load_settings(file, RunFlags()))
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    if as_json:
        output.emit({"ok": True, "file": str(file)})
    else:
        typer.echo(f"{file}: ok")
