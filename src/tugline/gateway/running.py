"""One generation under way and those who wait for it."""

from __future__ import annotations

import asyncio

from tugline.core.items import Pending
from tugline.gateway.connection import Connection
from tugline.gateway.exchange import Produced
from tugline.gateway.live import Feed


class Running:
    """A generation under way and how many calls want it: those whose client is there, or left less than the grace
    ago. `call_id` is the call that began it."""

    def __init__(
        self,
        call_id: str,
        task: asyncio.Task[Produced],
        admitted: asyncio.Event,
        pending: Pending,
        feed: Feed | None,
    ) -> None:
        self.call_id = call_id
        self.feed = feed
        self.task = task
        self.admitted = admitted
        self.pending = pending
        self.wanted = 0
        self.conns: list[Connection] = []
        """Those that wait, or waited, for it."""
