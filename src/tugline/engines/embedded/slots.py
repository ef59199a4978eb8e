"""Which slot of the key-value cache serves which context. Pure bookkeeping: no tensors.

A slot holds the keys and values of exactly the tokens in `ids`, computed with the weights of `version`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tugline.core.columns import WIDTH, Ids, common_prefix, count, take

TAINTED = -1
"""Version of a slot whose keys and values come from more than one version: nobody may build on it."""
_SHORT_TAIL = 32
"""Tokens of another branch that are given up rather than copying the rest to a free slot."""


@dataclass(slots=True, eq=False)
class Slot:
    """One context."""

    index: int
    ids: bytearray
    version: int = TAINTED
    session: str | None = None
    """Whose context this is; None when that session has ended or the slot was never used."""
    busy: bool = False
    used: int = 0
    """Turn count at last use, for eviction."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Use `slot`. Its first `keep` tokens must be copied from slot `source`; None: they are there."""

    slot: Slot
    keep: int
    source: int | None


@dataclass(frozen=True, slots=True)
class Segment:
    """`tokens` of the context in `slot`, at positions start, start + 1, ...: part of one forward."""

    slot: int
    start: int
    tokens: Ids


class SlotTable:
    """All slots of an engine."""

    def __init__(self, size: int) -> None:
        self._slots = [Slot(i, bytearray()) for i in range(size)]
        self._tick = 0

    def best_prefix(self, prompt: Ids, version: int) -> tuple[Slot | None, int]:
        """The slot that shares most tokens with `prompt`, and how many.

        At most all but the last one count: that one must run through the model to give the next token's distribution.
        """
        limit = count(prompt) - 1
        best, keep = None, 0
        for slot in self._slots:
            if slot.version != version or not slot.ids:
                continue
            shared = min(limit, common_prefix(prompt, Ids(bytes(slot.ids))))
            if shared > keep or (shared == keep and best is not None and best.busy and not slot.busy):
                best, keep = slot, shared
        return best, keep

    def place(self, prompt: Ids, session: str, version: int) -> Placement | None:
        """Take a slot for a new context, or None when all are busy. The slot's ids are then the kept ones."""
        free = [s for s in self._slots if not s.busy]
        if not free:
            return None
        best, keep = self.best_prefix(prompt, version)
        victim = min(free, key=lambda s: (bool(s.ids), s.session is not None, s.used))
        if best is not None and not best.busy and self._in_place(best, keep, session, victim):
            victim = best
        source = best.index if best is not None and best is not victim and keep else None
        self._tick += 1
        victim.ids[:] = take(prompt, 0, keep)
        victim.version, victim.session, victim.busy, victim.used = version, session, True, self._tick
        return Placement(victim, keep, source)

    def give_back(self, slot: Slot) -> None:
        """The generation is over; its context stays for the session's next turn."""
        self._tick += 1
        slot.busy, slot.used = False, self._tick

    def release(self, session: str) -> None:
        """The session has ended: its slots go first when one is needed."""
        for slot in self._slots:
            if slot.session == session:
                slot.session = None

    @staticmethod
    def _in_place(best: Slot, keep: int, session: str, victim: Slot) -> bool:
        lost = len(best.ids) // WIDTH - keep
        if lost <= _SHORT_TAIL:
            return best.session == session or best.session is None or lost == 0
        worth = victim.session is not None  # copying would throw out a living context
        return best.session is None or (best.session == session and worth)
