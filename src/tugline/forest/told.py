"""What a turn's record tells of the request it answered: how it matched, what the harness changed.

The request itself is not stored, only its tail, in which the harness's words stand where it branched. Where it attached
by meaning, the record of the call has its words for the turns that it changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tugline.core.items import Assistant, Head, Item, Prefill
from tugline.core.turn import Turn
from tugline.forest import keys
from tugline.forest.edits import changes, edits
from tugline.forest.forest import Forest
from tugline.forest.origins import trace


@dataclass(frozen=True, slots=True)
class Difference:
    """One field of an assistant turn. `where`: text, reasoning, calls, calls[0].name, calls[0].arguments, ..."""

    where: str
    ours: str
    theirs: str


@dataclass(frozen=True, slots=True)
class Edited:
    """An assistant turn in the harness's words. `origin`: the turn of ours that it was; None: nobody here said it."""

    origin: str | None
    classes: tuple[str, ...]
    differences: tuple[Difference, ...]
    words: str
    """Its text, where it has no origin."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first item in which two conversations differ. `index`: place in both; an absent item is ""."""

    index: int
    kind: str
    ours: str
    theirs: str


def match_of(turn: Turn, parent: Turn | None) -> Literal["exact", "lenient", "root"]:
    """How the request found its parent. A key of its own echo tells: it was hashed behind what the request held."""
    if parent is None:
        return "root"
    at = keys.walk(keys.Chain(parent.key_exact, b"", {}), (*turn.items, turn.echo))
    return "exact" if at[-1].exact == turn.key_exact else "lenient"


def edited_turns(forest: Forest, turn: Turn) -> tuple[Edited, ...]:
    """The assistant turns that stand in a turn's tail, each beside what it was. `forest` as it was when the turn came.
    Verbatim ones (a root that repeats a conversation, a rebuilt history) are left out."""
    found: list[Edited] = []
    traced = trace(turn.parent, turn.items, lambda at: [forest.turns[t] for t in forest.children(at)])
    for item, origin in traced.said:
        if origin is None:
            found.append(Edited(None, ("foreign_assistant",), (), item.text or item.reasoning or ""))
        elif origin.said != item:
            classes = changes(origin.said, item) or edits(origin.said, item) or ("shape",)
            found.append(Edited(origin.turn_id, classes, differences(origin.said, item), ""))
    return tuple(found)


def echoed_turns(forest: Forest, echoed: Sequence[tuple[str, Assistant]]) -> tuple[Edited, ...]:
    """The turns whose ids stayed though the harness changed their words, each beside those."""
    return tuple(
        Edited(turn_id, changes(said, item) or edits(said, item), differences(said, item), "")
        for turn_id, item in echoed
        if (said := forest.turns[turn_id].said) != item
    )


def as_sent(forest: Forest, turn: Turn, echoed: Sequence[tuple[str, Assistant]]) -> tuple[Item, ...]:
    """The request that a turn answers, with the harness's own words for turns of ours where they were recorded."""
    theirs = dict(echoed)
    items: list[Item] = []
    for at in forest.path(turn.parent):
        if at.turn_id in theirs:
            items += [item for item in at.items if not isinstance(item, Prefill)]
        else:
            items += at.items
        items.append(theirs.get(at.turn_id, at.echo))
    return (*items, *turn.items)


def differences(ours: Assistant, theirs: Assistant) -> tuple[Difference, ...]:
    """Field by field, verbatim."""
    pairs = [("text", ours.text or "", theirs.text or ""), ("reasoning", ours.reasoning or "", theirs.reasoning or "")]
    if len(ours.calls) != len(theirs.calls):
        mine, other = (", ".join(call.name for call in said.calls) for said in (ours, theirs))
        pairs.append(("calls", mine, other))
    for n, (call, echo) in enumerate(zip(ours.calls, theirs.calls, strict=False)):
        pairs += [
            (f"calls[{n}].{field}", getattr(call, field), getattr(echo, field)) for field in ("id", "name", "arguments")
        ]
    return tuple(Difference(*pair) for pair in pairs if pair[1] != pair[2])


def parting(stored: Sequence[Item], incoming: Sequence[Item]) -> Parting | None:
    """Where `incoming` stops being what a stored conversation says, or None when it only goes on."""
    ours, theirs = (_without_prefill(items) for items in (stored, incoming))
    for n, mine in enumerate(ours):
        other = theirs[n] if n < len(theirs) else None
        if mine != other:
            return Parting(n, type(other or mine).__name__, shown(mine), shown(other) if other is not None else "")
    return None


def head_changes(before: Head, after: Head) -> tuple[str, ...]:
    """What differs between two heads, in words."""
    old, new = {tool.name: tool for tool in before.tools}, {tool.name: tool for tool in after.tools}
    found = [f"tool {name} is gone" for name in old if name not in new]
    found += [f"tool {name} is new" for name in new if name not in old]
    found += [f"tool {name} is declared otherwise" for name in new if name in old and old[name] != new[name]]
    if list(old) != list(new) and set(old) == set(new):
        found.append("the tools stand in another order")
    if before.template_kwargs != after.template_kwargs:
        found.append(f"template arguments were {before.template_kwargs}, are {after.template_kwargs}")
    return tuple(found)


def shown(item: Item) -> str:
    """An item as one text."""
    if isinstance(item, Assistant):
        calls = [f"{call.name}({call.arguments})" for call in item.calls]
        return "\n".join(part for part in (item.reasoning, item.text, *calls) if part)
    return str(getattr(item, "text", "")) or f"[{getattr(item, 'media_type', '')}]"


def _without_prefill(items: Sequence[Item]) -> list[Item]:
    """Items as clients echo them: a fragment and its continuation are one turn."""
    out: list[Item] = []
    before = ""
    for item in items:
        if isinstance(item, Prefill):
            before += item.text
            continue
        joined = replace(item, text=before + (item.text or "")) if before and isinstance(item, Assistant) else item
        out.append(joined)
        before = ""
    return out
