"""What the operator wants done with a harness's edits, as the forest reads it: which are obeyed, which are not, and
which text counts for nothing.

A filter works on the *lenient key* only: text that it matches is left out there, so that a conversation whose volatile
text changed is found again. What is rendered is never filtered: a request that attaches keeps the stored ids (drift
`filtered:NAME`), one that does not is rendered as the harness wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tugline.core.contracts import Policy, TextFilter
from tugline.core.items import Item, System, ToolResult, UserText

Readable: TypeAlias = System | UserText | ToolResult


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter ready for use."""

    name: str
    first: bool
    """Reads the conversation's first item only, and that only if it is a system text."""
    pattern: re.Pattern[str]

    def reads(self, item: Item, at: int) -> bool:
        """Whether the filter looks at this item, which stands at place `at` of its conversation."""
        if self.first:
            return at == 0 and isinstance(item, System)
        return isinstance(item, Readable)


@dataclass(frozen=True, slots=True)
class Rules:
    """`honoured`: edit classes that keep the meaning and are obeyed all the same. `retained`: edit classes that change
    the meaning and are not obeyed. `template`: history is to be as the template would write it. `sticky_head`: a
    conversation goes on under its first tools whatever tools a request brings. `partial`: of a turn that was echoed in
    part, that part stays as it was sampled; `train_partial`: and trains."""

    honoured: frozenset[str] = frozenset()
    retained: frozenset[str] = frozenset()
    template: bool = False
    sticky_head: bool = False
    partial: bool = False
    train_partial: bool = False
    filters: tuple[Filter, ...] = ()

    def plain(self, items: Sequence[Item], start: int = 0) -> Sequence[Item]:
        """The items without what the filters match; the very same sequence when they match nothing. `start`: place of
        the first item in its conversation."""
        if not self.filters:
            return items
        out = [self._plain(item, start + n) for n, item in enumerate(items)]
        return items if all(a is b for a, b in zip(out, items, strict=True)) else out

    def _plain(self, item: Item, at: int) -> Item:
        for one in self.filters:
            if one.reads(item, at) and isinstance(item, Readable):
                text = one.pattern.sub("", item.text)
                item = item if text == item.text else replace(item, text=text)
        return item

    def filtered(self, stored: Sequence[Item], incoming: Sequence[Item], start: int = 0) -> tuple[str, ...]:
        """`filtered:NAME` of each filter without which two item lists with equal lenient keys would differ. Sorted."""
        found: set[str] = set()
        for at, (ours, theirs) in enumerate(zip(stored, incoming, strict=False) if self.filters else (), start):
            if not isinstance(ours, Readable) or not isinstance(theirs, Readable) or ours.text == theirs.text:
                continue
            reading = [f for f in self.filters if f.reads(ours, at)]
            found.update(f"filtered:{f.name}" for f in reading if _said(f, ours) != _said(f, theirs))
        return tuple(sorted(found))


DEFAULT = Rules()
"""Spelling is retained, meaning is honoured, nothing is filtered."""

SPELLING: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ws_trim", ("ws_trim", "reasoning_trimmed")),
    ("reasoning_changed", ("reasoning_changed", "reasoning_added")),
    ("args_lossy_known", ("args_lossy_known",)),
)
"""Fields of `EditPolicy` -> edit classes that keep the meaning."""

MEANING: tuple[str, ...] = ("args_repaired", "args_changed", "text_changed")
"""Fields of `EditPolicy` that are edit classes which change the meaning."""


def rules_of(policy: Policy) -> Rules:
    """The rules of a session. Raises re.error for a filter whose pattern is none: settings are checked before."""
    edits = policy.edits
    honoured = {name for field, names in SPELLING if getattr(edits, field) == "honour" for name in names}
    if policy.history_reasoning == "template":
        honoured.add("reasoning_dropped")
    return Rules(
        honoured=frozenset(honoured),
        retained=frozenset(name for name in MEANING if getattr(edits, name) == "retain"),
        template=policy.history_reasoning == "template",
        sticky_head=edits.head_changed == "retain",
        partial=edits.partial_echo == "retain" and policy.history_reasoning == "keep",
        train_partial=edits.train_partial,
        filters=tuple(map(_ready, policy.filters)),
    )


def _ready(given: TextFilter) -> Filter:
    first = given.where == "first_system"
    return Filter(given.name, first, re.compile(given.pattern))


def _said(one: Filter, item: Readable) -> list[str]:
    return [match.group() for match in one.pattern.finditer(item.text)]
