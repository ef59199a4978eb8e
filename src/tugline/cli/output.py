"""How commands speak: people on stderr and stdout, programs through --json on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NoReturn

import msgspec
import typer
from rich.console import Console

from tugline.core.errors import BadRequest, ConfigError, TaskError, TuglineError

OK, FAILED, USAGE = 0, 1, 2


def console() -> Console:
    """Where people read. stdout stays clean for --json."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def emit(value: object) -> None:
    """One JSON object on one line of stdout. NaN and infinities become null."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def code_of(err: TuglineError) -> int:
    """Exit status for an error: 2 when the user has to change what was asked, else 1."""
    return USAGE if isinstance(err, BadRequest | ConfigError | TaskError) else FAILED


def fail(err: TuglineError, *, as_json: bool) -> NoReturn:
    """Show an error and exit."""
    if as_json:
        emit({"error": {"type": type(err).__name__, "code": err.detail_code, "message": err.message}})
    else:
        console().print(f"[bold red]error[/] {_escape(err.message)}")
    raise typer.Exit(code_of(err))


def table(rows: Mapping[str, object]) -> str:
    """Two aligned columns."""
    width = max((len(k) for k in rows), default=0)
    return "\n".join(f"  {k.ljust(width)}  {v}" for k, v in rows.items())


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
