"""Match keys: two rolling hashes over a request's items, exact and lenient.

exact   what a template or model could see, losslessly (null = "" = absent; arguments as their text)
lenient assistant turns by meaning: reasoning left out, text stripped, arguments as typed values, call ids by position;
        tools by name, description and parameters. The views of one conversation in two dialects agree on this key

A turn registers the keys of *the echo of our own reply*, so that losses of our reply parser can never look like an edit
by the harness. Ids are never hashed: they are compared as bytes elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

from tugline.core.items import Assistant, Head, Item, Prefill, System, ToolResult, UserMedia, UserText
from tugline.forest.canon import arguments_view, tool_view

CODEC = b"tugline-key-3"
"""Stored keys are comparable only within one version of this file."""

SIZE = 16

LONG = 1024
"""Bytes of a part beyond which its digest stands for it. Below 2^24: lengths of shorter ones begin with a zero byte."""


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
    lenient = _digest(front + [p for t in head.tools for p in (_b(t.name), tool_view(t.spec))])
    return Chain(exact_root(template_digest, head), lenient, {})


def exact_root(template_digest: bytes, head: Head) -> bytes:
    """The exact key of an empty conversation under a head; far cheaper than the lenient one."""
    front = [CODEC, template_digest, head.template_kwargs.encode()]
    return _digest(front + [p for t in head.tools for p in (_b(t.name), _b(t.spec))])


def run_on(before: bytes, items: Sequence[Item], echo: Assistant) -> bytes | None:
    """The exact key of a turn that answers a request which ends with an assistant turn, where both come back as one;
    None for other requests. `before`: the exact key that `items` stand behind."""
    last = items[-1] if items else None
    if not isinstance(last, Assistant):
        return None
    whole = Assistant(
        (last.text or "") + (echo.text or "") or None,
        (last.reasoning or "") + (echo.reasoning or "") or None,
        (*last.calls, *echo.calls),
    )
    return walk(Chain(before, b"", {}), (*items[:-1], whole))[-1].exact


State = tuple[bytes, bytes, Mapping[str, tuple[bytes, ...]], int, str]
"""The fields of a `Chain`, in order: attaching makes thousands of them and looks at a few."""


def step(chain: Chain, item: Item) -> Chain:
    """The chain one item further. Changes nothing."""
    return walk(chain, (item,))[0]


def walk(chain: Chain, items: Iterable[Item], plain: Iterable[Item] | None = None) -> list[Chain]:
    """Chains behind each item, in order. Linear in the items' text. `plain`: the items as the lenient key is to read
    them, where that is not as they are; assistant turns are read as they are."""
    return [Chain(*state) for state in states(chain, items, plain)]


def states(chain: Chain, items: Iterable[Item], plain: Iterable[Item] | None = None) -> Iterator[State]:
    """What `walk` gives, as plain tuples."""
    calls = dict(chain.calls)
    exact, lenient, turns, prefill = chain.exact, chain.lenient, chain.turns, chain.prefill
    readings = ((item, item) for item in items) if plain is None else zip(items, plain, strict=True)
    for item, read in readings:
        if isinstance(item, Prefill):
            prefill += item.text
            yield exact, lenient, calls, turns, prefill
            continue
        if prefill and isinstance(item, Assistant):
            item = replace(item, text=prefill + (item.text or ""))
        prefill = ""
        exact_view, lenient_view = _views(calls, item)
        if read is not item and not isinstance(item, Assistant):
            lenient_view = _views(calls, read)[1]
        exact = blake2b(exact + exact_view, digest_size=SIZE).digest()
        lenient = blake2b(lenient + lenient_view, digest_size=SIZE).digest()
        if isinstance(item, Assistant):
            calls.update(_places(item, turns))  # an id used again names the newest call
            turns += 1
        elif isinstance(item, ToolResult) and len(calls.get(item.call_id, ())) > 1:
            calls[item.call_id] = calls[item.call_id][1:]  # calls that share an id are answered in order
        yield exact, lenient, calls, turns, ""


def _places(item: Assistant, turn: int) -> dict[str, tuple[bytes, ...]]:
    places: dict[str, list[bytes]] = {}
    for position, call in enumerate(item.calls):
        places.setdefault(call.id, []).append(b"%d.%d" % (turn, position))
    return {call_id: tuple(found) for call_id, found in places.items()}


def _views(calls: Mapping[str, tuple[bytes, ...]], item: Item) -> tuple[bytes, bytes]:
    """(exact view, lenient view): a letter for the kind and the framed parts. What both share is framed once."""
    if isinstance(item, Assistant):
        return _assistant(item)
    if isinstance(item, ToolResult):
        media = (part for m in item.media for part in (m.media_type, m.digest))
        text = b"".join(map(_part, (item.text, *media)))
        places = calls.get(item.call_id)
        place = _framed(places[0]) if places else b"?" + _part(item.call_id)
        return b"R" + _part(item.call_id) + _part(item.name or "") + text, b"R" + place + text
    if isinstance(item, System):
        text = _part(item.text)
        return b"S" + _part(item.role) + text, b"S" + text
    if isinstance(item, UserText):
        view = (b"J" if item.joined else b"U") + _part(item.text)
    elif isinstance(item, UserMedia):
        view = (b"N" if item.joined else b"M") + _part(item.media_type) + _part(item.digest)
    else:
        raise TypeError(f"{type(item).__name__} has no view of its own")
    return view, view


def _assistant(item: Assistant) -> tuple[bytes, bytes]:
    text, bare = item.text or "", (item.text or "").strip()
    shown = _part(text)
    exact = [b"A", shown, _part(item.reasoning or "")]
    lenient = [b"A", shown if len(bare) == len(text) else _part(bare)]
    for call in item.calls:
        name = _part(call.name)
        exact += (_part(call.id), name, _part(call.arguments))
        lenient += (name, _framed(arguments_view(call.arguments)))
    return b"".join(exact), b"".join(lenient)


def _part(text: str) -> bytes:
    """A text with its length in front."""
    return _framed(_b(text))


def _framed(data: bytes) -> bytes:
    """Bytes with their length in front; of long ones a digest, so that both chains need not hash them."""
    if len(data) > LONG:
        return b"#" + len(data).to_bytes(8, "little") + blake2b(data, digest_size=32).digest()
    return len(data).to_bytes(4, "big") + data  # begins with a zero byte


def _digest(parts: list[bytes]) -> bytes:
    return blake2b(b"".join(map(_framed, parts)), digest_size=SIZE).digest()


def _b(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
