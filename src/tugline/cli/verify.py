"""`tugline verify RUN`: re-prove a run offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tugline.cli import output
from tugline.cli.show import show_proof
from tugline.core.errors import TuglineError
from tugline.engines.journal import JournalIndex
from tugline.rollout.proof import prove_run
from tugline.store import RunStore

HELP = """Prove every call of a run against the engine's own journal, and every training row against its calls.

[bold]Examples[/]

  tugline verify runs/first
  tugline verify runs/first --json | jq .calls

Exit status 0: everything holds. 1: something contradicts; the call and token position are named.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", help=HELP)(verify)


def verify(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """See HELP."""
    try:
        with RunStore.open(run, write=False) as store:
            proof = prove_run(store, JournalIndex(run / "engine", strict=False).get)
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    if as_json:
        output.emit(proof.as_json())
    else:
        show_proof(output.console(), proof)
    raise typer.Exit(output.OK if proof.ok else output.FAILED)
