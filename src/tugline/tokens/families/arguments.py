"""Arguments of calls: JSON as it was sampled, or values between tags, typed by the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tugline.core.items import Tool

_BLANK = " \t\r\n"
_SAID = {"true": "true", "True": "true", "false": "false", "False": "false", "null": "null", "None": "null"}
"""Some templates write values as Python prints them."""


class Schemas:
    """The parameters' JSON schemas of the tools offered, decoded at first need."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._specs = {t.name: t.spec for t in tools}
        self._known: dict[str, Mapping[str, Any]] = {}

    def of(self, tool: str) -> Mapping[str, Any]:
        """Parameter name -> schema. Empty when the tool is unknown or says nothing."""
        if tool not in self._known:
            self._known[tool] = _properties(self._specs.get(tool))
        return self._known[tool]


class _Parameters(msgspec.Struct):
    properties: dict[str, Any] = {}


class _Function(msgspec.Struct):
    parameters: _Parameters | None = None


class _Spec(msgspec.Struct):
    function: _Function | None = None


def _properties(spec: str | None) -> Mapping[str, Any]:
    if spec is None:
        return {}
    try:
        function = msgspec.json.decode(spec, type=_Spec).function
    except (msgspec.DecodeError, RecursionError):
        return {}
    return function.parameters.properties if function and function.parameters else {}


def is_json(text: str) -> bool:
    """Whether a text is one JSON value that a harness can read."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def typed(text: str, schema: object) -> str:
    """A value that was written without quotes, as JSON.

    A parameter that is declared as a string is one. Else what reads as JSON of a declared type keeps its characters,
    and everything else is a string; an undeclared parameter takes what JSON it can.
    """
    kinds = _kinds(schema)
    if kinds == {"string"}:
        return quoted(text)
    bare = text.strip()
    said = _SAID.get(bare)
    if said is not None and ("null" if said == "null" else "boolean") in kinds:
        return said
    if not is_json(bare):
        return quoted(text)
    if not kinds or _kind(bare) & kinds:
        return quoted(text) if "string" in kinds and bare.startswith('"') else bare
    return quoted(text) if "string" in kinds else bare


def _kinds(schema: object) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    declared: object = schema.get("type")
    kinds: set[str] = {declared} if isinstance(declared, str) else set(_strings(declared))
    for union in ("anyOf", "oneOf"):
        for branch in schema.get(union) or []:
            kinds |= _kinds(branch)
    if schema.get("nullable"):
        kinds.add("null")
    if not kinds and _strings(schema.get("enum")):
        return {"string"}
    return kinds


def _strings(value: object) -> list[str]:
    """A list of strings as it is; anything else is an empty one."""
    return value if isinstance(value, list) and all(isinstance(v, str) for v in value) else []


def _kind(value: str) -> set[str]:
    """JSON schema's words for the type of a JSON text."""
    match value[:1]:
        case "{":
            return {"object"}
        case "[":
            return {"array"}
        case '"':
            return {"string"}
        case "t" | "f":
            return {"boolean"}
        case "n":
            return {"null"}
    whole = not set(value) & set(".eE")
    return {"integer", "number"} if whole else {"number"}


def quoted(text: str) -> str:
    """Text as a JSON string."""
    return msgspec.json.encode(text).decode()


def object_of(members: Sequence[tuple[str, str]]) -> str | None:
    """A JSON object of keys and JSON values, or None when a key comes twice."""
    if len({key for key, _ in members}) < len(members):
        return None
    return "{" + ", ".join(f"{quoted(key)}: {value}" for key, value in members) + "}"


def end_of_value(text: str, closer: str, at: int, following: str) -> int:
    """Where the closer of a value stands, or -1. A closer inside a value is none: behind a real one comes the next
    parameter, or nothing."""
    while (end := text.find(closer, at)) >= 0:
        rest = skip_blank(text, end + len(closer))
        if rest == len(text) or text.startswith(following, rest):
            return end
        at = end + len(closer)
    return -1


def skip_blank(text: str, at: int) -> int:
    """The next character that is no blank, from `at` on."""
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def is_name(name: str) -> bool:
    """Whether text may be a function's name: one word without brackets or quotes."""
    return bool(name) and not any(c.isspace() or c in "<>{}[]()\"'`" for c in name)


def members_of(arguments: str) -> list[tuple[str, Any]] | None:
    """Keys and values of arguments, to be spelled anew. None when they are no JSON object."""
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    return list(value.items()) if isinstance(value, dict) else None


def written(value: object, *, python: bool = False) -> str:
    """A value as templates write it between tags: strings bare, the rest as JSON. `python`: what is no list or object
    as Python prints it."""
    if isinstance(value, str):
        return value
    if python and not isinstance(value, dict | list):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def tagged_members(arguments: str, around: tuple[str, str, str], *, python: bool = False) -> Iterator[str]:
    """Each argument, with what stands before its key, between key and value, and behind. Arguments that are no object
    come as they are, which no parser will take for a call."""
    members = members_of(arguments)
    if members is None:
        yield arguments
        return
    for key, value in members:
        yield f"{around[0]}{key}{around[1]}{written(value, python=python)}{around[2]}"
