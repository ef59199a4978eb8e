"""The control plane's application: routes, the token, bodies, errors. What decides is in `manual`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import tugline
from tugline.core.errors import BadRequest, NotFound, Overloaded, StoreError, TooLarge, TuglineError
from tugline.rollout.api import wire
from tugline.rollout.api.openapi import document
from tugline.rollout.api.token import Token
from tugline.rollout.manual import ManualSessions
from tugline.rollout.trajectory_json import encode_trajectory

MAX_BODY = 1 << 20
"""Bytes of a request's body."""

LINGER = 2.0
"""Seconds that a client whose body is refused may go on sending it, to nowhere."""

Handler = Callable[[Request], Awaitable[Response]]


class ControlPlane:
    """Sessions over HTTP. `app` is the ASGI application."""

    def __init__(self, sessions: ManualSessions, token: str, metrics: Callable[[], bytes]) -> None:
        self._sessions = sessions
        self._metrics = metrics
        one = "/api/v1/sessions/{session}"
        routes = [
            _route("/healthz", GET=_health),
            _route("/openapi.json", GET=_openapi),
            _route("/metrics", GET=self._show_metrics),
            _route("/api/v1/sessions", GET=self._list, POST=self._open),
            _route(one, GET=self._show, DELETE=self._delete),
            _route(f"{one}/end", POST=self._end),
            _route(f"{one}/trajectory", GET=self._trajectory),
        ]
        inner = Starlette(
            routes=routes,
            exception_handlers={TuglineError: _tugline_error, HTTPException: _http_error, Exception: _our_fault},
        )
        inner.router.redirect_slashes = False
        self.app: ASGIApp = _guarded(inner, Token(token))

    async def _open(self, request: Request) -> Response:
        _query(request)
        body = wire.decode(wire.OpenBody, await _body(request))
        return _json(await self._sessions.open(body.options()), 201)

    async def _list(self, request: Request) -> Response:
        asked = _query(request, "state", "group", "limit", "after")
        text = asked.get("limit", "100")
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise BadRequest(f"{text[:40]!r} is not a whole number", path="limit")
        page = await self._sessions.list(
            state=asked.get("state"), group=asked.get("group"), limit=int(text), after=asked.get("after", "")
        )
        return _json(page)

    async def _show(self, request: Request) -> Response:
        _query(request)
        return _json(wire.report_body(await self._sessions.show(request.path_params["session"])))

    async def _end(self, request: Request) -> Response:
        _query(request)
        body = wire.decode(wire.EndBody, await _body(request))
        return _json(await self._sessions.end(request.path_params["session"], body.ending()))

    async def _delete(self, request: Request) -> Response:
        _query(request)
        session = request.path_params["session"]
        return _json(wire.Removed(session, await self._sessions.delete(session)))

    async def _trajectory(self, request: Request) -> Response:
        _query(request)
        trajectory = await self._sessions.trajectory(request.path_params["session"])
        return _raw(await asyncio.to_thread(encode_trajectory, trajectory))

    async def _show_metrics(self, request: Request) -> Response:
        _query(request)
        return Response(await asyncio.to_thread(self._metrics), media_type="text/plain; version=0.0.4")


async def _health(_request: Request) -> Response:
    return _json(wire.Health("ok", tugline.__version__))


async def _openapi(_request: Request) -> Response:
    return _raw(await asyncio.to_thread(document))


def _route(path: str, **handlers: Handler) -> Route:
    """One route for all methods of a path, so that 405 names them all."""

    async def dispatch(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, dispatch, methods=list(handlers))


def _guarded(app: ASGIApp, token: Token) -> ASGIApp:
    """Nothing but /healthz without the token, not even whether a path exists."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            return
        if scope["path"] != "/healthz":
            try:
                given = next((v for k, v in scope["headers"] if k == b"authorization"), b"").decode("latin-1")
                token.check(given)
            except TuglineError as err:
                response = _Early(wire.error_body(err), err.status, media_type="application/json")
                response.headers["www-authenticate"] = "Bearer"
                await response(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarded


async def _body(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY:
        raise TooLarge(f"the body has {declared[:20]} bytes, the limit is {MAX_BODY}")
    parts: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_BODY:
                raise TooLarge(f"the body exceeds the limit of {MAX_BODY} bytes")
            parts.append(chunk)
    except ClientDisconnect as err:
        raise BadRequest("the body ended early") from err
    return b"".join(parts)


def _query(request: Request, *known: str) -> Mapping[str, str]:
    """The query's parameters. Raises BadRequest for unknown and repeated ones."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise BadRequest(f"unknown parameter; there are: {', '.join(known) or 'none'}", path=name[:100])
        if name in found:
            raise BadRequest("is given twice", path=name)
        found[name] = value
    return found


def _json(value: Any, status: int = 200) -> Response:
    return _raw(msgspec.json.encode(value), status)


def _raw(data: bytes, status: int = 200) -> Response:
    return Response(data, status, media_type="application/json", headers={"cache-control": "no-store"})


class _Early(Response):
    """An answer before the body has been read: it ends the connection, but not before the client had time to see it.
    A socket closed on unread bytes is reset, and a client that still sends loses the answer."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers["connection"] = "close"
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body), "more_body": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER):
                message = await receive()
                while message["type"] == "http.request" and message.get("more_body", False):
                    message = await receive()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _error(err: TuglineError) -> Response:
    if isinstance(err, TooLarge):
        return _Early(wire.error_body(err), err.status, media_type="application/json")
    response = _raw(wire.error_body(err), err.status)
    if isinstance(err, Overloaded | StoreError):
        response.headers["retry-after"] = f"{max(1, round(getattr(err, 'retry_after', 1.0)))}"
    return response


async def _tugline_error(_request: Request, err: Exception) -> Response:
    return _error(err if isinstance(err, TuglineError) else TuglineError(str(err)))


async def _http_error(request: Request, err: Exception) -> Response:
    """Starlette's own: no such route, wrong method."""
    if isinstance(err, HTTPException) and err.status_code == 405:
        allowed = (err.headers or {}).get("Allow", "")
        detail = wire.ErrorDetail("method_not_allowed", f"{request.method} is not one of {allowed}")
        response = _json(wire.ErrorBody(detail), 405)
        response.headers["allow"] = allowed
        return response
    return _error(NotFound(f"no route {request.method} {request.url.path[:200]}"))


async def _our_fault(_request: Request, _err: Exception) -> Response:
    return _error(TuglineError("an error of ours; the gateway's log has it"))
