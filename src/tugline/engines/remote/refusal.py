"""What an answer with another status than 200 means. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import msgspec

from tugline.core.errors import EngineError

PEEK = 300
"""Characters of an error body that are shown."""
RETRYABLE = frozenset({408, 409, 425, 429})
LONGEST = 600.0
"""Seconds that an engine may ask to be left alone."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole reply. Header names are lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]


class Refusal(EngineError):
    """Another status than 200. `after`: seconds that the engine asks to be left alone."""

    def __init__(self, message: str, *, retryable: bool, fault: str, after: float | None) -> None:
        super().__init__(message, retryable=retryable, fault=fault)
        self.after = after


class _Error(msgspec.Struct):
    message: str | None = None


class _Said(msgspec.Struct):
    error: _Error | str | None = None
    message: str | None = None
    detail: object = None


def refusal_text(body: bytes) -> str:
    """What an error body says, in whatever of the usual shapes."""
    try:
        said = msgspec.json.decode(body, type=_Said)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return " ".join(body.decode("utf-8", "replace").split())[:PEEK]
    error = said.error.message if isinstance(said.error, _Error) else said.error
    text = error or said.message or (str(said.detail) if said.detail is not None else "")
    return " ".join((text or body.decode("utf-8", "replace")).split())[:PEEK]


def refused(answer: Answer) -> Refusal:
    """The error that another status than 200 means."""
    status = answer.status
    text = refusal_text(answer.body)
    hint = {401: "; its key is missing or wrong", 403: "; its key may not do this, or the route is switched off"}
    why = hint.get(status, "")
    if 300 <= status < 400:
        why = "; it sends calls elsewhere, where its key does not go: put the address that it names in engine.spec"
        text = text or answer.headers.get("location", "").partition("?")[0][:PEEK]
    return Refusal(
        f"the engine answered {status}{why}{': ' + text if text else ''}",
        retryable=status >= 500 or status in RETRYABLE,
        fault=f"http_{status}",
        after=retry_after(answer),
    )


def retry_after(answer: Answer, now: float | None = None) -> float | None:
    """Seconds that the engine asks to be left alone, at most ten minutes; None: it does not ask.

    `Retry-After` as seconds or a date, `retry-after-ms`, and on 429 what remains of a used-up limit by
    `x-ratelimit-reset-*`. `now`: Unix seconds.
    """
    said = answer.headers
    found = _number(said.get("retry-after-ms"), 0.001)
    if found is None:
        found = _number(said.get("retry-after"), 1.0)
    if found is None and "retry-after" in said:
        found = _until(said["retry-after"], time.time() if now is None else now)
    if found is None and answer.status == 429:
        used_up = [kind for kind in ("requests", "tokens") if said.get(f"x-ratelimit-remaining-{kind}", "1") == "0"]
        waits = [_duration(said.get(f"x-ratelimit-reset-{kind}", "")) for kind in used_up]
        found = max((wait for wait in waits if wait is not None), default=None)
    return None if found is None else min(LONGEST, max(0.0, found))


def _number(text: str | None, unit: float) -> float | None:
    try:
        value = float(text or "") * unit
    except ValueError:
        return None
    return value if value == value else None


def _until(text: str, now: float) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None


def _duration(text: str) -> float | None:
    """`6m0s`, `20ms`, `1.5`."""
    if not text or _PART.sub("", text):
        return _number(text, 1.0)
    return sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text))
