"""One HTTP client per engine. Every way in which a request can fail is an EngineError with a name."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import msgspec

from tugline.core.errors import ConfigError, EngineError
from tugline.core.paths import expanded

PEEK = 300
"""Characters of an error body that are shown."""
RETRYABLE = frozenset({408, 409, 425, 429})
BODY_LIMIT = 256 << 20
"""Bytes of one reply. A window of a million tokens echoed is 8 MB."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Where an engine listens and how long to wait for it. Seconds."""

    url: str
    """Without a slash at the end."""
    key: str | None = field(default=None, repr=False)
    connect: float = 10.0
    reply: float = 1800.0
    """For a whole generation."""
    patience: float = 60.0
    """For an engine that does not answer, before calls fail."""
    served: str | None = None
    """The model's name there; None: the first that the engine lists."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole reply. Header names are lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def remote_url(text: str, where: str = "engine") -> str:
    """A base URL as people write it. Raises ConfigError."""
    url = text.rstrip("/")
    if not url.startswith(("http://", "https://")) or len(url.partition("://")[2]) < 1:
        raise ConfigError(f"{text!r} is no URL such as http://127.0.0.1:8000", where=where)
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ConfigError("a key stands in the URL; name its file or variable instead", where=where)
    return url


def read_key(file: str | None, variable: str | None, where: str) -> str | None:
    """The key in a file (whitespace around it does not count) or an environment variable. Raises ConfigError."""
    if file is not None:
        path = expanded(file, f"{where}.key_file")
        try:
            text = path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as err:
            raise ConfigError(f"{path}: cannot be read: {err}", where=f"{where}.key_file") from err
        if not text or "\n" in text:
            raise ConfigError(f"{path}: is not one line with a key", where=f"{where}.key_file")
        return text
    if variable is not None:
        text = os.environ.get(variable, "").strip()
        if not text:
            raise ConfigError(f"the environment variable {variable} is not set", where=f"{where}.key_env")
        return text
    return None


class Http:
    """Requests to one engine. Cancelling a request closes its connection, which engines take for an abort."""

    def __init__(self, remote: Remote, headers: Mapping[str, str] | None = None) -> None:
        self._remote = remote
        self._headers = {"content-type": "application/json", **(headers or {})}
        if remote.key is not None and not headers:
            self._headers["authorization"] = f"Bearer {remote.key}"
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Inside the loop that will use it."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                headers=self._headers,
                read_bufsize=1 << 20,
                raise_for_status=False,
            )

    async def close(self) -> None:
        """Idempotent; running requests fail."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def get(self, path: str, seconds: float | None = None) -> Answer:
        """Raises EngineError when there is no whole answer; its status may be any."""
        return await self._whole("GET", path, None, {}, seconds)

    async def post(
        self, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, seconds: float | None = None
    ) -> Answer:
        """As `get`."""
        return await self._whole("POST", path, body, headers or {}, seconds)

    @asynccontextmanager
    async def stream(self, path: str, body: bytes, headers: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The data of each event of an event stream. Raises EngineError, also behind events; for another status than
        200 before the first."""
        with _named(self._remote.url):
            async with self._request("POST", path, body, headers, None) as response:
                if response.status != 200:
                    raise refused(Answer(response.status, await response.read(), _lower(response.headers)))
                yield _events(response)

    async def _whole(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], seconds: float | None
    ) -> Answer:
        with _named(self._remote.url):
            async with self._request(method, path, body, headers, seconds) as response:
                return Answer(response.status, await response.read(), _lower(response.headers))

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], seconds: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise EngineError("the engine's client is closed", retryable=False, fault="closed")
        r = self._remote
        limits = aiohttp.ClientTimeout(
            total=r.reply if seconds is None else seconds, sock_connect=min(r.connect, seconds or r.connect)
        )
        url = r.url + path
        async with self._session.request(method, url, data=body, headers=headers, timeout=limits) as response:
            if int(response.headers.get("content-length", 0)) > BODY_LIMIT:
                raise EngineError("the engine's reply is too large", retryable=False, fault="too_large")
            yield response


class _named:
    """Foreign exceptions of a request, named."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, err: BaseException | None, trace: object) -> None:
        if isinstance(err, TimeoutError):
            raise EngineError(f"{self._url} did not answer in time", fault="timeout") from err
        if isinstance(err, aiohttp.ClientConnectorError):
            raise EngineError(f"nobody answers at {self._url}: {err.strerror or err}", fault="unreachable") from err
        if isinstance(err, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError | ConnectionError):
            raise EngineError(f"the reply of {self._url} broke off", fault="truncated") from err
        if isinstance(err, aiohttp.ClientError):
            raise EngineError(f"{self._url}: {type(err).__name__}: {err}"[:PEEK], fault="transport") from err


class _Error(msgspec.Struct):
    message: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error | str | None = None
    message: str | None = None
    detail: object = None


def refusal_text(body: bytes) -> str:
    """What an error body says, in whatever of the usual shapes."""
    try:
        said = msgspec.json.decode(body, type=_Refusal)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return " ".join(body.decode("utf-8", "replace").split())[:PEEK]
    error = said.error.message if isinstance(said.error, _Error) else said.error
    text = error or said.message or (str(said.detail) if said.detail is not None else "")
    return " ".join((text or body.decode("utf-8", "replace")).split())[:PEEK]


def refused(answer: Answer) -> EngineError:
    """The error that another status than 200 means."""
    status = answer.status
    text = refusal_text(answer.body)
    hint = {401: "; its key is missing or wrong", 403: "; its key may not do this, or the route is switched off"}
    err = EngineError(
        f"the engine answered {status}{hint.get(status, '')}{': ' + text if text else ''}",
        retryable=status >= 500 or status in RETRYABLE,
        fault=f"http_{status}",
    )
    return err


def retry_after(answer: Answer) -> float | None:
    """Seconds that the engine asks to be left alone, at most ten minutes; None: it does not ask."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return min(600.0, max(0.0, float(answer.headers[name]) * unit))
        except (KeyError, ValueError):
            continue
    return None


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for line in response.content:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield data
    raise EngineError("the engine's stream ended without its end", fault="truncated")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


async def settled(task: asyncio.Task[object]) -> None:
    """Wait for a task that was cancelled."""
    task.cancel()
    await asyncio.wait({task})
