"""Nothing may be dropped silently: every string of a request's wire form is in its items, or its place is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from tugline.core.items import Assistant, Item, Prefill, Request, System, ToolResult, UserMedia, UserText
from tugline.dialects.wire import inline_media, linked_media

WORDS = frozenset({"type", "role", "status", "detail", "media_type", "mimeType", "mime_type", "format"})
"""Keys whose strings say what an item is; the items are of that kind."""
STRUCTURE = frozenset({"input[].id", "messages[].content[].signature", "contents[].parts[].thoughtSignature"})
"""Ids of Responses items say which of them are one turn. Signatures are no words: ours are read, others are named."""
SPOKEN = ("messages", "system", "input", "instructions", "contents", "systemInstruction", "system_instruction", "tools")


def unexplained(body: bytes, request: Request) -> list[str]:
    """Paths of strings that are in no item, no tool and under no ignored name."""
    value = msgspec.json.decode(body)
    if not isinstance(value, dict):
        return []
    held = "\0".join(_held(request))
    digests = {m.digest for item in request.items for m in _media(item)}
    return [
        f"{path}: {text[:60]!r}"
        for key in SPOKEN
        if key in value
        for path, text in _leaves(value[key], key)
        if not _found(path, text, held, digests) and not _named(path, value, request.ignored)
    ]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """(generic path, string) of every string, e.g. `messages[].content[].text`."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, f"{path}[]")


def _held(request: Request) -> Iterator[str]:
    for tool in request.head.tools:
        yield from (tool.name, tool.spec, tool.namespace or "")
    for item in request.items:
        match item:
            case System() | UserText() | Prefill():
                yield item.text
            case ToolResult():
                yield from (item.text, item.call_id, item.name or "")
            case Assistant():
                yield from (item.text or "", item.reasoning or "")
                for call in item.calls:
                    yield from (call.id, call.name, call.arguments)


def _media(item: Item) -> tuple[UserMedia, ...]:
    if isinstance(item, ToolResult):
        return item.media
    return (item,) if isinstance(item, UserMedia) else ()


def _found(path: str, text: str, held: str, digests: set[str]) -> bool:
    if not text or path in STRUCTURE or path.rpartition(".")[2] in WORDS or text in held:
        return True
    escaped = (
        json.dumps(text, ensure_ascii=False)[1:-1],
        json.dumps(text)[1:-1],
        msgspec.json.encode(text)[1:-1].decode(),
    )
    if any(form in held for form in escaped):
        return True
    media = (inline_media("", text, joined=False), linked_media("", text, joined=False))
    return any(m.digest in digests for m in media)


def _named(path: str, body: dict[str, Any], ignored: tuple[str, ...]) -> bool:
    """Whether an ignored name is this place, a part around it, or something dropped from there."""
    return any(path == name or path.startswith((f"{name}.", f"{name}[")) for name in map(_place, ignored))


def _place(name: str) -> str:
    """`tools[]:web_search` -> `tools[]`: what was dropped there had that type."""
    return name.partition(":")[0]
