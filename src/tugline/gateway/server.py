"""Sockets: uvicorn's HTTP protocol on our own listeners, in our own loop. No signal handlers, no access log."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tugline.gateway.app import App

KEEP_ALIVE = 90
"""Seconds an idle harness connection may stay open: longer than any tool call we saw between two model calls would
be better served by a new connection, shorter makes Node clients race a closing socket."""

AGENT_CONNECTIONS = 128
"""Of one sandboxed agent. More could take the descriptors that the other sessions need."""
HOST_CONNECTIONS = 4096
FRAMING = 1 << 20
"""Bytes of one request that are not body: request line, headers, chunk framing, trailers."""


class Guarded(HttpToolsProtocol):
    """uvicorn's protocol with bounds on what it keeps before the application sees the request."""

    limit = HOST_CONNECTIONS
    _framing = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Beyond the limit a connection is closed at once."""
        super().connection_made(transport)
        if len(self.connections) > self.limit:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Cut a connection whose request has no end."""
        self._framing += len(data)
        super().data_received(data)
        if self._framing > FRAMING:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A new request."""
        self._framing = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Bodies are counted by the application."""
        self._framing -= len(body)
        super().on_body(body)


class GuardedAgent(Guarded):
    """One sandbox's connections."""

    limit = AGENT_CONNECTIONS


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


async def listen(app: App, sock: socket.socket, *, one_agent: bool = False) -> Listener:
    """Serve `app` on a bound socket. `one_agent`: everything that connects is the same sandbox."""
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        cast("Any", app),
        http=GuardedAgent if one_agent else Guarded,
        ws="none",
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
