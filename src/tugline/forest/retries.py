"""Is an identical request a retry, or a wish for another sample? Delivery decides, not headers.

Clients re-send byte-identical bodies with a retry count of 0 after a broken stream, and also on purpose after a
delivered reply; only what became of the first answer tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Fresh:
    """Sample anew (a sibling if the same request was answered before)."""

    resample: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """The stored reply of this turn never reached its client: send it again, sample nothing."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class Join:
    """The same request is running and its client has left: wait for that generation."""

    call_id: str


Decision: TypeAlias = Fresh | Replay | Join


@dataclass(slots=True)
class _Entry:
    running: str | None = None
    abandoned: bool = False
    undelivered: str | None = None
    delivered: bool = False


class RetryBook:
    """What became of each request fingerprint of one session."""

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry] = {}

    def decide(self, fingerprint: bytes) -> Decision:
        """What to do with a request. Changes nothing."""
        entry = self._entries.get(fingerprint)
        if entry is None:
            return Fresh()
        if entry.undelivered is not None:
            return Replay(entry.undelivered)
        if entry.running is not None and entry.abandoned:
            return Join(entry.running)
        return Fresh(resample=entry.delivered)

    def begin(self, fingerprint: bytes, call_id: str) -> None:
        """A generation has started for this request."""
        entry = self._entries.setdefault(fingerprint, _Entry())
        entry.running, entry.abandoned = call_id, False

    def abandon(self, fingerprint: bytes) -> None:
        """The client of the running generation has left."""
        entry = self._entries.get(fingerprint)
        if entry is not None and entry.running is not None:
            entry.abandoned = True

    def delivered(self, fingerprint: bytes) -> None:
        """The last byte of the reply was handed over."""
        self._entries[fingerprint] = _Entry(delivered=True)

    def undelivered(self, fingerprint: bytes, turn_id: str) -> None:
        """The reply exists but its client was gone."""
        self._entries[fingerprint] = _Entry(undelivered=turn_id)

    def failed(self, fingerprint: bytes) -> None:
        """The generation failed: the next identical request starts anew."""
        self._entries.pop(fingerprint, None)
