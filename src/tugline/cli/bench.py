"""`tugline bench NAME`: paired measurements."""

from __future__ import annotations

from typing import Annotated

import typer

from tugline.cli import exactness, output
from tugline.core.errors import TuglineError

app = typer.Typer(no_args_is_help=True, help="Paired measurements of this machine and this version.")


def register(root: typer.Typer) -> None:
    """Add the commands."""
    exactness.register(app)
    root.add_typer(app, name="bench")


@app.command("gateway")
def gateway(
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """CPU per call of the gateway beside a byte relay, in interleaved rounds of the same run.

    Example: tugline bench gateway --quick
    """
    from tugline.testing.bench_gateway import run_bench

    try:
        result = run_bench(quick=quick, say=(lambda _line: None) if as_json else output.console().print)
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    if as_json:
        output.emit(result.as_json())
    else:
        typer.echo(result.text())
    raise typer.Exit(output.OK if result.ok else output.FAILED)
