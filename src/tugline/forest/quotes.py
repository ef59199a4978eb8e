"""Who repeats whose words: a conversation its own summary, a summary the conversation, a sub-agent the call for it.

Harnesses wrap, cut and flatten what they pass on, so whole items are not compared, but texts and their lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from tugline.core.items import Assistant, Item, System, UserText
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

_KINDS = r"\b(?:summar(?:y|i[sz])|compact)", r"\b(?:conversation|context|history|transcript|session|dialog)"
_SUMMARY = re.compile("|".join(rf"{a}[^.\n]{{0,80}}?{b}" for a, b in (_KINDS, _KINDS[::-1])), re.IGNORECASE)
"""Both in one sentence: pages and files hold such words too."""
_TITLE = re.compile(r"\btitle\b", re.IGNORECASE)
_EDGE = 2000
"""Characters at both ends of a text where an instruction stands."""

_TASK = 60
"""Characters at an end of a task that are enough to know it again: harnesses cut it and put reminders in front."""


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


def asks_for_summary(items: Sequence[Item], *, systems: bool) -> bool:
    """Whether a request asks for a summary of a conversation: in its newest user text, if nothing stands behind that,
    or (`systems`) in its system texts."""
    return any(_SUMMARY.search(text) for text in _instructions(items, systems))


def asks_for_title(items: Sequence[Item]) -> bool:
    """The same of a title."""
    return any(_TITLE.search(text) for text in _instructions(items, systems=True))


def repeats(items: Sequence[Item], turns: Iterable[Turn]) -> bool:
    """Whether an assistant item says what one of the turns said: the same words, or calls of the same ids."""
    said = [item for item in items if isinstance(item, Assistant)]
    texts = {(item.text or "").strip() for item in said} - {""}
    calls = {call.id for item in said for call in item.calls} - {""}
    return any(
        (turn.echo.text or "").strip() in texts or any(call.id in calls for call in turn.echo.calls) for turn in turns
    )


def retells(items: Sequence[Item], turns: Sequence[Turn], roots: Sequence[Turn]) -> bool:
    """Whether the texts of a request tell a conversation: what several turns said, or the task and what one said. A
    page that was fetched for a call quotes that call alone."""
    text = spoken(items)
    told = sum(any(said in text for said in _said(turn)) for turn in turns)
    return told > 1 or (told == 1 and any(_has_task(text, root) for root in roots))


def _has_task(text: str, root: Turn) -> bool:
    """Whether a text holds what a conversation began with: one end of its newest user text."""
    task = last_user(root.items).strip()
    return len(task) >= WORDS and (task[:_TASK] in text or task[-_TASK:] in text)


def _instructions(items: Sequence[Item], systems: bool) -> Iterator[str]:
    """The system texts, and both ends of the newest user text if nothing was said since."""
    if systems:
        yield from (item.text for item in items if isinstance(item, System))
    newest = next((item for item in reversed(items) if not isinstance(item, System)), None)
    if isinstance(newest, UserText):
        text = newest.text
        yield text if len(text) <= 2 * _EDGE else f"{text[:_EDGE]}\0{text[-_EDGE:]}"


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
