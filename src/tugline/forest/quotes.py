"""Who repeats whose words: a conversation its own summary, a summary the conversation, a sub-agent the call for it.

Harnesses wrap, cut and flatten what they pass on, so whole items are not compared, but texts and their lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tugline.core.items import Assistant, Item, Request, System, UserText
from tugline.core.turn import Turn
from tugline.forest.canon import value_of

WORDS = 16
"""Characters of a text below which finding it elsewhere says nothing."""

LINE = 24
"""The same of one line of a reply."""

LINES = 64
"""Lines of a reply that are looked for, the longest: each is a search through a whole conversation."""

STRINGS = 64
"""The same of the strings of one call."""

SHORTEST = 6
"""The same of a whole summary: scripted models give very short ones."""

_SUMMARY = re.compile(r"\bsummar(?:y|i[sz])|\bcompact", re.IGNORECASE)
_TALK = re.compile(r"\b(?:conversation|context|history|transcript|session|dialog)", re.IGNORECASE)
_TITLE = re.compile(r"\btitle\b", re.IGNORECASE)
_EDGE = 2000
"""Characters at both ends of a text where an instruction stands."""


def spoken(items: Iterable[Item], *, ours: bool = True) -> str:
    """System and user texts, and (`ours`) assistant texts, apart from each other."""
    kinds = (System, UserText, Assistant) if ours else (System, UserText)
    return "\0".join(item.text or "" for item in items if isinstance(item, kinds))


def last_user(items: Sequence[Item]) -> str:
    """The newest user text; "" without one."""
    return next((item.text for item in reversed(items) if isinstance(item, UserText)), "")


def quotes(text: str, reply: str | None, whole: int = SHORTEST, line: int = LINE) -> bool:
    """Whether a text holds a reply of at least `whole` characters, or a line of at least `line`: harnesses drop what
    is not the summary itself."""
    said = (reply or "").strip()
    if len(said) < whole:
        return False
    if said in text:
        return True
    lines = [s for s in map(str.strip, said.splitlines()) if len(s) >= line and " " in s]
    return any(s in text for s in sorted(lines, key=len, reverse=True)[:LINES])


def sums_up(request: Request, turns: Iterable[Turn]) -> bool:
    """Whether a request without tools is there to sum up the conversation of `turns`: it carries it, as items or as
    text, or asks for a summary of it. One that asks for a title only is not."""
    asked = _instruction(request.items)
    if _SUMMARY.search(asked) and _TALK.search(asked):
        return True
    if _TITLE.search(asked):
        return False
    if any(isinstance(item, Assistant) for item in request.items):
        return True
    text = spoken(request.items)
    return any(said in text for turn in turns for said in _said(turn))


def _instruction(items: Sequence[Item]) -> str:
    """The system texts, and both ends of the newest user text."""
    user = last_user(items)
    ends = user if len(user) <= 2 * _EDGE else f"{user[:_EDGE]}\0{user[-_EDGE:]}"
    return "\0".join((*(item.text for item in items if isinstance(item, System)), ends))


def _said(turn: Turn) -> Iterator[str]:
    text = (turn.echo.text or "").strip()
    if len(text) >= WORDS:
        yield text
    for call in turn.echo.calls:
        yield from _strings(call.arguments)


def calls_for(turn: Turn, items: Sequence[Item]) -> int:
    """How many calls of a turn ask for what a new conversation was told to do: an argument is in its user texts, or
    its newest user text in an argument (a command line)."""
    told = spoken((item for item in items if isinstance(item, UserText)), ours=False)
    newest = last_user(items).strip()
    return sum(
        any(s in told or (len(newest) >= WORDS and newest in s) for s in _strings(call.arguments))
        for call in turn.echo.calls
    )


def _strings(arguments: str) -> list[str]:
    """The longer strings of a call's arguments, without the blanks around them."""
    try:
        value = value_of(arguments)
    except ValueError:
        value = arguments
    found, left = [], [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str) and len(one.strip()) >= WORDS:
            found.append(one.strip())
    return sorted(found, key=len, reverse=True)[:STRINGS]
