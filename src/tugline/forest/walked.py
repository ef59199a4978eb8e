"""The requests that came last, and the keys behind them.

An agent resends its whole conversation and adds a few items. Comparing items is ten times cheaper than hashing them, so
hashing goes on behind the longest such request that a new one begins with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from sys import getsizeof
from threading import Lock

from tugline.core.items import Assistant, Item, ToolResult, UserMedia
from tugline.forest import keys

KEPT = 8
"""Requests of one session that are remembered; a conversation that only grows needs one, its helpers one each."""

ROOM = 16 << 20
"""Bytes that they may take in all: requests are remembered before it is known whether they are ever answered. What is
longer than this is hashed whole each time."""

BARE = 100
"""Bytes of an item or a call beside its texts: its object and a place in a tuple."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The items of a request and the chain behind the last of them, which can be continued."""

    root: bytes
    """Exact key of the empty conversation under the request's head."""
    items: tuple[Item, ...]
    end: keys.Chain
    size: int
    """Bytes of the items, see `weight`."""

    def begins(self, root: bytes, items: Sequence[Item]) -> bool:
        """Whether the items are these and more."""
        n = len(self.items)
        if not 0 < n < len(items) or self.root != root or self.items[-1] != items[n - 1]:
            return False
        return self.items == items[:n]


class Walked:
    """Of one session. Holds each item once: what a request repeats is kept as it came first."""

    def __init__(self) -> None:
        self._walks: OrderedDict[bytes, Walk] = OrderedDict()
        self._lock = Lock()

    def longest(self, root: bytes, items: tuple[Item, ...]) -> Walk | None:
        """The longest request that these items begin with."""
        with self._lock:
            walks = list(self._walks.values())
        walks.sort(key=lambda walk: len(walk.items), reverse=True)
        return next((walk for walk in walks if walk.begins(root, items)), None)

    def add(self, walk: Walk) -> None:
        """Remember a request, if there is room for it, and forget the oldest that there is none for any more."""
        if walk.size > ROOM:
            return
        with self._lock:
            self._walks[walk.end.exact] = walk
            self._walks.move_to_end(walk.end.exact)
            held = sum(known.size for known in self._walks.values())
            while len(self._walks) > KEPT or held > ROOM:
                held -= self._walks.popitem(last=False)[1].size


def weight(items: Sequence[Item]) -> int:
    """Bytes that items take, shared or not: one emoji makes a text four times as large."""
    return sum(map(_weight, items))


def _weight(item: Item) -> int:
    if isinstance(item, Assistant):
        calls = sum(getsizeof(c.id) + getsizeof(c.name) + getsizeof(c.arguments) + BARE for c in item.calls)
        return getsizeof(item.text) + getsizeof(item.reasoning) + calls + BARE
    if isinstance(item, ToolResult):
        return getsizeof(item.text) + getsizeof(item.call_id) + getsizeof(item.name) + weight(item.media) + BARE
    if isinstance(item, UserMedia):
        return getsizeof(item.media_type) + getsizeof(item.digest) + BARE
    return getsizeof(item.text) + BARE
