"""When an engine that does not answer is asked again. Pure: the caller says what time it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Breaker:
    """Closed: calls pass. Open, after `limit` failures in a row: nobody calls until a look at the engine's health
    succeeds, and those looks keep their distance. Seconds."""

    limit: int = 3
    first: float = 0.25
    longest: float = 5.0
    failures: int = 0
    looks: int = 0
    """Unsuccessful ones since it opened."""
    since: float | None = None
    """When it opened."""
    not_before: float = 0.0
    """The engine asked for silence until then."""

    @property
    def open(self) -> bool:
        """Whether calls have to wait."""
        return self.since is not None

    def failed(self, now: float, *, gone: bool = False) -> bool:
        """A call failed by the engine's fault. `gone`: nobody listens there, which needs no second opinion. True when
        this opened it."""
        self.failures += 1
        if self.since is not None or (self.failures < self.limit and not gone):
            return False
        self.since, self.looks = now, 0
        return True

    def looked(self) -> None:
        """A look found the engine as it was."""
        self.looks += 1

    def succeeded(self) -> None:
        """A call or a look succeeded."""
        self.failures = self.looks = 0
        self.since = None

    def hold(self, until: float) -> None:
        """Nobody asks before that moment: the engine said so."""
        self.not_before = max(self.not_before, until)

    def pause(self, now: float) -> float:
        """How long to wait before the next look, or the next call of a closed one."""
        held = max(0.0, self.not_before - now)
        return max(held, min(self.longest, self.first * 2**self.looks)) if self.open else held
