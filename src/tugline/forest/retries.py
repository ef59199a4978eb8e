"""Is an identical request a retry, or a wish for another sample? Delivery decides, not headers.

Clients re-send byte-identical bodies with a retry count of 0 after a broken stream, and also on purpose after a
delivered reply; only what became of the first answer tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    running: dict[str, bool] = field(default_factory=dict)
    """Running call -> whether its client has left. Several when a harness samples one request in parallel."""
    undelivered: str | None = None
    delivered: dict[str | None, None] = field(default_factory=dict)
    """Turns whose reply was handed over, oldest first."""

    def drop(self, call_id: str | None, *, abandoned: bool) -> None:
        """Forget a running call; without an id the oldest whose client has left (or stayed), else the oldest."""
        if call_id is None:
            likely = [c for c, left in self.running.items() if left is abandoned]
            call_id = next(iter(likely or self.running), None)
        if call_id is not None:
            self.running.pop(call_id, None)


class RetryBook:
    """What became of each request fingerprint of one session.

    `call_id` names the call that `begin` was told of; it may be left out unless one request runs several times at once.
    """

    def __init__(self) -> None:
        self._entries: dict[bytes, _Entry] = {}

    def decide(self, fingerprint: bytes) -> Decision:
        """What to do with a request. Changes nothing."""
        entry = self._entries.get(fingerprint)
        if entry is None:
            return Fresh()
        if entry.undelivered is not None:
            return Replay(entry.undelivered)
        abandoned = next((call for call, left in entry.running.items() if left), None)
        return Fresh(resample=bool(entry.delivered)) if abandoned is None else Join(abandoned)

    def answered(self, fingerprint: bytes) -> str | None:
        """The newest turn whose reply to this request was delivered, or None."""
        entry = self._entries.get(fingerprint)
        return None if entry is None else next((t for t in reversed(entry.delivered) if t is not None), None)

    def begin(self, fingerprint: bytes, call_id: str) -> None:
        """A generation has started for this request."""
        self._entries.setdefault(fingerprint, _Entry()).running[call_id] = False

    def join(self, fingerprint: bytes, call_id: str) -> None:
        """A client waits for a running call again: who asks the same now wants another sample."""
        entry = self._entries.get(fingerprint)
        if entry is not None and call_id in entry.running:
            entry.running[call_id] = False

    def take(self, fingerprint: bytes) -> None:
        """The undelivered reply is being sent again. `delivered` or `give_back` follows."""
        entry = self._entries.get(fingerprint)
        if entry is not None:
            entry.undelivered = None

    def give_back(self, fingerprint: bytes, turn_id: str) -> None:
        """A reply that was taken has not been delivered."""
        entry = self._entries.get(fingerprint)
        if entry is not None and turn_id not in entry.delivered:
            entry.undelivered = entry.undelivered or turn_id

    def runs(self, fingerprint: bytes, call_id: str) -> bool:
        """Whether this call runs for this request."""
        entry = self._entries.get(fingerprint)
        return entry is not None and call_id in entry.running

    def abandon(self, fingerprint: bytes, call_id: str | None = None) -> None:
        """The client of a running generation has left."""
        entry = self._entries.get(fingerprint)
        if entry is None:
            return
        if call_id is None:
            call_id = next((call for call, left in reversed(entry.running.items()) if not left), None)
        if call_id in entry.running:
            entry.running[call_id] = True

    def delivered(self, fingerprint: bytes, turn_id: str | None = None, call_id: str | None = None) -> None:
        """The last byte of the reply was handed over. Without a turn id, of the one that was waiting for it."""
        entry = self._entries.setdefault(fingerprint, _Entry())
        entry.drop(call_id, abandoned=False)
        entry.delivered[turn_id if turn_id is not None else entry.undelivered] = None
        if turn_id is None or turn_id == entry.undelivered:
            entry.undelivered = None

    def undelivered(self, fingerprint: bytes, turn_id: str, call_id: str | None = None) -> None:
        """The reply exists but its client was gone. No news for a turn that another client got."""
        entry = self._entries.setdefault(fingerprint, _Entry())
        entry.drop(call_id, abandoned=True)
        if turn_id not in entry.delivered:
            entry.undelivered = turn_id

    def revoke(self, fingerprint: bytes, turn_id: str) -> None:
        """What was handed over has not been read: the next identical request gets it."""
        entry = self._entries.get(fingerprint)
        if entry is not None and turn_id in entry.delivered:
            del entry.delivered[turn_id]
            entry.undelivered = entry.undelivered or turn_id

    def failed(self, fingerprint: bytes, call_id: str | None = None) -> None:
        """The generation failed: the next identical request starts anew."""
        entry = self._entries.get(fingerprint)
        if entry is None:
            return
        entry.drop(call_id, abandoned=True)
        if not entry.running and entry.undelivered is None and not entry.delivered:
            del self._entries[fingerprint]
