"""Where a request ends and who sent it, on the wire: offers of other protocols, trailers, pieces."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from service.control_kit import TOKEN, control
from service.gateway_kit import gateway

SCRIPT: list[object] = [{"settings": {"repeat": True}}, {"text": "fine"}]
ASK = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
JDK = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAA\r\n"
"""What the HTTP client of the JDK sends with every request to an http:// address."""


async def talk(url: str, pieces: list[bytes]) -> list[int]:
    """Statuses of the answers on one connection, which the server closes behind the last one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(20):
            data = await reader.read()
    finally:
        writer.close()
    return [int(part[:3]) for part in data.split(b"HTTP/1.1 ")[1:]]


def request(key: str, body: bytes, more: bytes = b"", path: str = "/v1/chat/completions") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n".encode()
    return head + more + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def chunked(key: str, body: bytes, more: bytes = b"", trailers: bytes = b"") -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n".encode()
    pieces = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
    return head + more + b"transfer-encoding: chunked\r\n\r\n" + pieces + b"0\r\n" + trailers + b"\r\n"


@pytest.mark.parametrize("size", [1, 50, 1 << 16])
async def test_an_offer_of_http2_loses_no_body(tmp_path: Path, size: int) -> None:
    async with gateway(tmp_path, SCRIPT) as kit:
        key = (await kit.session()).secret
        sent = request(key, ASK, JDK) + chunked(key, ASK, JDK) + request(key, ASK)
        sent += request(key, ASK, JDK.replace(b"Upgrade,", b"close, Upgrade,"))
        statuses = await talk(kit.gateway.url, [sent[i : i + size] for i in range(0, len(sent), size)])
        assert statuses == [200, 200, 200, 200]
        assert len(list(kit.store.iter_turns("ses_a"))) == 4


async def test_an_offer_of_http2_loses_no_reward(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        made = await c.open()
        await c.chat(made["key"])
        path = f"/api/v1/sessions/{made['session']}/end"
        more = JDK.replace(b"Upgrade,", b"close, Upgrade,")
        assert await talk(c.url, [request(TOKEN, b'{"reward": 0.5}', more, path)]) == [200]
        _, shown = await c.ask("GET", f"/api/v1/sessions/{made['session']}")
        assert shown["reward"] == 0.5


async def test_a_websocket_with_a_body_is_refused_in_words(tmp_path: Path) -> None:
    async with gateway(tmp_path, SCRIPT) as kit:
        key = (await kit.session()).secret
        offer = b"connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: eA==\r\nsec-websocket-version: 13\r\n"
        assert await talk(kit.gateway.url, [request(key, ASK, offer)]) == [426]


async def test_trailers_do_not_say_who_is_calling(tmp_path: Path) -> None:
    async with control(tmp_path, SCRIPT) as c:
        mine, other = await c.kit.session("ses_mine"), await c.kit.session("ses_other")
        trailers = f"authorization: Bearer {other.secret}\r\ncontent-encoding: zstd\r\n".encode()
        last = b"connection: close\r\n"
        assert await talk(c.kit.gateway.url, [chunked(mine.secret, ASK, last, trailers)]) == [200]
        assert [len(list(c.kit.store.iter_turns(name))) for name in ("ses_mine", "ses_other")] == [1, 0]
        sent = (
            b"GET /api/v1/sessions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
        )
        assert await talk(c.url, [sent + f"authorization: Bearer {TOKEN}\r\n\r\n".encode()]) == [401]
