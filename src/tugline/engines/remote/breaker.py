"""When an engine that does not answer is asked again. Pure: the caller says what time it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Phase = Literal["closed", "half_open", "open"]


@dataclass(slots=True)
class Breaker:
    """Closed: calls pass. Open, after `limit` failures in a row: nobody calls until one look at the engine succeeds
    (half-open while it lasts), and those looks keep their distance. An engine that fails again as soon as calls come
    back is looked at less and less. Seconds."""

    limit: int = 3
    first: float = 0.25
    longest: float = 5.0
    failures: int = 0
    looks: int = 0
    """Unsuccessful ones since it opened, and openings since a call last succeeded."""
    since: float | None = None
    """When it opened."""
    not_before: float = 0.0
    """The engine asked for silence until then."""
    looking: bool = False
    why: str = ""
    """The fault that opened it."""
    relapses: int = 0
    """Openings since a call last succeeded."""

    @property
    def open(self) -> bool:
        """Whether calls have to wait."""
        return self.since is not None

    @property
    def phase(self) -> Phase:
        """For people and metrics."""
        if self.since is None:
            return "closed"
        return "half_open" if self.looking else "open"

    def failed(self, now: float, fault: str, *, gone: bool = False) -> bool:
        """A call failed by the engine's fault. `gone`: nobody listens there, which needs no second opinion. True when
        this opened it."""
        self.failures += 1
        if self.since is not None or (self.failures < self.limit and not gone):
            return False
        self.since, self.looks, self.why = now, self.relapses, fault
        self.relapses += 1
        return True

    def looked(self) -> None:
        """A look found the engine as it was."""
        self.looks += 1

    def recovered(self) -> None:
        """A look succeeded: calls pass again. It counts as well only when one of them succeeds."""
        self.failures = self.looks = 0
        self.since = None

    def succeeded(self) -> None:
        """A call succeeded."""
        self.recovered()
        self.relapses = 0

    def hold(self, until: float) -> None:
        """Nobody asks before that moment: the engine said so."""
        self.not_before = max(self.not_before, until)

    def pause(self, now: float) -> float:
        """How long to wait before the next look, or the next call of a closed one."""
        held = max(0.0, self.not_before - now)
        return max(held, min(self.longest, self.first * 2 ** min(self.looks, 16))) if self.open else held
