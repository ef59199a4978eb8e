"""One HTTP client per engine. Every way in which a request can fail is an EngineError with a name."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from tugline.core.errors import EngineError
from tugline.engines.remote.refusal import PEEK, Answer, refusal_text, refused, retry_after
from tugline.engines.remote.where import Remote, read_key, remote_url, shown_url

__all__ = ["Answer", "Http", "Remote", "read_key", "refusal_text", "refused", "remote_url", "retry_after", "shown_url"]

BODY_LIMIT = 256 << 20
"""Bytes of one reply, or of one event of a stream. A window of a million tokens echoed is 8 MB."""
LOOK_LIMIT = 16 << 20
"""Bytes of what a question is answered: models, metrics."""
PIECE = 1 << 20
"""Bytes that are unpacked at once."""
ERROR_LIMIT = 1 << 16
"""Bytes that are read of an error."""
_ZIPPED = ("gzip", "deflate")
_NONE = ("", "identity")
_OTHER = (b":", b"event:", b"id:", b"retry:")
"""Lines of an event stream that say nothing here."""


class Http:
    """Requests to one engine. Cancelling a request closes its connection, which engines take for an abort.

    Nothing of a reply is taken on trust: it is read up to a limit, unpacked up to a limit, and never followed to
    another address, which would get the key.
    """

    def __init__(self, remote: Remote, headers: Mapping[str, str] | None = None) -> None:
        self._remote = remote
        self._headers = {"content-type": "application/json", "accept-encoding": "identity", **(headers or {})}
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
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
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
                    raise refused(await self._answer(response, ERROR_LIMIT))
                if _encoding(response) not in _NONE:
                    raise _packed(response)
                yield _events(response)

    async def _whole(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], seconds: float | None
    ) -> Answer:
        with _named(self._remote.url):
            async with self._request(method, path, body, headers, seconds) as response:
                limit = LOOK_LIMIT if method == "GET" else BODY_LIMIT
                return await self._answer(response, ERROR_LIMIT if response.status != 200 else limit)

    async def _answer(self, response: aiohttp.ClientResponse, limit: int) -> Answer:
        """Read an answer. It may not repeat the key; an error's body may be cut."""
        if response.status == 200:
            whole = await _read(response, limit)
            return Answer(200, self._remote.without_key(whole), _lower(response.headers))
        body = b"" if _encoding(response) not in _NONE else await _peeked(response, limit)
        return Answer(response.status, self._remote.without_key(body), _lower(response.headers))

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
        async with self._session.request(
            method, r.url + path, data=body, headers=headers, timeout=limits, allow_redirects=False
        ) as response:
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


def _encoding(response: aiohttp.ClientResponse) -> str:
    return response.headers.get("content-encoding", "").strip().lower()


def _packed(response: aiohttp.ClientResponse) -> EngineError:
    why = f"the engine packs its replies ({_encoding(response)[:20]}) though asked not to"
    return EngineError(why, retryable=False, fault="packed")


def _too_large(limit: int) -> EngineError:
    return EngineError(f"the engine's reply is larger than {limit} bytes", retryable=False, fault="too_large")


async def _peeked(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The beginning of a body."""
    found = bytearray()
    async for chunk in response.content.iter_any():
        found += chunk
        if len(found) >= limit:
            break
    return bytes(found[:limit])


def _unpacked(unpack: zlib._Decompress, chunk: bytes) -> tuple[bytes, bytes]:
    """(the next piece, what is left to unpack). Raises EngineError."""
    try:
        return unpack.decompress(chunk, PIECE), unpack.unconsumed_tail
    except zlib.error as err:
        raise EngineError("the engine's reply cannot be unpacked", fault="unreadable") from err


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """A whole body, unpacked. Raises EngineError when it is larger than `limit` bytes."""
    encoding = _encoding(response)
    if encoding not in (*_NONE, *_ZIPPED):
        raise _packed(response)
    if int(response.headers.get("content-length", 0)) > limit:
        raise _too_large(limit)
    unpack = zlib.decompressobj(wbits=47) if encoding in _ZIPPED else None
    parts: list[bytes] = []
    left = limit
    async for chunk in response.content.iter_any():
        while chunk:
            part, chunk = (chunk, b"") if unpack is None else _unpacked(unpack, chunk)
            left -= len(part)
            if left < 0:
                raise _too_large(limit)
            parts.append(part)
            if chunk:
                await asyncio.sleep(0)  # a little may unpack to very much
    if unpack is not None and not unpack.eof:
        raise EngineError("the engine's packed reply has no end", fault="truncated")
    return b"".join(parts)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Data of each event, up to [DONE]. Engines write an event's data in one line."""
    rest = bytearray()
    seen = 0
    async for chunk in response.content.iter_any():
        rest += chunk
        begin = 0
        while (end := rest.find(b"\n", max(begin, seen))) >= 0:
            line = bytes(rest[begin:end]).strip()
            begin = end + 1
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data
            elif line and not line.startswith(_OTHER):  # an event may hide in it
                raise EngineError(f"a line of the engine's stream cannot be read: {line[:60]!r}", fault="unreadable")
        del rest[:begin]
        seen = len(rest)
        if seen > BODY_LIMIT:
            raise _too_large(BODY_LIMIT)
    raise EngineError("the engine's stream ended without its end", fault="truncated")


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
