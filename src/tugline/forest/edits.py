"""What a harness did to an assistant turn that still means the same: named field by field."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tugline.core.items import Assistant, Item
from tugline.forest.canon import EMPTY, arguments_view, canonical, explained, opaque, value_of

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d.eE+-]*")


def edits(stored: Assistant, incoming: Assistant) -> tuple[str, ...]:
    """Edit classes between our echo and the harness's, both equal in the lenient view. Sorted, without repeats."""
    found: set[str] = set()
    if (stored.text or "") != (incoming.text or ""):
        found.add("ws_trim")
    found.update(_reasoning(stored.reasoning or "", incoming.reasoning or ""))
    for ours, theirs in zip(stored.calls, incoming.calls, strict=False):
        if ours.id != theirs.id:
            found.add("ids_renamed")
        if ours.arguments != theirs.arguments:
            found.add(_arguments(ours.arguments, theirs.arguments))
    return tuple(sorted(found))


def _reasoning(ours: str, theirs: str) -> set[str]:
    if ours == theirs:
        return set()
    if not theirs:
        return {"reasoning_dropped"}
    if not ours:
        return {"reasoning_added"}
    return {"reasoning_trimmed" if ours.strip() == theirs.strip() else "reasoning_changed"}


def same_calls(stored: Sequence[Item], incoming: Sequence[Item]) -> bool:
    """Whether two item lists with equal lenient keys hold the same calls: the keys cannot tell {} from text that is no
    JSON object."""
    for ours, theirs in zip(stored, incoming, strict=False):
        if isinstance(ours, Assistant) and isinstance(theirs, Assistant):
            pairs = zip(ours.calls, theirs.calls, strict=False)
            if any(_confused(a.arguments, b.arguments) for a, b in pairs):
                return False
    return True


def _confused(ours: str, theirs: str) -> bool:
    """Whether arguments are not the same call though one key stands for both."""
    return not explained(ours, theirs) and arguments_view(ours) == arguments_view(theirs)


def changes(stored: Assistant, incoming: Assistant) -> tuple[str, ...]:
    """How an echo means something else than what was said. Empty when only the spelling differs. Sorted."""
    found: set[str] = set()
    ours, theirs = (stored.text or "").strip(), (incoming.text or "").strip()
    if ours != theirs:
        found.add("text_changed")
    if len(incoming.calls) != len(stored.calls):
        found.add("call_removed" if len(incoming.calls) < len(stored.calls) else "call_added")
    for mine, other in zip(stored.calls, incoming.calls, strict=False):
        if mine.name != other.name:
            found.add("call_renamed")
        elif arguments_view(mine.arguments) != arguments_view(other.arguments) or not explained(
            mine.arguments, other.arguments
        ):
            found.add("args_repaired" if opaque(mine.arguments) else "args_changed")
    # A stream is cut in one place: calls that would have come behind the cut are missing, all of them.
    cut = found == {"text_changed"} or (found == {"text_changed", "call_removed"} and not incoming.calls)
    if cut and ours.startswith(theirs):
        return ("partial_echo",)
    return tuple(sorted(found))


def edits_along(stored: Sequence[Item], incoming: Sequence[Item]) -> tuple[str, ...]:
    """Edit classes over all assistant turns of two item lists with equal lenient keys. Sorted, without repeats."""
    found: set[str] = set()
    for ours, theirs in zip(stored, incoming, strict=False):
        if isinstance(ours, Assistant) and isinstance(theirs, Assistant):
            found.update(edits(ours, theirs))
    return tuple(sorted(found))


def _arguments(ours: str, theirs: str) -> str:
    if opaque(ours):
        return "args_lossy_known"
    if canonical(ours) == EMPTY:
        return "args_empty"  # "", null and {} spelled differently
    if _numbers(ours) != _numbers(theirs):
        return "number_respell"
    if _keys(value_of(ours)) != _keys(value_of(theirs)):
        return "key_order"
    if "\\u" in ours or "\\u" in theirs:
        return "unicode_respell"
    return "json_respell"


def _numbers(text: str) -> list[str]:
    """Spellings of numbers outside strings, sorted: key order is another class."""
    return sorted(_NUMBER.findall(_QUOTED.sub('""', text)))


def _keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [k for key, inner in value.items() for k in (str(key), *_keys(inner))]
    if isinstance(value, list):
        return [k for inner in value for k in _keys(inner)]
    return []
