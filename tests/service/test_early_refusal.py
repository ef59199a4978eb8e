"""A body refused before it has been read: the client sees why, however it sends."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from service.wire_kit import wire

SIZE = 8 << 20


def send_all_then_read(port: int, secret: str, declared: bool) -> bytes:
    """A client that reads nothing before its last byte is out, as blocking ones do."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
        if declared:
            sock.sendall(f"{head}content-length: {SIZE}\r\n\r\n".encode() + b"x" * SIZE)
        else:
            chunk = b"x" * (SIZE // 8)
            sock.sendall(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
            for _ in range(8):
                sock.sendall(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            sock.sendall(b"0\r\n\r\n")
        answer = b""
        while piece := sock.recv(1 << 16):
            answer += piece
        return answer


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
async def test_a_client_that_sends_on_still_gets_the_answer(tmp_path: Path, declared: bool) -> None:
    async with wire(tmp_path, [{"text": "x"}]) as run:
        access = await run.session()
        port = int(run.gateway.url.rpartition(":")[2])
        for _ in range(8):
            answer = await asyncio.to_thread(send_all_then_read, port, access.secret, declared)
            assert answer.startswith(b"HTTP/1.1 413"), answer[:200]
            assert answer.endswith(b"}") and b"1048576" in answer


async def test_a_client_that_never_ends_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tugline.gateway.app.LINGER", 0.2)

    def flood(port: int, secret: str) -> float:
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
            sock.sendall(f"{head}content-length: {1 << 40}\r\n\r\n".encode())
            begun = time.monotonic()
            try:
                while time.monotonic() - begun < 15:
                    sock.sendall(b"x" * 65536)
            except OSError:
                pass
            return time.monotonic() - begun

    async with wire(tmp_path, [{"text": "x"}]) as run:
        access = await run.session()
        took = await asyncio.to_thread(flood, int(run.gateway.url.rpartition(":")[2]), access.secret)
        assert 0.1 < took < 10
