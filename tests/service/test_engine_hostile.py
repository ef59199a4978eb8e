"""What an engine's address can answer that is no engine's: redirects, floods, drips, packed bombs, its own key."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tugline.core.contracts import Conversation
from tugline.core.errors import ConfigError, EngineError
from tugline.core.items import Head, Options, UserText
from tugline.core.turn import Sampling
from tugline.engines import make_engine
from tugline.engines.remote import client
from tugline.engines.remote.client import Http
from tugline.engines.remote.where import Remote, read_key, remote_url
from tugline.testing.openai_server import OpenAiServer

KEY = "sk-very-secret-0123456789"
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[tuple[str, list[bytes]]]:
    """(URL, heads of requests) of a server that answers every request so and closes."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            await answer(writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()


def said(head: str, body: bytes = b"") -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        length = "" if "transfer-encoding" in head else f"content-length: {len(body)}\r\n"
        writer.write(f"HTTP/1.1 {head}\r\n{length}\r\n".encode() + body)
        await writer.drain()

    return answer


async def fault_of(url: str, **remote: Any) -> EngineError:
    """How a question fails there."""
    http = Http(Remote(url, key=KEY, **({"reply": 5.0} | remote)))
    http.open()
    try:
        with pytest.raises(EngineError) as caught:
            await http.post("/x", b"{}")
        return caught.value
    finally:
        await http.close()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_the_key_follows_no_redirect(status: int) -> None:
    async with answering(said("200 OK", b"{}")) as (other, stolen):
        head = f"{status} Moved\r\nlocation: {other}/y?token=abc"
        async with answering(said(head)) as (url, heads):
            http = Http(Remote(url, key=KEY))
            http.open()
            answer = await http.post("/x", b"{}")
            await http.close()
        assert KEY.encode() in heads[0] and stolen == []
        err = client.refused(answer)
        assert not err.retryable and other in err.message and "abc" not in err.message


async def test_a_reply_is_read_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BODY_LIMIT", 1 << 20)

    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(64):
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()

    async with answering(flood) as (url, _):
        err = await fault_of(url)
    assert (err.fault, err.retryable) == ("too_large", False)
    async with answering(said("200 OK", b"x" * (2 << 20))) as (url, _):
        assert (await fault_of(url)).fault == "too_large", "its length says it already"


async def test_what_is_packed_is_unpacked_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "BODY_LIMIT", 1 << 20)
    bomb = gzip.compress(b"\0" * (256 << 20))
    assert len(bomb) < 1 << 20
    async with answering(said("200 OK\r\ncontent-encoding: gzip", bomb)) as (url, heads):
        assert (await fault_of(url)).fault == "too_large"
    assert b"accept-encoding: identity" in heads[0].lower()
    for encoding, body, fault in (
        ("gzip", b"nothing packed", "unreadable"),
        ("gzip", gzip.compress(b"{}" * 1000)[:-12], "truncated"),
        ("br", b"x", "packed"),
    ):
        async with answering(said(f"200 OK\r\ncontent-encoding: {encoding}", body)) as (url, _):
            assert (await fault_of(url)).fault == fault
    async with answering(said("200 OK\r\ncontent-encoding: gzip", gzip.compress(b"{}"))) as (url, _):
        http = Http(Remote(url))
        http.open()
        assert (await http.post("/x")).body == b"{}"
        await http.close()


async def test_a_reply_that_drips_has_a_time_limit() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
        for _ in range(200):
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    begun = asyncio.get_running_loop().time()
    async with answering(drip) as (url, _):
        assert (await fault_of(url, reply=0.3)).fault == "timeout"
    assert asyncio.get_running_loop().time() - begun < 2.0


