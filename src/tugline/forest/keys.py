"""Match keys: two rolling hashes over a request's items, exact and lenient.

exact   what a template or model could see, losslessly (null = "" = absent; arguments as their text)
lenient assistant turns by meaning: reasoning left out, text stripped, arguments as typed values, call ids by position;
        tools by name, description and parameters. The views of one conversation in two dialects agree on this key

A turn registers the keys of *the echo of our own reply*, so that losses of our reply parser can never look like an edit
by the harness. Ids are never hashed: they are compared as bytes elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from tugline.core.items import Assistant, Head, Item, Prefill, System, ToolResult, UserMedia, UserText
from tugline.forest.canon import arguments_view, tool_view

CODEC = b"tugline-key-2"
"""Stored keys are comparable only within one version of this file."""

SIZE = 16


@dataclass(frozen=True, slots=True)
class Chain:
    """Rolling state behind some number of items. `calls` maps the wire ids of calls so far to their places in order,
    (turn, position); more than one while several calls of a turn share an id, e.g. none, and wait for their results.

    All chains of one walk share one `calls`, which is complete behind the last item: only the last can be continued.
    """

    exact: bytes
    lenient: bytes
    calls: Mapping[str, tuple[bytes, ...]]
    turns: int = 0
    prefill: str = ""
    """Text that the next assistant turn begins with: clients echo both as one."""


def start(template_digest: bytes, head: Head) -> Chain:
    """The chain of an empty conversation under a head."""
    front = [CODEC, template_digest, head.template_kwargs.encode()]
    lenient = _digest(b"", b"head", front + [p for t in head.tools for p in (_b(t.name), tool_view(t.spec))])
    return Chain(exact_root(template_digest, head), lenient, {})


def exact_root(template_digest: bytes, head: Head) -> bytes:
    """The exact key of an empty conversation under a head; far cheaper than the lenient one."""
    front = [CODEC, template_digest, head.template_kwargs.encode()]
    return _digest(b"", b"head", front + [p for t in head.tools for p in (_b(t.name), _b(t.spec))])


def step(chain: Chain, item: Item) -> Chain:
    """The chain one item further. Changes nothing."""
    return walk(chain, (item,))[0]


def walk(chain: Chain, items: Iterable[Item], plain: Iterable[Item] | None = None) -> list[Chain]:
    """Chains behind each item, in order. Linear in the items' text. `plain`: the items as the lenient key is to read
    them, where that is not as they are; assistant turns are read as they are."""
    calls = dict(chain.calls)
    exact, lenient, turns, prefill = chain.exact, chain.lenient, chain.turns, chain.prefill
    out = []
    readings = ((item, item) for item in items) if plain is None else zip(items, plain, strict=True)
    for item, read in readings:
        if isinstance(item, Prefill):
            prefill += item.text
            out.append(Chain(exact, lenient, calls, turns, prefill))
            continue
        if prefill and isinstance(item, Assistant):
            item = replace(item, text=prefill + (item.text or ""))
        prefill = ""
        kind, exact_view, lenient_view = _views(calls, item)
        if read is not item and not isinstance(item, Assistant):
            lenient_view = _views(calls, read)[2]
        exact, lenient = _digest(exact, kind, exact_view), _digest(lenient, kind, lenient_view)
        if isinstance(item, Assistant):
            calls.update(_places(item, turns))  # an id used again names the newest call
            turns += 1
        elif isinstance(item, ToolResult) and len(calls.get(item.call_id, ())) > 1:
            calls[item.call_id] = calls[item.call_id][1:]  # calls that share an id are answered in order
        out.append(Chain(exact, lenient, calls, turns))
    return out


def _places(item: Assistant, turn: int) -> dict[str, tuple[bytes, ...]]:
    places: dict[str, list[bytes]] = {}
    for position, call in enumerate(item.calls):
        places.setdefault(call.id, []).append(b"%d.%d" % (turn, position))
    return {call_id: tuple(found) for call_id, found in places.items()}


def _views(calls: Mapping[str, tuple[bytes, ...]], item: Item) -> tuple[bytes, list[bytes], list[bytes]]:
    """(kind, exact view, lenient view)."""
    if isinstance(item, Assistant):
        return b"assistant", _assistant_exact(item), _assistant_lenient(item)
    if isinstance(item, ToolResult):
        text = _b(item.text)
        places = calls.get(item.call_id)
        place = places[0] if places else b"?" + _b(item.call_id)
        media = [_b(part) for m in item.media for part in (m.media_type, m.digest)]
        return b"result", [_b(item.call_id), text, _b(item.name or ""), *media], [place, text, *media]
    if isinstance(item, System):
        return b"System", [_b(item.role), _b(item.text)], [b"system", _b(item.text)]
    if isinstance(item, UserText):
        view = [b"joined" if item.joined else b"", _b(item.text)]
    elif isinstance(item, UserMedia):
        view = [b"joined" if item.joined else b"", _b(item.media_type), _b(item.digest)]
    else:
        raise TypeError(f"{type(item).__name__} has no view of its own")
    return type(item).__name__.encode(), view, view


def _assistant_exact(item: Assistant) -> list[bytes]:
    parts = [_b(item.text or ""), _b(item.reasoning or "")]
    for call in item.calls:
        parts += [_b(call.id), _b(call.name), _b(call.arguments)]
    return parts


def _assistant_lenient(item: Assistant) -> list[bytes]:
    parts = [_b((item.text or "").strip())]
    for call in item.calls:
        parts += [_b(call.name), arguments_view(call.arguments)]
    return parts


def _digest(before: bytes, kind: bytes, parts: list[bytes]) -> bytes:
    framed = [before, b"%d:%b" % (len(kind), kind)]
    for part in parts:
        framed += (b"%d:" % len(part), part)
    return blake2b(b"".join(framed), digest_size=SIZE).digest()


def _b(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
