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
from tugline.cli.show import show_audit, show_proof
from tugline.cli.wiring import chat_models, engine_for, journal_of
from tugline.config.load import load
from tugline.core.errors import TuglineError
from tugline.rollout.audit import audit_run
from tugline.rollout.proof import prove_run
from tugline.store import RunStore

HELP = """Prove every call of a run against the engine's own journal, and every training row against its calls.

[bold]Examples[/]

  tugline verify runs/first
  tugline verify runs/first --json | jq .calls
  tugline verify runs/first --rescore
  tugline verify runs/first --audit

Exit status 0: everything holds. 1: something contradicts; the call and token position are named.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", help=HELP)(verify)


def verify(
    run: Annotated[Path, typer.Argument(help="Run directory.", metavar="RUN")],
    rescore: Annotated[
        bool, typer.Option("--rescore", help="Also score random calls again with the run's policy (starts its engine).")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Also render prompts whole by the model's template and compare.")
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
            audited = audit_run(store, chat_models(run)) if audit else None
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    if as_json:
        scored = {"calls": again.calls, "max_abs_diff": again.worst} if again else None
        more = {"audit": audited.as_json()} if audited else {}
        output.emit(proof.as_json() | ({"rescored": scored} if rescore else {}) | more)
    else:
        show_proof(output.console(), proof, again)
        if rescore and again is None:
            output.console().print("re-scoring: nothing, as this run's engine cannot score or no turn is the policy's")
        if audited:
            show_audit(output.console(), audited)
    ok = proof.ok and (again is None or again.ok) and (audited is None or audited.ok)
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
