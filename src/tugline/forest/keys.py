"""Match keys: two rolling hashes over a request's items, exact and lenient.

exact   what a template or model could see, losslessly (null = "" = absent; arguments as their text)
lenient assistant turns by meaning: reasoning left out, text stripped, arguments as typed values, call ids by position

A turn registers the keys of *the echo of our own reply*, so that losses of our reply parser can never look like an edit
by the harness. Ids are never hashed: they are compared as bytes elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from tugline.core.items import Assistant, Head, Item, Prefill, System, ToolCall, ToolResult, UserMedia, UserText
from tugline.forest.canon import canonical

CODEC = b"tugline-key-1"
"""Stored keys are comparable only within one version of this file."""

SIZE = 16

INVALID = b"{}"
"""Arguments that are not JSON: harnesses replace them by an empty object, or quote them; as a value they are that."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Rolling state behind some number of items. `calls` maps the wire ids of calls so far to (turn, position)."""

    exact: bytes
    lenient: bytes
    calls: dict[str, bytes]
    turns: int = 0


def start(template_digest: bytes, head: Head) -> Chain:
    """The chain of an empty conversation under a head."""
    parts = [CODEC, template_digest, head.template_kwargs.encode()]
    for tool in head.tools:
        parts += [tool.name.encode("utf-8", "surrogatepass"), tool.spec.encode("utf-8", "surrogatepass")]
    root = _digest(b"", b"head", parts)
    return Chain(root, root, {})


def step(chain: Chain, item: Item) -> Chain:
    """The chain one item further. `calls` is shared and only ever grows for ids not seen before on this walk."""
    kind, exact, lenient = _views(chain, item)
    made = Chain(
        _digest(chain.exact, kind, exact),
        _digest(chain.lenient, kind, lenient),
        chain.calls,
        chain.turns,
    )
    if isinstance(item, Assistant):
        calls = dict(chain.calls)
        for position, call in enumerate(item.calls):
            calls[call.id] = b"%d.%d" % (chain.turns, position)
        return Chain(made.exact, made.lenient, calls, chain.turns + 1)
    return made


def walk(chain: Chain, items: Iterable[Item]) -> list[Chain]:
    """Chains behind each item, in order."""
    out = []
    for item in items:
        chain = step(chain, item)
        out.append(chain)
    return out


def _views(chain: Chain, item: Item) -> tuple[bytes, list[bytes], list[bytes]]:
    """(kind, exact view, lenient view)."""
    if isinstance(item, Assistant):
        return b"assistant", _assistant_exact(item), _assistant_lenient(item)
    if isinstance(item, ToolResult):
        text = _b(item.text)
        place = chain.calls.get(item.call_id, b"?" + _b(item.call_id))
        return b"result", [_b(item.call_id), text], [place, text]
    if isinstance(item, System):
        view = [b"system", _b(item.text)]
    elif isinstance(item, UserText):
        view = [b"joined" if item.joined else b"", _b(item.text)]
    elif isinstance(item, UserMedia):
        view = [b"joined" if item.joined else b"", _b(item.media_type), _b(item.digest)]
    else:
        assert isinstance(item, Prefill)
        view = [_b(item.text)]
    return type(item).__name__.encode(), view, view


def _assistant_exact(item: Assistant) -> list[bytes]:
    parts = [_b(item.text or ""), _b(item.reasoning or "")]
    for call in item.calls:
        parts += [_b(call.id), _b(call.name), _b(call.arguments)]
    return parts


def _assistant_lenient(item: Assistant) -> list[bytes]:
    parts = [_b((item.text or "").strip())]
    for call in item.calls:
        parts += [_b(call.name), arguments_view(call)]
    return parts


def arguments_view(call: ToolCall) -> bytes:
    """Lenient view of a call's arguments."""
    return canonical(call.arguments) or INVALID


def _digest(before: bytes, kind: bytes, parts: list[bytes]) -> bytes:
    hasher = blake2b(before, digest_size=SIZE)
    hasher.update(b"%d:" % len(kind) + kind)
    for part in parts:
        hasher.update(b"%d:" % len(part))
        hasher.update(part)
    return hasher.digest()


def _b(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
