"""Proof that what a bridge holds of another turn's sample is what the engine sampled for that turn."""

from __future__ import annotations

from tugline.core.columns import Ids, common_prefix, count, take
from tugline.core.contracts import JournalEntry
from tugline.core.turn import Turn
from tugline.trajectory.verify import Finding


def verify_partial(turn: Turn, origin: Turn | None, entry: JournalEntry | None) -> list[Finding]:
    """Compare a turn's `partial` with the turn that it came from and that turn's `entry` in the engine's journal: the
    same prompt in front, then the first ids of its sample. Nothing to say of a turn without one."""
    part = turn.partial
    if part is None:
        return []

    def add(position: int | None, message: str) -> list[Finding]:
        return [Finding("partial_ids", turn.session_id, None, turn.turn_id, None, position, message)]

    if origin is None or origin.session_id != turn.session_id:
        return add(None, f"holds the beginning of turn {part.turn_id}, which is not stored")
    if (origin.parent, origin.keep, origin.engine) != (turn.parent, turn.keep, turn.engine):
        return add(None, f"holds the beginning of turn {part.turn_id}, which answered another prompt")
    if not 0 < part.n <= count(origin.sampled) or part.at != count(origin.bridge):
        return add(part.at, f"holds {part.n} ids of turn {part.turn_id} at {part.at}, which cannot be")
    expected = Ids(origin.bridge + take(origin.sampled if entry is None else entry.ids, 0, part.n))
    at = common_prefix(turn.bridge, expected)
    if at < part.at + part.n:
        return add(
            turn.keep + at, f"prompt id {turn.keep + at} is not what turn {part.turn_id} was sampled on, or sampled"
        )
    return []
