"""Getting one sample out of an engine: retries inside, abort on cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import random
from typing import Protocol, TypeVar

from tugline.core.columns import Ids
from tugline.core.contracts import Engine, Generation, Sample, StreamingEngine
from tugline.core.errors import EngineError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts` in all, waiting `first_wait` x 2^n seconds (at most `max_wait`) between them, and by chance up to half
    of that less: calls that failed together do not come back together."""

    attempts: int = 6
    first_wait: float = 0.2
    max_wait: float = 5.0

    def pause(self, failed: int, chance: float) -> float:
        """Seconds to wait after so many failed attempts. `chance`: 0 to 1."""
        return min(self.max_wait, self.first_wait * 2.0 ** min(failed - 1, 30)) * (1 - chance / 2)


class Failures:
    """Attempts of one call that failed: counted where they happen, told by the turn that came of it in the end."""

    def __init__(self, count: Callable[[EngineError], None]) -> None:
        self._count = count
        self._faults: dict[str, None] = {}

    def __call__(self, err: EngineError) -> None:
        """One more."""
        self._count(err)
        self._faults[err.fault] = None

    @property
    def drift(self) -> tuple[str, ...]:
        """`retried_<fault>` of each fault, once."""
        return tuple(f"retried_{fault}" for fault in self._faults)


class Listener(Protocol):
    """Hears ids while they are sampled."""

    def heard(self, fresh: Ids) -> None:
        """The next ids, int32[n]."""
        ...

    def restart(self) -> bool:
        """Another attempt begins: forget all ids. False when it is too late for that."""
        ...


async def sample(
    engine: Engine,
    generation: Generation,
    retry: RetryPolicy,
    listener: Listener | None = None,
    failed: Callable[[EngineError], None] = lambda _: None,
) -> tuple[Sample, int]:
    """(sample, failed attempts before it). Raises EngineError when the budget is used up or retrying is pointless.

    `listener` hears the ids as they come from an engine that streams, `failed` each attempt's error. Each attempt has
    its own request id, so that a late orphan can never be taken for the answer.
    """
    again = (lambda: True) if listener is None else listener.restart
    return await attempts(
        lambda name: _attempt(engine, replace(generation, request_id=name), listener),
        generation.request_id,
        retry,
        failed,
        again,
    )


async def attempts(
    ask: Callable[[str], Awaitable[T]],
    name: str,
    retry: RetryPolicy,
    failed: Callable[[EngineError], None],
    again: Callable[[], bool] = lambda: True,
) -> tuple[T, int]:
    """(what `ask` gives, failed attempts before it). It gets a name of its own for each attempt, beginning with `name`;
    `again` says whether another may be made. Raises EngineError as `sample` does."""
    for attempt in range(retry.attempts):
        try:
            return await ask(f"{name}.{attempt}" if attempt else name), attempt
        except EngineError as err:
            failed(err)
            if not err.retryable or attempt == retry.attempts - 1 or not again():
                raise
        await asyncio.sleep(retry.pause(attempt + 1, random()))
    raise EngineError("no attempt was made", retryable=False)


async def _attempt(engine: Engine, request: Generation, listener: Listener | None) -> Sample:
    if listener is None or not isinstance(engine, StreamingEngine):
        return await engine.generate(request)
    async with aclosing(engine.generate_stream(request)) as pieces:
        async for piece in pieces:
            if piece.sample is not None:
                return piece.sample
            listener.heard(piece.ids)
    raise EngineError("the engine ended a stream without its sample")
