"""One client connection during one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tugline.core.contracts import Dialect
from tugline.core.errors import EngineError, StoreError, TuglineError
from tugline.core.items import Pending
from tugline.gateway.receipt import Line

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Connection:
    """Sends one response. `gone` is set when the client has closed the connection before the response ended."""

    def __init__(self, send: Send, receive: Receive, line: Line | None = None) -> None:
        self._send = send
        self._receive = receive
        self.line = line
        self.request = line.requests if line is not None else 0
        self.gone = asyncio.Event()
        self.started = False
        self.beats = 0
        """Keep-alives sent."""
        self.said = False
        """Part of a reply has left: from now on an error can only cut."""

    def left(self) -> bool:
        """Whether the client is known to have left."""
        return self.gone.is_set() or (self.line is not None and self.line.over)

    async def watch(self) -> None:
        """Wait for the client to leave. Run beside the work; cancel when the response has been sent."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self.gone.set()
                return

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send status line and headers."""
        self.started = True
        wire = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": wire})

    async def body(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def whole(self, status: int, headers: dict[str, str], data: bytes) -> None:
        """Send a complete response."""
        await self.start(status, {**headers, "content-length": str(len(data))})
        await self.body(data, more=False)


async def refuse(conn: Connection, dialect: Dialect, err: TuglineError, pending: Pending | None = None) -> None:
    """Natively before the headers; afterwards as the stream's last event, or by cutting it if a retry may help."""
    if conn.gone.is_set():
        return
    if not conn.started:
        status, headers, body = dialect.error(err)
        await conn.whole(status, headers, body)
        return
    retryable = isinstance(err, StoreError) or (isinstance(err, EngineError) and err.retryable)
    if not retryable and pending is not None and not conn.said:
        await conn.body(dialect.stream_error(err, pending, conn.beats), more=False)
    # else: returning without the end of the body makes the server cut the connection


def stream_headers(dialect: Dialect) -> dict[str, str]:
    """Of a stream in a dialect."""
    return {"content-type": dialect.content_type_stream, "cache-control": "no-cache", "x-accel-buffering": "no"}
