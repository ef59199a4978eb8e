"""Time as an argument, so that no test sleeps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Wall time for records, monotonic time for limits; both in seconds."""

    def wall(self) -> float: ...
    def now(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def wall(self) -> float:
        return time.time()

    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that tests move by hand."""

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._t = start

    def wall(self) -> float:
        return self._t

    def now(self) -> float:
        return self._t

    def advance(self, seconds: float) -> None:
        """Move both clocks forward."""
        self._t += seconds


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on the monotonic clock. `at` fits `asyncio.timeout_at` (same clock on CPython)."""

    at: float

    @classmethod
    def after(cls, seconds: float, clock: Clock | None = None) -> Deadline:
        """Deadline `seconds` from now."""
        return cls((clock or SystemClock()).now() + seconds)

    def left(self, clock: Clock | None = None) -> float:
        """Seconds left; 0 when passed."""
        return max(0.0, self.at - (clock or SystemClock()).now())
