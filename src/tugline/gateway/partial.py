"""A turn that its harness echoes only as far as a broken stream had shown it: the prompt keeps the ids of that part.

The harness's own words say what had arrived. The longest beginning of the sample that says exactly this, and opens no
call, stays as it was sampled; behind it the turn is closed as one that was cut. Where no beginning says it, nothing is
kept and the words are rendered, as with any edit that is honoured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tugline.core.columns import Ids, concat, count, last, take
from tugline.core.items import Assistant, Request
from tugline.core.turn import Partial
from tugline.forest.attach import Attachment
from tugline.forest.edits import edits
from tugline.forest.forest import Forest
from tugline.tokens.model import BridgeRefused, ChatModel, Parsed

WINDOW = 32
"""Ids looked at before the place where the sample says more than the echo: marks, blanks, halves of characters. Each is
a parse of all before it, so no more are looked at than it takes."""

SPLIT = 8
"""Characters by which a text may shrink as it goes on: what parts of a character look like, before it is whole."""

REPLACED = frozenset({"edit_honoured", "call_removed", "foreign_assistant"})
"""What the same request counts where nothing is kept."""


@dataclass(frozen=True, slots=True)
class Kept:
    """prompt = full(parent)[:keep] ++ bridge. `partial`: which part of the bridge was sampled, and for which turn."""

    keep: int
    bridge: Ids
    partial: Partial
    drift: tuple[str, ...]


def keep_delivered(forest: Forest, request: Request, attached: Attachment, model: ChatModel) -> Kept | None:
    """The prompt of a request that holds the beginning of a turn, or None where its words have to be rendered. Parses
    beginnings of that turn: a dozen, then one to three near the place, seldom all of them."""
    cut = attached.cut
    if cut is None:
        return None
    origin, echo = cut.origin, attached.tail[cut.index]
    assert isinstance(echo, Assistant)
    before = forest.prompt(origin.turn_id)

    def shown(k: int) -> Parsed:
        return model.parse(before, take(origin.sampled, 0, k), "abort", request.head.tools)

    n = longest(shown, count(origin.sampled) - (origin.finish == "stop"), echo)
    if n == 0:
        return None
    spelled = edits(shown(n).assistant, echo)
    if cut.honoured.intersection(spelled):
        return None
    history = (*(forest.history(origin.parent) if origin.parent else ()), *origin.items, echo)
    sampled = take(origin.sampled, 0, n)
    rest = attached.tail[cut.index + 1 :]
    try:
        bridge = model.bridge(
            request.head, history, rest, last_id=last(sampled), finish="abort", sampled=sampled, prompt=before
        )
    except BridgeRefused:
        return None
    kept = take(sampled, 0, n - bridge.drop)
    partial = Partial(origin.turn_id, count(origin.bridge), count(kept), cut.train)
    said = {*attached.drift, *cut.drift, *spelled, "edit_retained", "partial_echo"} - REPLACED
    return Kept(
        origin.keep,
        concat([origin.bridge, kept, bridge.ids]),
        partial,
        (*sorted(said), *(reason for reason in bridge.drift if reason not in said)),
    )


def longest(shown: Callable[[int], Parsed], limit: int, echo: Assistant) -> int:
    """Ids of the longest beginning, of at most `limit`, that says what `echo` says: verbatim, else but for blanks at
    the ends. 0 if none does."""
    wanted = _measure(echo)
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        come = _measure(shown(middle).assistant)
        less = come[0] <= wanted[0] if echo.reasoning is None else come <= wanted
        low, high = (middle, high) if less else (low, middle - 1)
    found = 0
    for k in range(low, max(0, low - WINDOW), -1):
        part = shown(k)
        said = part.assistant
        if _says(part, echo):
            if said.text == echo.text and echo.reasoning in (None, said.reasoning):
                return k
            found = found or k
        elif _length(said, echo) + SPLIT < _length(echo, echo):
            break  # it only becomes shorter
    return found


def _length(said: Assistant, echo: Assistant) -> int:
    """Characters of what is compared with `echo`."""
    return len((said.text or "").strip()) + (0 if echo.reasoning is None else len((said.reasoning or "").strip()))


def _measure(said: Assistant) -> tuple[int, int]:
    """How far a turn has come: characters of text, then of reasoning, which comes first."""
    return len((said.text or "").strip()), len((said.reasoning or "").strip())


def _says(part: Parsed, echo: Assistant) -> bool:
    said = part.assistant
    if said.calls or "tool_call_cut" in part.drift or (said.text or "").strip() != (echo.text or "").strip():
        return False
    return echo.reasoning is None or (said.reasoning or "").strip() == echo.reasoning.strip()
