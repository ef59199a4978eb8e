"""Outcomes that are settled behind a call's back: written in order, waited for by nobody but a session's end."""

from __future__ import annotations

import asyncio
import contextlib

from tugline.core.contracts import CallLog
from tugline.core.errors import StoreError
from tugline.core.turn import CallOutcome


class Marks:
    """Those being written."""

    def __init__(self, log: CallLog) -> None:
        self._log = log
        self._under_way: set[asyncio.Task[None]] = set()

    def mark(self, call_id: str, outcome: CallOutcome) -> asyncio.Task[None]:
        """Settle a call's outcome, behind what was marked before."""

        async def write() -> None:
            with contextlib.suppress(StoreError):
                await self._log.mark(call_id, outcome)

        marking = asyncio.ensure_future(write())
        self._under_way.add(marking)
        marking.add_done_callback(self._under_way.discard)
        return marking

    async def written(self) -> None:
        """All of them."""
        if self._under_way:
            await asyncio.wait(set(self._under_way))
