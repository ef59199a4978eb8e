"""`tugline rollout`: tasks x n sessions of a harness, scored, recorded, proven."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tugline.cli import output
from tugline.cli.flags import RunFlags, load_settings
from tugline.cli.runner import RunRequest, run_and_report
from tugline.core.errors import ConfigError, TuglineError

HELP = """Run a harness on tasks and record token-exact traces.

[bold]Examples[/]

  tugline rollout files --harness pi -n 4 --out runs/first
  tugline rollout ./my-task --harness "command:./agent.sh {instruction}" --engine scripted:script.jsonl
  tugline rollout files --config run.toml --sampling temperature=0.7 --json

An interrupted run goes on where it stopped when the same --out is given again.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rollout", help=HELP)(rollout)


def rollout(
    tasks: Annotated[list[str], typer.Argument(help="Task directory, a directory of them, or a shipped name.")],
    harness: Annotated[str | None, typer.Option(help="pi, bash-agent, or command:ARGV with {instruction}.")] = None,
    engine: Annotated[str | None, typer.Option(help="embedded or scripted:FILE.")] = None,
    model: Annotated[str | None, typer.Option(help="Model directory; default: the shipped pilot policy.")] = None,
    template: Annotated[str | None, typer.Option(help="Chat template file, or one of the model's own by name.")] = None,
    parser: Annotated[str | None, typer.Option(help="Reply format; default: told by the model's files.")] = None,
    n: Annotated[int | None, typer.Option("-n", help="Sessions per task (a group).")] = None,
    sandbox: Annotated[str | None, typer.Option(help="auto, bubblewrap, container, apptainer or local.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML settings file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory; default runs/<time>-<name>.")] = None,
    sampling: Annotated[str | None, typer.Option(help="k=v,... e.g. temperature=0.7,max_tokens=256")] = None,
    boot_timeout: Annotated[str | None, typer.Option(help="Per session, e.g. 5m.")] = None,
    agent_timeout: Annotated[str | None, typer.Option(help="Per session, where the task sets none.")] = None,
    judge_timeout: Annotated[str | None, typer.Option(help="Per session, where the task sets none.")] = None,
    max_turns: Annotated[int | None, typer.Option(help="Model turns per session.")] = None,
    max_tokens_per_session: Annotated[int | None, typer.Option(help="Sampled tokens per session.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling seed; sessions draw different streams from it.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any setting, key=value, e.g. engine.slots=8")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, no progress.")] = False,
) -> None:
    """See HELP."""
    try:
        flags = RunFlags(
            harness=harness,
            engine=engine,
            model=model,
            template=template,
            parser=parser,
            n=n,
            sandbox=sandbox,
            out=out,
            sampling=sampling,
            boot_timeout=boot_timeout,
            agent_timeout=agent_timeout,
            judge_timeout=judge_timeout,
            max_turns=max_turns,
            max_tokens_per_session=max_tokens_per_session,
            seed=seed,
            extra=tuple(set_ or ()),
        )
        if not tasks:
            raise ConfigError("give at least one task", where="TASKS")
        loaded = load_settings(config, flags)
        code = run_and_report(RunRequest(tuple(tasks), loaded), as_json=as_json)
    except TuglineError as err:
        output.fail(err, as_json=as_json)
    raise typer.Exit(code)
