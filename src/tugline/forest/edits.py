"""What a harness did to an assistant turn that still means the same: named field by field."""

from __future__ import annotations

from tugline.core.items import Assistant, ToolCall
from tugline.forest.canon import canonical, value_of


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
            found.add(_arguments(ours, theirs))
    return tuple(sorted(found))


def _reasoning(ours: str, theirs: str) -> set[str]:
    if ours == theirs:
        return set()
    if not theirs:
        return {"reasoning_dropped"}
    if not ours:
        return {"reasoning_added"}
    return {"reasoning_trimmed" if ours.strip() == theirs.strip() else "reasoning_changed"}


def _arguments(ours: ToolCall, theirs: ToolCall) -> str:
    if canonical(ours.arguments) is None:
        return "args_lossy_known"
    try:
        a, b = value_of(ours.arguments), value_of(theirs.arguments)
    except ValueError:
        return "args_empty"  # "" and {} spelled differently
    if _numbers(ours.arguments) != _numbers(theirs.arguments):
        return "number_respell"
    if list(_keys(a)) != list(_keys(b)):
        return "key_order"
    if "\\u" in ours.arguments or "\\u" in theirs.arguments:
        return "unicode_respell"
    return "json_respell"


def _numbers(text: str) -> list[str]:
    """Spellings of numbers outside strings, in order."""
    out, token, quoted, escaped = [], "", False, False
    for char in text:
        if quoted:
            escaped, quoted = (not escaped and char == "\\"), not (char == '"' and not escaped)
        elif char == '"':
            quoted = True
        elif char in "0123456789+-.eE" and (token or char in "-0123456789"):
            token += char
            continue
        if token:
            out.append(token)
            token = ""
    return sorted([*out, token] if token else out)


def _keys(value: object) -> list[str]:
    if isinstance(value, dict):
        return [k for key, inner in value.items() for k in (str(key), *_keys(inner))]
    if isinstance(value, list):
        return [k for inner in value for k in _keys(inner)]
    return []
