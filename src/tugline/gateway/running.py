"""One generation under way and those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from tugline.core.items import Pending
from tugline.forest.retries import RetryBook
from tugline.gateway.connection import Connection
from tugline.gateway.exchange import Produced
from tugline.gateway.live import Feed

FAREWELL = 0.02
"""Seconds that a request waits which is the same as a running one: a client that leaves and comes back on another
connection can be there before the news that it has left."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `keepalive`: silence before a stream is opened, and between its pings. `grace`: how long a generation
    goes on after its client has left. `live`: streams show replies while they are sampled."""

    keepalive: float = 5.0
    grace: float = 10.0
    live: bool = False


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


def look(running: Iterable[Running], retries: RetryBook, fingerprint: bytes) -> bool:
    """Clients leave and come back faster than those who wait for them are told: say now who has left. Whether a
    generation for the same request is left with a client that seems to be there."""
    there = False
    for each in list(running):
        if retries.runs(fingerprint, each.call_id):
            for conn in each.conns:
                if conn.line is not None:
                    conn.line.look()
            left = bool(each.conns) and all(conn.left() for conn in each.conns)
            there = there or not left
            if left:
                retries.abandon(fingerprint, each.call_id)
    return there
