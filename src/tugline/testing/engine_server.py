"""Servers that speak an engine's HTTP schema over any `Engine` of ours, for tests of drivers. ASGI, in the test's loop.

They are strict: a field that the real server does not know is refused, as is a request for ids that cannot be. The
vLLM schema was checked against vLLM 0.32 itself; the SGLang schema is written from SGLang 0.5.23's sources and has
never been compared with a running server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from tugline.core.columns import ids
from tugline.core.contracts import Engine, Generation, Sample
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.gateway.receipt import LINE
from tugline.gateway.server import Listener, bind, listen
from tugline.testing.engine_faults import Fault, as_python

CALLER: ContextVar[dict[str, str]] = ContextVar("headers of the request that is answered")
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


@dataclass(slots=True)
class Behaviour:
    """How the server is; tests change it while it runs."""

    faults: list[Fault] = field(default_factory=list)
    """One per generation from here on, first come, first served; probes are spared."""
    by_session: dict[str, list[Fault]] = field(default_factory=dict)
    """The same for one session each, before `faults`."""
    version: str = "default"
    kind: Literal["raw", "processed"] = "processed"
    scale_out: bool = True
    dev_mode: bool = True
    key: str | None = None
    prompt_details: bool = True
    experts: tuple[int, int] | None = None
    """(layers, experts per token) of a model that says where tokens went."""


@dataclass(slots=True)
class Seen:
    """What the server was asked."""

    generations: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of generations, probes apart."""
    aborted: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    headers: list[dict[str, str]] = field(default_factory=list)
    running: dict[str, asyncio.Task[Sample]] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    """Names of generations that ran to their end."""


