"""Sockets: uvicorn's HTTP protocol on our own listeners, in our own loop. No signal handlers, no access log."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, cast

import uvicorn
from uvicorn.server import ServerState

from tugline.gateway.app import App

KEEP_ALIVE = 90
"""Seconds an idle harness connection may stay open: longer than any tool call we saw between two model calls would
be better served by a new connection, shorter makes Node clients race a closing socket."""


class Listener:
    """One listening socket and its connections."""

    def __init__(self, server: asyncio.Server, state: ServerState) -> None:
        self._server = server
        self._state = state

    @property
    def port(self) -> int:
        """Bound TCP port."""
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, end idle connections, give running responses a moment."""
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        for _ in range(20):
            if not self._state.connections:
                break
            await asyncio.sleep(0.01)
        for connection in list(self._state.connections):
            transport = cast("Any", connection).transport
            if transport is not None:
                transport.abort()


async def listen(app: App, sock: socket.socket) -> Listener:
    """Serve `app` on a bound socket."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        cast("Any", app),
        http="httptools",
        loop="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE,
    )
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()

    def protocol() -> asyncio.Protocol:
        factory = cast("Callable[..., asyncio.Protocol]", config.http_protocol_class)
        return factory(config=config, server_state=state, app_state={}, _loop=loop)

    sock.setblocking(False)
    server = await loop.create_server(protocol, sock=sock, backlog=512)
    return Listener(server, state)


def bind(host: str, port: int) -> socket.socket:
    """A bound, not yet listening TCP socket; port 0 picks a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock


Closer = Callable[[], Awaitable[None]]
