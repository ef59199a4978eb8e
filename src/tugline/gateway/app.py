"""The ASGI application of the data plane: routes, identity, bodies. Plain ASGI; no framework on the hot path."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote

import zstandard

from tugline.core.contracts import Dialect, Route
from tugline.core.errors import BadRequest, Forbidden, NotFound, Overloaded, TooLarge, TuglineError
from tugline.gateway.connection import Connection, Receive, Send
from tugline.gateway.delivery import Delivery
from tugline.gateway.incoming import Incoming
from tugline.gateway.receipt import line_of
from tugline.gateway.secrets import SecretTable
from tugline.gateway.session import OpenSession

Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PREFIX = "/s/"
LINGER = 5.0
"""Seconds that a client whose body is refused may go on sending it, to nowhere."""
HELD_BODIES = 8
"""Bodies of the largest size that one session may have in memory at a time."""


@dataclass(frozen=True, slots=True)
class Matched:
    """A route of a dialect that fits a request."""

    dialect: Dialect
    route: Route
    params: dict[str, str]


class Router:
    """Finds the route of a path. One route per dialect and path: nothing is guessed from headers or bodies."""

    def __init__(self, dialects: tuple[Dialect, ...]) -> None:
        self._dialects = dialects
        self._plain: dict[tuple[str, str], list[Matched]] = {}
        """Routes without a parameter, at most one per dialect: nearly all calls are to these."""
        for dialect in dialects:
            for route in dialect.routes:
                if "{model}" in route.path:
                    continue
                known = self._plain.setdefault((route.method, route.path), [])
                if all(m.dialect is not dialect for m in known):
                    known.append(Matched(dialect, route, dict(route.params)))

    @property
    def fallback(self) -> Dialect:
        """Whose error shape an unknown path gets."""
        return self._dialects[0]

    def find(self, method: str, path: str, headers: Mapping[str, str]) -> Matched:
        """A path that several dialects have belongs to the one that claims the request, else to the first.

        Raises NotFound.
        """
        found = self._plain.get((method, path)) or self._with_parameter(method, path)
        if not found:
            raise NotFound(f"no route {method} {path[:200]}")
        return next((m for m in found if m.dialect.claims(headers)), found[0])

    def _with_parameter(self, method: str, path: str) -> list[Matched]:
        found: list[Matched] = []
        for dialect in self._dialects:
            for route in dialect.routes:
                params = _match(route.path, path) if route.method == method else None
                if params is not None:
                    found.append(Matched(dialect, route, {**params, **dict(route.params)}))
                    break
        return found

    def speaker(self, path: str, headers: Mapping[str, str]) -> Dialect:
        """Whose error shape a request gets that no route fits."""
        near = [d for d in self._dialects if any(_match(r.path, path) is not None for r in d.routes)]
        claims = [d for d in near or self._dialects if d.claims(headers)]
        return (claims or near or [self.fallback])[0]


class Share:
    """What one call's body takes of its session's memory."""

    def __init__(self, session: OpenSession, limit: int) -> None:
        self._session = session
        self._limit = limit
        self._taken = 0

    def take(self, size: int) -> None:
        """Raises Overloaded when the session holds too much already."""
        if self._session.held + size > self._limit:
            raise Overloaded("this session has too many large requests under way")
        self._session.held += size
        self._taken += size

    def release(self) -> None:
        """The call has ended."""
        self._session.held -= self._taken
        self._taken = 0


class GatewayApp:
    """The application. `bound(session_id)` gives the same one for a listener that belongs to a single session."""

    def __init__(
        self,
        router: Router,
        secrets: SecretTable,
        sessions: dict[str, OpenSession],
        delivery: Delivery,
        describe_model: Callable[[], tuple[str, int]],
        max_body: int,
    ) -> None:
        self._router = router
        self._secrets = secrets
        self._sessions = sessions
        self._delivery = delivery
        self._describe_model = describe_model
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handle(scope, receive, send, None)

    def bound(self, session_id: str) -> App:
        """Whoever comes through this listener is `session_id`: the socket is the credential."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await self._handle(scope, receive, send, session_id)

        return app

    async def _handle(self, scope: Scope, receive: Receive, send: Send, bound: str | None) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        conn = Connection(send, receive, line_of(scope))
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        path, path_secret = _split_prefix(scope["path"])
        if headers.get("upgrade", "").strip().lower() == "websocket":
            await _refuse_upgrade(conn, self._router.speaker(path, headers))
            return
        try:
            matched = self._router.find(scope["method"], path, headers)
        except TuglineError as err:
            await _refuse(conn, self._router.speaker(path, headers), err)
            return
        dialect = matched.dialect
        try:
            if matched.route.kind == "probe":
                await conn.whole(200, {}, b"")
                return
            query = _query(scope.get("query_string", b""))
            session = self._identify(matched.dialect, headers, query, path_secret, bound)
            if matched.route.kind in ("models", "model", "refuse"):
                await self._describe(matched, path, conn)
                return
        except TuglineError as err:
            await _refuse(conn, dialect, err)
            return
        share = Share(session, HELD_BODIES * self._max_body)
        try:
            try:
                raw = await self._read_body(receive, headers, share)
            except TuglineError as err:
                share.release()
                await _refuse_early(conn, dialect, err, receive)
                return
            try:
                body = await self._unpack(raw, headers, share)
            except TuglineError as err:
                await _refuse(conn, dialect, err)
                return
            params = {**matched.params, **{f"?{name}": value for name, value in query.items()}}
            serve = self._delivery.count if matched.route.kind == "count" else self._delivery.serve
            await serve(session, Incoming(dialect, path, params, body, headers), conn)
        finally:
            share.release()

    def _identify(
        self,
        dialect: Dialect,
        headers: dict[str, str],
        query: dict[str, str],
        path_secret: str | None,
        bound: str | None,
    ) -> OpenSession:
        """Order: socket, path prefix, key: harnesses often send a placeholder key beside a base URL that names them."""
        if bound is not None:
            session_id = bound
        else:
            session_id = self._secrets.session_of(path_secret or dialect.credential(headers, query))
        session = self._sessions.get(session_id)
        if session is None:
            raise Forbidden("this session has ended; its key is no longer valid")
        return session

    async def _describe(self, matched: Matched, path: str, conn: Connection) -> None:
        """Models, or why a known route is not served."""
        model, context = self._describe_model()
        if matched.route.kind == "refuse":
            raise matched.dialect.refusal(path)
        if matched.route.kind == "models":
            body = matched.dialect.models(model, context)
        else:
            body = matched.dialect.model(matched.params["model"], context)
        await conn.whole(200, {"content-type": "application/json"}, body)

    async def _read_body(self, receive: Receive, headers: dict[str, str], share: Share) -> bytes:
        declared = headers.get("content-length", "")
        if declared.isdigit() and int(declared) > self._max_body:
            raise TooLarge(f"the body has {declared} bytes, the limit is {self._max_body}")
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the body ended early")
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._max_body:
                raise TooLarge(f"the body exceeds the limit of {self._max_body} bytes")
            share.take(len(chunk))
            parts.append(chunk)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _unpack(self, raw: bytes, headers: dict[str, str], share: Share) -> bytes:
        encoding = headers.get("content-encoding", "")
        if not encoding:
            return raw
        # in a thread: a few hundred bytes may hold the largest body, and unpacking that takes a quarter of a second
        body = await asyncio.to_thread(_decompress, raw, encoding, self._max_body)
        share.take(max(0, len(body) - len(raw)))
        return body


