"""Entry point: the command tree and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys

import typer

from tugline import __version__
from tugline.cli import (
    bench,
    config,
    doctor,
    engine,
    explain,
    gateway,
    gc,
    quickstart,
    rejudge,
    report,
    rollout,
    tasks,
    verify,
)

app = typer.Typer(
    name="tugline",
    help="Any agent harness becomes an RL training environment, token for token.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        sys.stdout.write(f"tugline {__version__}\n")
        raise typer.Exit(0)


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Any agent harness becomes an RL training environment, token for token."""


quickstart.register(app)
rollout.register(app)
gateway.register(app)
verify.register(app)
report.register(app)
rejudge.register(app)
explain.register(app)
config.register(app)
doctor.register(app)
engine.register(app)
tasks.register(app)
bench.register(app)
gc.register(app)


def entry() -> None:
    """What the `tugline` script runs. Nothing here reaches a network of its own accord."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    app()


if __name__ == "__main__":
    entry()
