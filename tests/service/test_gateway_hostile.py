"""What one client must not be able to take from the others: memory, descriptors, answers."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from service.gateway_kit import Kit, body, gateway, user
from tugline.gateway import server

pytestmark = pytest.mark.usefixtures("no_blocking")
SCRIPT: list[object] = [{"settings": {"repeat": True}}, {"text": "fine"}]
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\n"


def port_of(kit: Kit) -> int:
    return int(kit.gateway.url.rpartition(":")[2])


async def answers(kit: Kit, key: str) -> bool:
    status, _ = await kit.post(body(user("still there?")), key=key)
    return status == 200


async def pour(port: int, start: bytes, piece: bytes, most: int) -> int:
    """Send `start`, then `piece` again and again: bytes sent when the server cut the connection, or `most`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    sent = 0
    try:
        writer.write(start)
        while sent < most and not reader.at_eof():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(0)
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()
    return sent


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"POST / HTTP/1.1\r\nx: ", b"a" * 65536),
        (b"POST / HTTP/1.1\r\n", b"x: %s\r\n" % (b"a" * 1000) * 64),
        (b"POST /", b"a" * 4096),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1;", b"a" * 65536),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n", b"x: %s\r\n" % (b"a" * 1000) * 64),
    ],
    ids=["header", "headers", "target", "chunk-extension", "trailers"],
)
async def test_a_request_without_end_is_cut(tmp_path: Path, start: bytes, piece: bytes) -> None:
    async with gateway(tmp_path, SCRIPT) as kit:
        access = await kit.session()
        opening = start.replace(b"%s", access.secret.encode())
        assert await pour(port_of(kit), opening, piece, 64 << 20) < 16 << 20
        assert await answers(kit, access.secret)


async def test_a_long_but_honest_head_and_many_small_chunks_are_served(tmp_path: Path) -> None:
    async with gateway(tmp_path, SCRIPT) as kit:
        access = await kit.session()
        status, _ = await kit.post(body(user("x")), key=access.secret, **{f"x-{i}": "a" * 900 for i in range(20)})
        assert status == 200

        async def trickle() -> Any:
            for byte in json.dumps(body(user("x" * 2000))).encode():
                yield bytes([byte])

        url = kit.gateway.url + "/v1/chat/completions"
        headers = {"authorization": f"Bearer {access.secret}"}
        async with kit.http.post(url, data=trickle(), headers=headers) as answer:
            assert answer.status == 200


async def test_one_sandbox_cannot_take_the_connections_of_the_others(tmp_path: Path) -> None:
    async with gateway(tmp_path, SCRIPT) as kit:
        access, other = await kit.session("ses_a"), await kit.session("ses_b")
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        close = await kit.gateway.serve("ses_a", listener)
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(server.AGENT_CONNECTIONS + 20)]
        last = held[-1][0]
        async with asyncio.timeout(5):
            with pytest.raises(ConnectionError):
                if not await last.read(1):
                    raise ConnectionResetError
        assert not held[0][0].at_eof()
        assert await answers(kit, other.secret)
        assert await answers(kit, access.secret)
        for _, writer in held:
            writer.transport.abort()
        await close()


async def test_bodies_of_one_session_are_bounded_together(tmp_path: Path) -> None:
    async with gateway(tmp_path, SCRIPT) as kit:
        access, other = await kit.session("ses_a"), await kit.session("ses_b")
        head = HEAD % access.secret.encode() + b"content-length: 1000000\r\n\r\n"
        held = [await asyncio.open_connection("127.0.0.1", port_of(kit)) for _ in range(12)]
        for _, writer in held:
            writer.write(head + b"{" * 999_999)
            await writer.drain()
        done, waiting = await asyncio.wait([asyncio.ensure_future(r.read(12)) for r, _ in held], timeout=1)
        assert {d.result() for d in done} == {b"HTTP/1.1 429"}
        assert len(done) == 4
        status, _ = await kit.post(gzip.compress(b" " * 1_000_000), key=access.secret, **{"content-encoding": "gzip"})
        assert status == 429
        assert await answers(kit, other.secret)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for _, writer in held:
            writer.transport.abort()
        async with asyncio.timeout(5):
            while kit.gateway._sessions["ses_a"].held:
                await asyncio.sleep(0.01)
        assert await answers(kit, access.secret)
