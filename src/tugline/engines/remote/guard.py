"""Who may call an engine, and when: its breaker, the looks at it while it is away, what it asks for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from tugline.core.contracts import Reading
from tugline.core.errors import EngineError, boundary
from tugline.engines.remote.breaker import Breaker
from tugline.engines.remote.refusal import Refusal
from tugline.engines.remote.where import Remote

FAULTY = ("unreachable", "timeout", "truncated", "transport", "stream_error", "version_backwards")
"""Faults of the engine or its network, beside 5xx: they open the breaker."""
AT_ONCE = ("unreachable", "version_backwards")
"""Those that need no second opinion."""
EVENTS = "What happened at an engine behind a URL: attempts that failed, openings of its breaker, fallbacks."
_STATES = {"closed": 0.0, "half_open": 1.0, "open": 2.0}


class Guard:
    """Calls come through `admit`. One task looks at an engine that is away, for all who wait for it."""

    def __init__(self, remote: Remote, faults: Counter[str], look: Callable[[], Awaitable[bool]]) -> None:
        """`faults`: where events are counted. `look`: whether the engine is back and met anew; raises EngineError."""
        self.breaker = Breaker()
        self._remote = remote
        self._faults = faults
        self._look = look
        self._looker: asyncio.Task[None] | None = None

    async def admit(self) -> None:
        """Wait while the engine is known to be down, or wants to be left alone. Raises EngineError, not retryable, when
        that takes too long; at once when it is known to."""
        loop, breaker = asyncio.get_running_loop(), self.breaker
        limit = loop.time() + self._remote.patience
        while breaker.open or breaker.pause(loop.time()) > 0:
            left = limit - loop.time()
            if left <= 0 or breaker.not_before > limit:
                raise self._away(loop.time())
            if self._looker is None or self._looker.done():
                self._looker = asyncio.ensure_future(self._once())
            looker = self._looker
            await asyncio.wait({looker}, timeout=left)
            if looker.done() and not looker.cancelled() and isinstance(err := looker.exception(), EngineError):
                raise EngineError(err.message, retryable=err.retryable, fault=err.fault) from err

    async def _once(self) -> None:
        """Wait, then look."""
        breaker = self.breaker
        await asyncio.sleep(breaker.pause(asyncio.get_running_loop().time()))
        if not breaker.open:
            return
        breaker.looking = True
        try:
            with boundary(EngineError, "look at the engine"):
                back = await self._look()
        except EngineError as err:
            self._faults[err.fault] += 1
            breaker.looked()
            if not err.retryable:
                raise
            return
        finally:
            breaker.looking = False
        if back:
            breaker.recovered()
        else:
            breaker.looked()

    def _away(self, now: float) -> EngineError:
        """Why nobody is sent there."""
        breaker, remote = self.breaker, self._remote
        if breaker.since is None:
            why = f"{remote.url} asks to be left alone for longer than engine.patience ({remote.patience:g} s)"
            return EngineError(why, retryable=False, fault="rate_limited")
        why = (
            f"{remote.url} has not answered for {remote.patience:g} s: the circuit is {breaker.phase} since "
            f"{now - breaker.since:.0f} s, after {breaker.why}"
        )
        return EngineError(why, retryable=False, fault="circuit_open")

    def failed(self, err: EngineError) -> None:
        """A call failed."""
        self._faults[err.fault] += 1
        now = asyncio.get_running_loop().time()
        if isinstance(err, Refusal) and err.after:
            self.breaker.hold(now + err.after)
        faulty = err.fault in FAULTY or err.fault.startswith("http_5")
        if faulty and self.breaker.failed(now, err.fault, gone=err.fault in AT_ONCE):
            self._faults["circuit_opened"] += 1

    def succeeded(self) -> None:
        """A call succeeded."""
        self.breaker.succeeded()

    def close(self) -> None:
        """Nobody looks any more."""
        if self._looker is not None:
            self._looker.cancel()

    def readings(self) -> tuple[Reading, ...]:
        """What is counted here, for metrics."""
        events = tuple(
            Reading("events", "counter", EVENTS, ("what", k), float(n)) for k, n in dict(self._faults).items()
        )
        state = Reading("breaker", "gauge", "0 closed, 1 half open, 2 open.", value=_STATES[self.breaker.phase])
        return (state, *events)
