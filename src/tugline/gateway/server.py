"""Sockets: uvicorn's HTTP protocol on our own listeners, in our own loop. No signal handlers, no access log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tugline.gateway.app import App
from tugline.gateway.egress import Proxy
from tugline.gateway.receipt import LINE, Line

KEEP_ALIVE = 90
"""Seconds an idle harness connection may stay open: longer than any tool call we saw between two model calls would
be better served by a new connection, shorter makes Node clients race a closing socket."""

AGENT_CONNECTIONS = 128
"""Of one sandboxed agent. More could take the descriptors that the other sessions need."""
HOST_CONNECTIONS = 4096
FRAMING = 1 << 20
"""Bytes of one request that are not body: request line, headers, chunk framing, trailers."""
_OFFER = (b"connection", b"upgrade", b"http2-settings")


class Guarded(HttpToolsProtocol):
    """uvicorn's protocol with bounds on what it keeps before the application sees the request, and without its loss of
    the body of a request that offers another protocol: the HTTP client of the JDK offers h2c with every one."""

    limit = HOST_CONNECTIONS
    _framing = 0
    _in_head = True
    _declined = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Beyond the limit a connection is closed at once."""
        super().connection_made(transport)
        self._line = Line(transport)
        if len(self.connections) > self.limit:
            transport.abort()

    def eof_received(self) -> None:
        """What the client has not taken by now it will not take."""
        self._line.farewell()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """By a reset, or after a farewell of either side."""
        self._line.ended(exc)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Cut a connection whose request has no end."""
        self._framing += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as err:
            if self._declined:
                self._go_on(data[err.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        if self._framing > FRAMING:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A new request."""
        self._framing = 0
        self._in_head = True
        self._line.arrived(behind=self.cycle is None or self.cycle.response_complete)
        super().on_message_begin()
        self.scope["extensions"] = cast("Any", {LINE: self._line})

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are no headers: behind a body they could say who is calling."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Any other protocol than WebSocket, which the application refuses in words, is declined by saying nothing."""
        self._in_head = False
        offered = b"".join(v for n, v in self.headers if n == b"upgrade").strip().lower()
        self._declined = self.parser.should_upgrade() and offered not in (b"", b"websocket")
        if not self._declined:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A declined offer is not the end: its body has not been read."""
        if not self._declined:
            super().on_message_complete()

    def on_body(self, body: bytes) -> None:
        """Bodies are counted by the application."""
        self._framing -= len(body)
        super().on_body(body)

    def _go_on(self, rest: bytes) -> None:
        """The same request without its offer, from the beginning: a parser that met an offer reads no body."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        head = [b"%b %b HTTP/%b" % (method, self.url, version)]
        close = any(n == b"connection" and b"close" in v.lower() for n, v in self.headers)
        head += [b"%b: %b" % (n, v) for n, v in self.headers if n not in _OFFER]
        head += [b"connection: close"] if close else []
        self.parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(AttributeError):  # httptools before 0.6.3
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.data_received(b"\r\n".join(head) + b"\r\n\r\n" + rest)


class GuardedAgent(Guarded):
    """One sandbox's connections."""

    limit = AGENT_CONNECTIONS


class Listener:
    """One listening socket and its connections."""

    def __init__(self, server: asyncio.Server, state: ServerState, proxy: Proxy | None = None) -> None:
        self._server = server
        self._state = state
        self._proxy = proxy

    @property
    def port(self) -> int:
        """Bound TCP port."""
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, end idle connections, give running responses a moment."""
        self._server.close()
        if self._proxy is not None:
            await self._proxy.close()
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


async def listen(app: App, sock: socket.socket, *, one_agent: bool = False, proxy: Proxy | None = None) -> Listener:
    """Serve `app` on a bound socket. `one_agent`: all that connects is the same sandbox; `proxy`: its way out."""
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
    first = protocol if proxy is None else (lambda: proxy.front(protocol))
    server = await loop.create_server(first, sock=sock, backlog=512)
    return Listener(server, state, proxy)


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
