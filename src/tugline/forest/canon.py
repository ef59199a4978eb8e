"""Canonical JSON of tool arguments, as the lenient view sees them.

Harnesses re-spell arguments: JavaScript turns 1.0 into 1, 1e3 into 1000, rounds integers beyond 2^53, moves keys that
look like integers to the front, decodes escapes. Two spellings are the same call if they are the same typed value with
numbers read as IEEE doubles and keys in any order. Text that is not JSON has no value: None.

Text that is no JSON object cannot be echoed as an object: harnesses put {} in its place, or quote it. The hash of both
sides is therefore that of {}, and `explained` tells such an echo from another call that happens to share the hash.
"""

from __future__ import annotations

import json
from math import isinf
from typing import Any

import msgspec

MAX_DEPTH = 64
"""Deeper arguments are compared as text: a hostile nesting must not cost a stack."""


_STRING = b"s"

EMPTY = b"{}"
"""View of absent arguments, and of arguments that are no JSON object."""


class _NotJson(Exception):
    pass


def _refuse(_name: str) -> float:
    raise _NotJson  # NaN and Infinity are not JSON


def value_of(text: str) -> Any:
    """The typed value of JSON text with all numbers as floats; raises ValueError for anything that is not JSON."""
    try:
        return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=_refuse)
    except (_NotJson, RecursionError) as err:
        raise ValueError("not JSON") from err


def _number(text: str) -> float:
    return float(text)  # beyond the doubles: infinity


def canonical(text: str) -> bytes | None:
    """Canonical bytes of JSON text, or None if it is not JSON (or nests deeper than MAX_DEPTH)."""
    if not text.strip():
        return EMPTY  # an absent argument object is an empty one
    try:
        value = _read(text)
    except ValueError:
        return None
    if value is None or value == {}:
        return EMPTY
    out: list[bytes] = []
    return b"".join(out) if _write(value, out, 0) else None


def _read(text: str) -> Any:
    """As `value_of`, several times faster; integers stay integers."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return value_of(text)  # knows half surrogates and numbers beyond the doubles


def arguments_view(text: str) -> bytes:
    """Lenient view of a call's arguments."""
    value = canonical(text)
    return EMPTY if value is None or value.startswith(_STRING) else value


def tool_view(spec: str) -> bytes:
    """Lenient view of a tool's declaration: name, description and parameters as values, whatever stands beside them.
    Text that is no such declaration is its own view."""
    try:
        value = value_of(spec)
        function = value.get("function", value)
        view = [function.get("name"), function.get("description") or "", function.get("parameters") or {}]
    except (ValueError, AttributeError):
        return spec.encode("utf-8", "surrogatepass")
    out: list[bytes] = []
    return b"".join(out) if _write(view, out, 0) else spec.encode("utf-8", "surrogatepass")


def opaque(text: str) -> bool:
    """Whether arguments are no JSON value that a harness could echo as an object."""
    value = canonical(text)
    return value is None or value.startswith(_STRING)


def explained(ours: str, theirs: str) -> bool:
    """Whether arguments with equal lenient views are the same call: `theirs` is what a harness makes of `ours`."""
    if ours == theirs:
        return True
    value = canonical(theirs)
    if not opaque(ours):
        return value == canonical(ours)
    return value == EMPTY or value == _text(ours)


def _write(value: Any, out: list[bytes], depth: int) -> bool:
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, dict):
        out.append(b"{")
        for key in sorted(value):
            out.append(_text(key) + b":")
            if not _write(value[key], out, depth + 1):
                return False
            out.append(b",")
        out.append(b"}")
    elif isinstance(value, list):
        out.append(b"[")
        for item in value:
            if not _write(item, out, depth + 1):
                return False
            out.append(b",")
        out.append(b"]")
    elif isinstance(value, str):
        out.append(_text(value))
    elif value is None or isinstance(value, bool):
        out.append(b"n" if value is None else b"t" if value else b"f")
    else:
        out.append(_spelled(value))
    return True


def _spelled(value: float) -> bytes:
    """A number as a double."""
    try:
        double = float(value) + 0.0  # makes -0.0 equal to 0.0, as JSON.stringify does
    except OverflowError:
        return b"n"
    return b"n" if isinf(double) else repr(double).encode()  # JSON.stringify knows no infinity


def _text(value: str) -> bytes:
    data = value.encode("utf-8", "surrogatepass")
    return b"%s%d:" % (_STRING, len(data)) + data
