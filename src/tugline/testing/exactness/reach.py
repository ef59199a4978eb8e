"""Requests to a gateway of anybody's: bounded in time and bytes, and every way in which one can fail in plain words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from tugline.core.errors import ConfigError, RunError, describe

LIMIT = 64 << 20
"""Bytes of one reply, after decompression."""
PEEK = 200
"""Characters of a body that are shown."""


@dataclass(frozen=True, slots=True)
class Got:
    """A whole reply."""

    status: int
    data: bytes
    kind: str
    """Its content type, in small letters."""
    target: str = ""
    """Where a redirection leads."""


@dataclass(slots=True)
class _Far:
    """How far a reply got."""

    status: int = 0
    chunks: list[bytes] = field(default_factory=list)
    size: int = 0


def checked_url(text: str, where: str) -> str:
    """A base URL with its placeholders. Raises ConfigError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as err:
        raise ConfigError(f"{text!r} is no URL: {err}", where=where) from err
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"{text!r} is no URL such as http://127.0.0.1:4000", where=where)
    own = next((p for p in _API_PATHS if parts.path.rstrip("/").endswith(p)), None)
    if own is not None and where == "--url":
        raise ConfigError(f"leave {own!r} away: each API's own path is put behind the URL", where=where)
    return text


_API_PATHS = ("/chat/completions", "/messages", "/responses", "/models")


@asynccontextmanager
async def http_client() -> AsyncIterator[httpx.AsyncClient]:
    """No proxy of the environment stands between the suite and a gateway given by address; SSL_CERT_FILE and
    SSL_CERT_DIR count. Requests are bounded by `ask`."""
    limits = httpx.Limits(max_keepalive_connections=8)
    context = await asyncio.to_thread(httpx.create_ssl_context)
    async with httpx.AsyncClient(timeout=None, trust_env=False, limits=limits, verify=context) as client:
        yield client


async def ask(
    http: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    content: bytes | None = None,
    seconds: float = 30.0,
) -> Got:
    """One exchange. Raises RunError when there is no whole reply in time, or one of more than LIMIT bytes."""
    far = _Far()
    try:
        async with (
            asyncio.timeout(seconds),
            http.stream(method, url, content=content, headers=dict(headers)) as response,
        ):
            far.status = response.status_code
            async for chunk in response.aiter_bytes():
                far.chunks.append(chunk)
                far.size += len(chunk)
                if far.size > LIMIT:
                    raise RunError(f"{method} {url}: the reply is longer than {LIMIT >> 20} MB")
            kind = response.headers.get("content-type", "").lower()
            return Got(far.status, b"".join(far.chunks), kind, response.headers.get("location", ""))
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as err:
        raise RunError(f"{method} {url}: {why(err, url, seconds, far)}") from err


async def wait_for(http: httpx.AsyncClient, url: str, seconds: float) -> None:
    """Until somebody answers at a URL, whatever he says. Raises RunError."""
    base = url.replace("{session}", "none").replace("{dialect}", "chat")
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        # the head of a reply will do, its body may never end
        left = min(5.0, max(1.0, end - loop.time()))
        try:
            async with asyncio.timeout(left), http.stream("GET", base):
                return
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL) as err:
            if loop.time() >= end or _lasting(err):
                raise RunError(f"nobody answers at {base}: {why(err, base, left, _Far())}") from err
        await asyncio.sleep(0.3)


def why(err: BaseException, url: str, seconds: float, far: _Far) -> str:
    """What went wrong, for the person who typed the URL."""
    text = " ".join(str(err).split())
    secure = url.startswith("https:")
    if isinstance(err, TimeoutError | httpx.TimeoutException):
        if far.status:
            return f"its reply did not end within {seconds:g} s ({far.size} bytes so far)"
        return f"no reply within {seconds:g} s"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = text.partition("verify failed: ")[2].partition(" (_ssl")[0] or text
        return f"its certificate is not believed ({reason}): name the file of its authority in SSL_CERT_FILE"
    if secure and ("SSL" in text or "TLS" in text):
        return f"it does not speak TLS ({text.partition(' (_ssl')[0][:PEEK]}): is it http:// ?"
    if isinstance(err, httpx.ConnectError):
        return f"nobody listens there ({text or type(err).__name__})"
    if far.status:
        return f"its reply broke off after {far.size} bytes"
    if isinstance(err, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
        hint = "" if secure else ": is it https:// ?"
        return f"it does not answer in HTTP ({text or 'it closed the connection'}){hint}"
    return describe(err)


def _lasting(err: BaseException) -> bool:
    """Whether waiting will not help."""
    return isinstance(err, httpx.InvalidURL | httpx.UnsupportedProtocol) or "SSL" in str(err)


def refusal(method: str, url: str, got: Got) -> str:
    """What another status than 200 means."""
    if 300 <= got.status < 400:
        return f"{method} {url}: HTTP {got.status}, it sends one on to {got.target!r}: give that address"
    said = " ".join(got.data[: PEEK * 4].decode("utf-8", "replace").split())[:PEEK]
    hint = {401: " (--key?)", 403: " (--key?)"}.get(got.status, "")
    return f"{method} {url}: HTTP {got.status}{hint}: {said or 'an empty body'}"


def not_json(got: Got) -> str:
    """Words for a reply that is a web page, or ""."""
    page = "html" in got.kind or got.data[:PEEK].lstrip()[:1] == b"<"
    return "it answers with a web page, not as an API: is the path of the URL right?" if page else ""
