"""Getting one sample out of an engine: retries inside, abort on cancellation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from tugline.core.contracts import Engine, Generation, Sample
from tugline.core.errors import EngineError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`attempts` in all, waiting `first_wait` x 2^n seconds (at most `max_wait`) between them."""

    attempts: int = 6
    first_wait: float = 0.2
    max_wait: float = 5.0


async def sample(engine: Engine, generation: Generation, retry: RetryPolicy) -> tuple[Sample, int]:
    """(sample, failed attempts before it). Raises EngineError when the budget is used up or retrying is pointless.

    Each attempt has its own request id, so that a late orphan can never be taken for the answer.
    """
    wait = retry.first_wait
    for attempt in range(retry.attempts):
        request = generation if attempt == 0 else replace(generation, request_id=f"{generation.request_id}.{attempt}")
        try:
            return await engine.generate(request), attempt
        except EngineError as err:
            if not err.retryable or attempt == retry.attempts - 1:
                raise
        await asyncio.sleep(wait)
        wait = min(retry.max_wait, wait * 2)
    raise EngineError("no attempt was made", retryable=False)
