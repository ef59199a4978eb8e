"""P6: whether the tail behind a turn depends on what was before it; if not, a short stand-in is rendered instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tugline.core.items import Assistant, Head, Item, System, ToolCall, ToolResult, UserText
from tugline.tokens.probes.static import Source
from tugline.tokens.probes.trial import TOOLS, USER, Trial, differ
from tugline.tokens.splice import BridgeRefused, Rules, tail_of

_OFTEN = (("enable_thinking", '{"enable_thinking":false}'), ("enable_thinking", '{"enable_thinking":true}'))
"""Arguments that harnesses send to any template. Where it does not read the name they change nothing."""


def independent(trial: Trial, rules: Rules, source: Source, more: Sequence[str]) -> tuple[str, ...]:
    """Template arguments (JSON) under which the tail is the same behind every history: none, `more` and the usual."""
    moved = _moved(trial, rules, "{}")
    trial.say("P6", "" if moved is None else "the tail depends on the history", moved or "")
    found = ["{}"] if moved is None else []
    for name, kwargs in _OFTEN:
        if name not in source.names and moved is None:
            found.append(kwargs)
    asked = [k for k in (*(k for n, k in _OFTEN if n in source.names), *more) if k not in found]
    return (*found, *(k for k in dict.fromkeys(asked) if _moved(trial, rules, k) is None))


def _moved(trial: Trial, rules: Rules, kwargs: str) -> str | None:
    """None when the tail stays the same, else around the first difference."""
    fixed = replace(rules, fixed_context=frozenset((kwargs,)))
    seen = 0
    for ending, tail in _tails(rules.appendable):
        expected = _tail(trial, fixed, Head((), kwargs), [ending], tail)
        seen += expected is not None
        for history in _histories(trial.start):
            for tools in ((), TOOLS):
                found = _tail(trial, rules, Head(tools, kwargs), [*history, ending], tail)
                if found != expected:
                    return differ(expected or "", found or "")
    return None if seen else "no tail was found"


def _tail(trial: Trial, rules: Rules, head: Head, history: Sequence[Item], tail: Sequence[Item]) -> str | None:
    try:
        composed, start = tail_of(trial.renderer, rules, head, history, tail)
    except BridgeRefused:
        return None
    return composed.literal(start)


def _histories(start: tuple[Item, ...]) -> list[list[Item]]:
    """Different pasts: short, long, two tool cycles, with and without reasoning, without a system message."""

    def cycle(n: int, reasoning: str | None) -> list[Item]:
        turn = Assistant("Looking.", reasoning, (ToolCall(f"h{n}", "read", '{"cmd": "ls"}'),))
        return [turn, ToolResult(f"h{n}", f"listing {n}")]

    talk: list[Item] = [Assistant("Hello.", "They greet."), UserText("Now work.")]
    return [
        [*start],
        [USER],
        [*start, *cycle(1, "think"), *cycle(2, "again")],
        [*start, *cycle(1, None)],
        [*start, *talk],
        [*start, *talk, *cycle(3, "deep"), Assistant("There."), UserText("More.\n" * 50)],
    ]


def _tails(appendable: frozenset[str]) -> list[tuple[Assistant, list[Item]]]:
    """Turns that end a history, with what may follow."""
    calls = tuple(ToolCall(f"c{i}", name, '{"cmd": "x"}') for i, name in enumerate(("run", "read")))
    one, two, talk = Assistant(calls=calls[:1]), Assistant("Both.", "why", calls), Assistant("Done.", "so")
    result, other = ToolResult("c0", "out 0"), ToolResult("c1", "out 1")
    found: list[tuple[Assistant, list[Item]]] = []
    if "tool" in appendable:
        found += [(one, [result]), (two, [result, other])]
    if "user" in appendable:
        found.append((talk, [UserText("And now?")]))
    if {"tool", "user"} <= appendable:
        found.append((one, [result, UserText("Also this.")]))
    if {"tool", "system"} <= appendable:
        found.append((one, [result, System("Note.")]))
    if {"user", "assistant"} <= appendable:
        found.append((talk, [UserText("a"), Assistant("b", "why"), UserText("c")]))
    if {"tool", "assistant"} <= appendable:
        found.append((one, [result, Assistant("b", "why", calls[1:]), other]))
    return found
