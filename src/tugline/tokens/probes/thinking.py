"""P13: under which template arguments a user message leaves earlier turns alone. P17: clock and chance.

Where a template strips earlier reasoning at a user message, a bridged prompt (which keeps it) is not what the template
would write: continuous or faithful, not both. Many templates have an argument that makes both possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

import msgspec

from tugline.core.items import Assistant, Head, Item, ToolCall, ToolResult, UserText
from tugline.tokens.marks import JSON
from tugline.tokens.probes.shape import shows_prompt
from tugline.tokens.probes.static import Source
from tugline.tokens.probes.trial import TOOLS, Trial, differ
from tugline.tokens.probes.verdict import Clock, Switch

KNOWN = (
    "clear_thinking",
    "truncate_history_thinking",
    "preserve_thinking",
    "drop_thinking",
    "keep_thinking",
    "keep_past_thinking",
    "enable_thinking",
    "thinking",
    "reasoning_effort",
    "thinking_mode",
    "thinking_budget",
)
_RELATED = re.compile(r"think|reason|effort|histor|preserve|truncat", re.IGNORECASE)
_PAIRS = 16
"""Pairs of arguments tried where none alone does it."""
_GO_ON = UserText("Go on.")


def switches(trial: Trial, source: Source) -> tuple[bool, tuple[Switch, ...]]:
    """P13: (append-only as it is, what arguments change)."""
    plain, example = _keeps(trial, "{}")
    names = [n for n in source.names if n in KNOWN or _RELATED.search(n)]
    base = _shows(trial, "{}")
    found: list[Switch] = []
    for name in names:
        for value in _values(name, source):
            switch = _switch(trial, {name: value}, base)
            if switch is not None:
                found.append(switch)
    if not plain and not any(s.append_only for s in found):
        found += _pairs(trial, [(n, v) for n in names for v in _values(n, source)], base)
    good = [s.kwargs for s in found if s.append_only]
    repair = f"; {' or '.join(good)} keeps them" if good else "; no template argument keeps them"
    what = "" if plain else f"a user message changes how earlier turns are written{repair}"
    trial.say("P13", what, example)
    return plain, tuple(found)


def _values(name: str, source: Source) -> tuple[JSON, ...]:
    constants = tuple(v for v in source.values_of(name) if isinstance(v, str))
    if constants:
        return constants
    if "effort" in name:
        return ("low", "high")
    return (0, 4096) if "budget" in name else (False, True)


def _switch(trial: Trial, kwargs: dict[str, JSON], base: tuple[str, str]) -> Switch | None:
    spelled = msgspec.json.encode(kwargs, order="sorted").decode()
    seen = _shows(trial, spelled)
    changed = tuple(what for what, a, b in zip(("history", "generation prompt"), seen, base, strict=True) if a != b)
    if not changed or not seen[0]:
        return None
    return Switch(spelled, _keeps(trial, spelled)[0], shows_prompt(trial, spelled), changed)


def _pairs(trial: Trial, single: Sequence[tuple[str, JSON]], base: tuple[str, str]) -> list[Switch]:
    """Two arguments together, where none alone does it."""
    pairs = [(one, other) for one, other in combinations(single, 2) if one[0] != other[0]]
    both = (_switch(trial, dict(pair), base) for pair in pairs[:_PAIRS])
    return [switch for switch in both if switch is not None and switch.append_only][:1]


def _talk(trial: Trial) -> list[Item]:
    """Two turns with reasoning, one of which calls a tool."""
    one = Assistant("Looking.", "zQfirstQz", (ToolCall("c1", "run", '{"cmd": "ls"}'),))
    return [*trial.start, one, ToolResult("c1", "ok"), Assistant("zAtextA", "zQsecondQz")]


def _plain_talk(trial: Trial) -> list[Item]:
    return [*trial.start, Assistant("zAtextA", "zQsecondQz")]


def _keeps(trial: Trial, kwargs: str) -> tuple[bool, str]:
    """(whether a user message is appended to a conversation that stays as it was, around the difference)."""
    kept = False
    with_tools, without = Head(TOOLS, kwargs), Head((), kwargs)
    # Some templates keep reasoning only where tools are offered.
    for talk, head in ((_plain_talk(trial), with_tools), (_talk(trial), with_tools), (_plain_talk(trial), without)):
        inside = trial.text(talk, generation=False, head=head)
        after = trial.text([*talk, _GO_ON], head=head)
        if not inside or not after:
            continue  # no tools here: what the other conversation says counts
        if not after.startswith(inside):
            return False, differ(inside, after)
        kept = True
    return kept, ""


def _shows(trial: Trial, kwargs: str) -> tuple[str, str]:
    """(a history, a generation prompt) under `kwargs`."""
    head = Head(TOOLS, kwargs)
    talk = _talk(trial)
    items = talk if trial.text(talk, head=head) else _plain_talk(trial)
    shown = trial.text([*items, _GO_ON], generation=False, head=head)
    whole = trial.text([*items, _GO_ON], head=head)
    return shown, whole.removeprefix(shown) if whole.startswith(shown) else whole


# ------------------------------------------------------------------------------------------------------------ P17

_FROZEN = "{{% macro strftime_now(format) %}}{at}{{{{ format }}}}{{% endmacro %}}{{{{ '' }}}}"
"""Stands before a template's source and takes the place of the clock that transformers gives it."""


def clock(trial: Trial, source: Source) -> Clock:
    """P17: the same conversation at two times, and what the source says."""

    def at(time: str) -> str:
        return trial.raw(
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
            before=_FROZEN.format(at=time),
        )

    one, other = at("zQoneQz"), at("zQtwoQz")
    varies = one != other or any("random" in c or "lipsum" in c for c in source.clock)
    if not varies and not source.clock:
        trial.say("P17")
        return Clock((), False)
    what = (
        f"the prompt depends on {', '.join(source.clock) or 'the time'}" if varies else "reads a clock it never shows"
    )
    example = next(_around(one, "zQoneQz"), "")
    trial.say("P17", what, example, status="note")
    return Clock(source.clock, varies, example)


def _around(text: str, word: str) -> Iterator[str]:
    at = text.find(word)
    if at >= 0:
        yield text[max(0, at - 40) : at + 40]
