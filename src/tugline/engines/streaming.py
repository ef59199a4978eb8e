"""Ids while they are sampled, from an engine that calls somebody with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress

from tugline.core.columns import Ids, count, take
from tugline.core.contracts import Piece, Sample
from tugline.core.errors import EngineError

Say = Callable[[Ids], None]
"""Called with new ids."""


async def pieces_of(run: Callable[[Say], Coroutine[None, None, Sample]]) -> AsyncGenerator[Piece, None]:
    """Pieces of the generation that `run` makes. It is cancelled, and over, when the iteration is."""
    told: asyncio.Queue[Ids | None] = asyncio.Queue()
    task = asyncio.ensure_future(run(told.put_nowait))
    task.add_done_callback(lambda _: told.put_nowait(None))
    known = 0
    try:
        while (fresh := await told.get()) is not None:
            known += count(fresh)
            yield Piece(fresh)
        sample = await task
        yield Piece(take(sample.ids, known), sample)
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, EngineError):
            await task