async def test_an_event_may_be_long_and_not_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang repeats all that was sampled in each event: megabytes."""
    monkeypatch.setattr(client, "BODY_LIMIT", 8 << 20)
    long = b'"' + b"x" * (6 << 20) + b'"'
    head = "200 OK\r\ncontent-type: text/event-stream"
    good = b": hello\r\nevent: x\nid: 1\nretry: 5\ndata: " + long + b"\n\ndata: [DONE]\n\n"
    for body, fault in (
        (good, None),
        (b"data: " + b"x" * (9 << 20), "too_large"),
        (b"data: {}\n\n", "truncated"),
        (b"data: {}\n\n\xffata: {}\n\ndata: [DONE]\n\n", "unreadable"),
    ):
        async with answering(said(head, body)) as (url, _):
            http = Http(Remote(url))
            http.open()
            caught, found = None, []
            try:
                async with http.stream("/x", b"", {}) as events:
                    found = [data async for data in events]
            except EngineError as err:
                caught = err.fault
            await http.close()
        assert caught == fault
        if fault is None:
            assert found == [long]


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode(),
        f"<html>{KEY}</html>".encode(),
    ],
)
@pytest.mark.parametrize("status", [401, 429, 500])
async def test_a_key_that_is_repeated_gets_nowhere(tmp_path: Path, status: int, body: bytes) -> None:
    (tmp_path / "key").write_text(KEY + "\n")
    far = {"key_file": str(tmp_path / "key"), "patience": 0.0}
    async with answering(said(f"{status} No", body)) as (url, _):
        engine = make_engine(f"openai:{url}", model="m", journal_dir=tmp_path / "j", far=far)  # type: ignore[arg-type]
        with pytest.raises(EngineError) as caught:
            await engine.start()
    shown = f"{caught.value!r} {caught.value} {engine!r} {vars(engine)}"
    assert KEY not in shown
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p.name != "key" and KEY.encode() in p.read_bytes()]


@pytest.mark.parametrize("model", ["модель/大-🚀", 'a"b\\c', "line\nbreak", " spaced "])
async def test_models_may_be_called_anything(tmp_path: Path, model: str) -> None:
    async with OpenAiServer([{"content": "yes"}]) as server:
        engine: Any = make_engine(f"openai:{server.url}", model=model, journal_dir=tmp_path / "j")
        await engine.start()
        asked = Conversation("r", "s", Head(), (UserText("hi"),), Options(), Sampling(max_tokens=5))
        assert (await engine.converse(asked)).assistant.text == "yes"
        await engine.close()
        assert server.seen.generations[0]["model"] == model


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://", "is no URL"),
        ("ftp://h", "is no URL"),
        ("h:8000", "is no URL"),
        ("http://h:99999", "is no URL"),
        ("http://h:port", "is no URL"),
        ("http://[::1", "is no URL"),
        ("http://:80", "is no URL"),
        ("http://a b", "spaces or control"),
        ("http://h\r\nx: y", "spaces or control"),
        (f"https://user:{KEY}@h", "a key stands in the URL"),
        (f"https://h/v1?key={KEY}", "no query"),
        (f"https://h/v1#{KEY}", "no query"),
        (f"ftp://user:{KEY}@h?k={KEY}", "is no URL"),
    ],
)
def test_addresses_that_are_none(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        remote_url(url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"two\nlines",
        b"with space",
        b"\xff\xfe",
        "schlüssel".encode(),
        b"a\rb",
        b"a\0b",
        b"k" * 9000 + b" x",
    ],
)
def test_files_that_hold_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_key(str(tmp_path / "key"), None, "engine")
    assert "engine.key_file" in str(caught.value)
    assert not content.strip() or content.decode("utf-8", "replace") not in str(caught.value)


def test_a_key_is_read_whatever_stands_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(f"  {KEY}\r\n\n")
    assert read_key(str(tmp_path / "key"), None, "engine") == KEY
    monkeypatch.setenv("A_KEY", KEY)
    assert read_key(None, "A_KEY", "engine") == KEY
    for file, variable in ((str(tmp_path), None), (str(tmp_path / "none"), None), ("x", "A_KEY"), (None, "NO_SUCH")):
        with pytest.raises(ConfigError):
            read_key(file, variable, "engine")
    monkeypatch.setenv("A_KEY", "two words")
    with pytest.raises(ConfigError) as caught:
        read_key(None, "A_KEY", "engine")
    assert "two words" not in str(caught.value)