async def _refuse(conn: Connection, dialect: Dialect, err: TuglineError) -> None:
    await conn.whole(*dialect.error(err))


async def _refuse_early(conn: Connection, dialect: Dialect, err: TuglineError, receive: Receive) -> None:
    """An answer before the body has been read ends the connection, but not before the client had time to see it: a
    socket closed on unread bytes is reset, and a client that still sends loses the answer."""
    status, headers, data = dialect.error(err)
    await conn.start(status, {**headers, "content-length": str(len(data)), "connection": "close"})
    await conn.body(data, more=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            message = await receive()
            while message["type"] == "http.request" and message.get("more_body", False):
                message = await receive()
    await conn.body(b"", more=False)


async def _refuse_upgrade(conn: Connection, dialect: Dialect) -> None:
    """Codex falls back to HTTP at once on 426, and after seven attempts on anything else."""
    _, headers, data = dialect.error(BadRequest("WebSocket connections are not served here; use HTTP"))
    await conn.whole(426, {**headers, "upgrade": "HTTP/1.1", "connection": "close"}, data)


def _split_prefix(path: str) -> tuple[str, str | None]:
    """`/s/<secret>/v1/x` -> (`/v1/x`, secret). Double slashes from joined base URLs are collapsed."""
    secret = None
    if path.startswith(PREFIX):
        secret, _, rest = path[len(PREFIX) :].partition("/")
        path = "/" + rest
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/") or "/", secret


def _query(text: bytes) -> dict[str, str]:
    """Query parameters; of one that comes twice the last."""
    try:
        return dict(parse_qsl(text.decode("latin-1"), keep_blank_values=True, max_num_fields=64))
    except ValueError as err:
        raise BadRequest("the query has too many fields") from err


def _match(pattern: str, path: str) -> dict[str, str] | None:
    if "{model}" not in pattern:
        return {} if pattern == path else None
    before, after = pattern.split("{model}")
    if not path.startswith(before) or not path.endswith(after) or len(path) <= len(before) + len(after):
        return None
    return {"model": unquote(path[len(before) : len(path) - len(after)])}


def _decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Undo Content-Encoding without ever holding more than `limit` bytes."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    try:
        if name in ("gzip", "deflate"):
            worker = zlib.decompressobj(wbits=47)
            data = worker.decompress(body, limit + 1)
        elif name == "zstd":
            with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(body) as reader:
                data = reader.read(limit + 1)
        else:
            raise BadRequest(f"content-encoding {name[:40]!r} is not supported; send gzip, zstd or none")
    except (zlib.error, zstandard.ZstdError) as err:
        raise BadRequest(f"the body is not valid {name}: {err}") from err
    if len(data) > limit:
        raise TooLarge(f"the decompressed body exceeds the limit of {limit} bytes")
    return data
