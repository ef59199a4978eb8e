"""`tugline verify RUN`: re-prove a run offline."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from tugline.cli import output
from tugline.cli.runner import Rescored
from tugline.cli.runner import rescore as rescore_calls
from tugline.cli.show import show_proof
from tugline.cli.wiring import engine_for, journal_of
from tugline.config.load import load
from tugline.core.errors import TuglineError
from tugline.rollout.proof import prove_run
from tugline.store import RunStore

HELP = """Prove every call of a run against the engine's own journal, and every training row against its calls.

[bold]Examples[/]

  tugline verify runs/first
  tugline verify runs/first --json | jq .calls
  tugline verify runs/first --rescore

Exit status 0: everything holds. 1: something contradicts; the call and token position are named.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", help=HELP)(verify)


def verify(
    run: Annotated[Path, typer.Argument(help="Run directory.")],
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Also score random calls again with the run's policy (starts its engine).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """See HELP."""
    again: Rescored | None = None
    try:
        with RunStore.open(run, write=False) as store:
            proof = prove_run(store, journal_of(run))
            if rescore:
                again = asyncio.run(_rescore(run, store))
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    if as_json:
        scored = {"calls": again.calls, "max_abs_diff": again.worst} if again else None
        output.emit(proof.as_json() | ({"rescored": scored} if rescore else {}))
    else:
        show_proof(output.console(), proof, again)
    ok = proof.ok and (again is None or again.ok)
    raise typer.Exit(output.OK if ok else output.FAILED)


async def _rescore(run: Path, store: RunStore) -> Rescored | None:
    """A fresh engine of the run's own settings, with a journal of its own elsewhere."""
    settings = load(run / "run.toml", {}, {}).settings
    with tempfile.TemporaryDirectory(prefix="tugline-rescore-") as scratch:
        engine = engine_for(settings, Path(scratch))
        try:
            await engine.start()
            return await rescore_calls(engine, store, [s.key.session_id for s, _ in store.sessions()])
        finally:
            await engine.close()
