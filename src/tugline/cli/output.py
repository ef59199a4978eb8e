"""How commands speak: people on stderr and stdout, programs through --json on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from tugline.core.errors import BadRequest, ConfigError, TaskError, TuglineError

OK, FAILED, USAGE = 0, 1, 2


def printable(text: str) -> str:
    """The text with what a terminal would obey, or show nothing of, as escapes: agents and models wrote much of it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


class _Plain(Console):
    """Shows every text as it is: no control sequence, no `:name:` that becomes a picture."""

    def render_str(self, text: str, *args: Any, **options: Any) -> Text:
        return super().render_str(printable(text), *args, **options)


def console() -> Console:
    """Where people read. stdout stays clean for --json."""
    return _Plain(stderr=True, highlight=False, soft_wrap=True, emoji=False)


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
    return "\n".join(f"  {k.ljust(width)}  {printable(str(v))}" for k, v in rows.items())


def _escape(text: str) -> str:
    return text.replace("[", r"\[")
