"""Strategy `merged`: conversations found again among calls that were captured one by one, with returned ids only (L2).

Such a call is a root: its prompt was rendered anew. Where that prompt begins with all ids of an earlier call, prompt
and sample, it does go on from that call, and one row can train both. This is decided by the ids alone and never by
texts: at the first id that differs the row is split. A last sampled stop may be replaced by another token, as between
turns of a tree; it is then not trained and counted as stop_trim. No call is dropped, no id is changed.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tugline.core.columns import Ids, common_prefix, concat, count, take
from tugline.core.errors import VerifyError
from tugline.core.turn import Turn


def strategy_for(turns: Sequence[Turn]) -> Literal["exact", "merged"]:
    """How the rows of a session are built: merged where a turn of the policy was captured with returned ids only."""
    return "merged" if any(turn.level == "L2" and not turn.engine for turn in turns) else "exact"


def linked(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns with each root placed behind the earlier call that its prompt extends furthest, if there is one.

    Turns of two engines are never joined. Of calls with equal ids the newest counts; one that needs no stop replaced
    counts before one that does. Turns that have a parent stay as they are. Deterministic. Memory: the ids of all turns,
    twice. Raises VerifyError when a parent is missing.
    """
    by_id: dict[str, Turn] = {}
    known: dict[str, _Known] = {}
    full: dict[str, Ids] = {}
    for turn in turns:
        known_here = known.setdefault(turn.engine, _Known())
        placed = known_here.placed(turn) if turn.parent is None else turn
        by_id[turn.turn_id] = placed
        if placed.parent is not None and placed.parent not in full:
            raise VerifyError(f"the parent of turn {turn.turn_id} is missing")
        before = full[placed.parent] if placed.parent is not None else Ids(b"")
        whole = concat([take(before, 0, placed.keep), placed.bridge, placed.sampled])
        full[turn.turn_id] = whole
        known_here.add(placed, whole)
    return tuple(by_id.values())


class _Known:
    """Calls that others may go on from, in the byte order of their ids: what a prompt extends stands right before it,
    but for calls that share a beginning with it and then differ."""

    def __init__(self) -> None:
        self._sorted: list[Ids] = []
        self._ends: dict[Ids, tuple[str, bool]] = {}
        """Ids that a prompt may begin with -> the turn, and whether they are all of its ids."""

    def add(self, turn: Turn, full: Ids) -> None:
        """A call that ended with a stop may be gone on from with or without it, if it said anything else."""
        self._put(full, turn.turn_id, whole=True)
        if turn.finish == "stop" and count(turn.sampled) > 1:
            self._put(take(full, 0, count(full) - 1), turn.turn_id, whole=False)

    def _put(self, beginning: Ids, turn_id: str, *, whole: bool) -> None:
        known = self._ends.get(beginning)
        if known is None:
            insort(self._sorted, beginning)
        if known is None or whole or not known[1]:
            self._ends[beginning] = turn_id, whole

    def placed(self, root: Turn) -> Turn:
        """The root as a child of the call that its prompt extends furthest."""
        found = self._longest(root.bridge)
        if found is None:
            return root
        parent, keep = found
        return replace(root, parent=parent, keep=keep, bridge=take(root.bridge, keep), partial=None)

    def _longest(self, prompt: Ids) -> tuple[str, int] | None:
        """The longest known beginning of a prompt: each step halves what is left or shortens the prompt."""
        wanted = prompt
        while True:
            at = bisect_right(self._sorted, wanted) - 1
            if at < 0:
                return None
            near = self._sorted[at]
            if wanted.startswith(near):
                return (self._ends[near][0], count(near)) if near else None
            wanted = take(wanted, 0, common_prefix(near, wanted))
