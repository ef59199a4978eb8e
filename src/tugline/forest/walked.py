"""The requests that came last, and the keys behind them.

An agent resends its whole conversation and adds a few items. Comparing items is ten times cheaper than hashing them, so
hashing goes on behind the longest such request that a new one begins with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from tugline.core.items import Item
from tugline.forest import keys

KEPT = 8
"""Requests of one session that are remembered; a conversation that only grows needs one, its helpers one each."""


@dataclass(frozen=True, slots=True)
class Walk:
    """The items of a request and the chain behind the last of them, which can be continued."""

    root: bytes
    """Exact key of the empty conversation under the request's head."""
    items: tuple[Item, ...]
    end: keys.Chain

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
        """Remember a request."""
        with self._lock:
            self._walks[walk.end.exact] = walk
            self._walks.move_to_end(walk.end.exact)
            if len(self._walks) > KEPT:
                self._walks.popitem(last=False)