class Refused(Exception):
    """An HTTP answer that is none of the good ones."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class Hang(Exception):
    """No answer at all."""


class EngineServer(ABC):
    """The frame: sockets, bodies, faults, the inner engine. Each API fills in `route`."""

    def __init__(self, inner: Engine, **behaviour: Any) -> None:
        """`inner` is started by the caller. `behaviour`: fields of `Behaviour`."""
        self.inner = inner
        self.now = Behaviour(**behaviour)
        self.seen = Seen()
        self.port = 0
        self._last: dict[tuple[str, bool], Any] = {}
        self._listener: Listener | None = None
        self._paused = asyncio.Event()
        self._paused.set()

    @property
    def url(self) -> str:
        """Without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> EngineServer:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen, on the same port as before."""
        sock = bind("127.0.0.1", self.port)
        self.port = sock.getsockname()[1]
        self._listener = await listen(self._app, sock)

    async def down(self) -> None:
        """Gone as by kill -9: connections break, what ran is lost."""
        listener, self._listener = self._listener, None
        for task in list(self.seen.running.values()):
            task.cancel()
        if listener is not None:
            await listener.close()

    @abstractmethod
    async def route(self, method: str, path: str, query: str, body: bytes) -> tuple[Any, Fault | None]:
        """(JSON value, str for text, or a list of events; a fault of how it is sent). Raises Refused, Hang."""

    async def _app(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {k.decode().lower(): v.decode() for k, v in scope["headers"]}
        self.seen.headers.append(headers)
        body = bytearray()
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        work = asyncio.ensure_future(self._answer(scope, headers, bytes(body)))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():  # the client hung up
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            return
        status, content, extra, fault = work.result()
        sending = asyncio.ensure_future(_send(send, status, content, extra, fault))
        await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        if fault == "reset":
            _reset(scope)
        gone.cancel()
        sending.cancel()
        await asyncio.wait({sending})
        if not sending.cancelled() and (err := sending.exception()) is not None:
            raise err

    async def _answer(
        self, scope: MutableMapping[str, Any], headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes | list[bytes], dict[str, str], Fault | None]:
        path, method = scope["path"], scope["method"]
        CALLER.set(headers)
        self.seen.calls[f"{method} {path}"] += 1
        try:
            open_to_all = path in ("/health", "/metrics", "/ping")
            if (
                self.now.key is not None
                and headers.get("authorization") != f"Bearer {self.now.key}"
                and not open_to_all
            ):
                raise Refused(401, "Unauthorized")
            value, fault = await self.route(method, path, scope["query_string"].decode(), body)
            value = self._again(path, value, fault)
        except Refused as no:
            said = {"error": {"message": no.message, "type": "Error", "param": None, "code": no.status}}
            return no.status, msgspec.json.encode(said), no.headers, None
        except Hang:
            await asyncio.Event().wait()
            raise
        except EngineError as err:
            said = {"error": {"message": err.message, "type": "InternalServerError", "param": None, "code": 500}}
            return 500, msgspec.json.encode(said), {}, None
        if isinstance(value, str):
            return 200, value.encode(), {"content-type": "text/plain"}, fault
        if isinstance(value, list):
            events = [b"data: " + as_python(v) + b"\n\n" for v in value]
            return 200, [*events, b"data: [DONE]\n\n"], {}, fault
        return 200, as_python(value), {}, fault

    def _again(self, path: str, value: Any, fault: Fault | None) -> Any:
        """The reply; with `duplicate` the one before it on this route, of its form."""
        kind = (path, isinstance(value, list))
        if fault == "duplicate":
            return self._last.get(kind, value)
        if fault is None:
            self._last[kind] = value
        return value

    # --------------------------------------------------------------------------------------- for the APIs

    async def sampled(self, name: str, session: str, prompt: list[int], asked: Mapping[str, Any]) -> Sample:
        """One generation of the inner engine. `asked`: max_tokens, temperature, top_p, top_k, seed, stop."""
        await self._paused.wait()
        sampling = Sampling(
            asked["temperature"], asked["top_p"], max(0, asked["top_k"]), asked["max_tokens"], asked.get("seed")
        )
        request = Generation(name, session, ids(prompt), sampling, tuple(asked.get("stop") or ()))
        task = self.seen.running[name] = asyncio.ensure_future(self.inner.generate(request))
        try:
            sample = await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            self.seen.running.pop(name, None)
        self.seen.finished.append(name)
        return sample

    async def next_fault(self, session: str = "") -> Fault | None:
        """The fault of a generation that was asked for; those that need no sample happen here."""
        mine = self.now.by_session.get(session) or self.now.faults
        fault = mine.pop(0) if mine else None
        if fault == "http_500":
            raise Refused(500, "EngineCore encountered an issue")
        if fault == "http_503":
            raise Refused(503, "overloaded", {"retry-after": "0.05"})
        if fault == "http_429":
            raise Refused(429, "too many requests", {"retry-after": "0.05"})
        if fault == "hang":
            raise Hang
        return fault

    def pause(self, *, on: bool) -> None:
        """New generations wait."""
        if on:
            self._paused.clear()
        else:
            self._paused.set()

    @property
    def paused(self) -> bool:
        """Whether they do."""
        return not self._paused.is_set()


def _reset(scope: MutableMapping[str, Any]) -> None:
    """End the connection as a killed process does: no farewell."""
    transport = scope["extensions"][LINE]._transport
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def words(text: str) -> list[str]:
    """Names, one behind the other."""
    return text.split()


def known(body: bytes, fields: frozenset[str], where: str = "body") -> dict[str, Any]:
    """A JSON object with no other keys. Raises Refused."""
    try:
        value = msgspec.json.decode(body or b"{}")
    except msgspec.DecodeError as err:
        raise Refused(400, f"{where}: {err}") from err
    return checked(value, fields, where)


def checked(value: Any, fields: frozenset[str], where: str) -> dict[str, Any]:
    """As `known`, of a decoded value."""
    if not isinstance(value, dict):
        raise Refused(400, f"{where}: an object is expected")
    strange = sorted(set(value) - fields)
    if strange:
        raise Refused(400, f"{where}: unknown fields {strange}")
    return value


def valid_prompt(value: Any, engine: Engine) -> list[int]:
    """A list of ids that can be. Raises Refused."""
    info = engine.info
    if not isinstance(value, list) or not value or not all(type(v) is int and 0 <= v < info.vocab for v in value):
        raise Refused(400, "the prompt is no list of ids of this vocabulary")
    if len(value) >= info.context:
        raise Refused(400, f"This model's maximum context length is {info.context} tokens")
    return value


def spelled(engine: Engine, text: str) -> list[int]:
    """Ids of a text by the inner engine's tokenizer."""
    from tokenizers import Tokenizer

    path: Path = engine.info.model_dir / "tokenizer.json"
    return list(Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False).ids)


async def _send(
    send: Send, status: int, content: bytes | list[bytes], extra: Mapping[str, str], fault: Fault | None
) -> None:
    if fault == "not_json":
        html = b"<html>busy</html>"
        content = html if isinstance(content, bytes) else [b"data: " + html + b"\n\n", b"data: [DONE]\n\n"]
    whole = content if isinstance(content, bytes) else b"".join(content)
    headers = {"content-type": "application/json" if isinstance(content, bytes) else "text/event-stream"} | dict(extra)
    if isinstance(content, bytes):
        headers["content-length"] = str(len(whole))
    raw = [(k.encode(), v.encode()) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    if fault == "drop":
        raise ConnectionResetError("the server dies before it says anything")
    if fault == "garbage":
        whole = b"\xff" + whole[1:]
    if fault == "hang_inside":
        await send({"type": "http.response.body", "body": whole[: len(whole) // 2], "more_body": True})
        await asyncio.Event().wait()
    if fault in ("truncated", "reset"):
        await send({"type": "http.response.body", "body": whole[: len(whole) // 2], "more_body": True})
        if fault == "reset":
            return
        raise ConnectionResetError("the server dies while it answers")
    await send({"type": "http.response.body", "body": whole, "more_body": False})
