"""Clients that leave, and sessions that end, in every moment of a call."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.gateway_kit import Kit, body, gateway, user
from service.wire_kit import wire
from tugline.core.turn import CallOutcome
from tugline.gateway import delivery
from tugline.gateway.running import Timing

URL = "/v1/chat/completions"


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def leave(kit: Kit, secret: str, after: float) -> None:
    """Send a request and leave."""
    with pytest.raises(asyncio.TimeoutError):
        await kit.http.post(
            kit.gateway.url + URL,
            json=body(user("go")),
            headers=bearer(secret),
            timeout=aiohttp.ClientTimeout(total=after),
        )


async def test_a_generation_that_every_joined_client_left_is_aborted(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"text": "one", "delay_s": 30}], timing=Timing(5.0, 0.4)) as kit:
        secret = (await kit.session()).secret
        first = asyncio.ensure_future(leave(kit, secret, 0.1))
        await first
        await leave(kit, secret, 0.1)  # joins within the grace, and leaves too
        async with asyncio.timeout(5):
            while not (calls := list(kit.store.iter_calls("ses_a"))):
                await asyncio.sleep(0.02)
        assert {c.outcome for c in calls} == {CallOutcome.UNDELIVERED}  # one record, or both by now
        assert list(kit.store.iter_turns("ses_a")) == []


async def test_a_session_that_ends_while_a_body_is_read_samples_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, go_on = threading.Event(), threading.Event()
    plain = delivery.decoded

    def slow(incoming: Any) -> Any:
        decoding.set()
        assert go_on.wait(20)
        return plain(incoming)

    monkeypatch.setattr(delivery, "decoded", slow)
    async with gateway(tmp_path, [{"text": "one"}]) as kit:
        secret = (await kit.session()).secret
        asked = asyncio.ensure_future(kit.post(body(user("go"), other="x" * delivery.BIG_BODY), key=secret))
        assert await asyncio.to_thread(decoding.wait, 20)
        await kit.gateway.close("ses_a")
        go_on.set()
        status, answer = await asked
        assert (status, answer["error"]["code"]) == (403, "session_ended")
        assert (kit.engine._state.sessions, kit.engine._state.served) == ({}, 0)  # type: ignore[attr-defined]


async def test_a_reply_that_is_not_read_until_the_session_has_ended_is_not_kept(tmp_path: Path) -> None:
    async with wire(tmp_path, [{"text": "one"}], context=100_000) as kit:
        secret = (await kit.session()).secret
        server: Any = kit.gateway._listener._server  # type: ignore[union-attr]
        server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(client.connect, ("127.0.0.1", int(kit.gateway.url.rpartition(":")[2])))
        tools = [{"type": "function", "name": "t", "description": "d " * 40_000, "parameters": {"type": "object"}}]
        data = json.dumps({"model": "m", "input": "go", "stream": True, "tools": tools}).encode()
        head = f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
        await asyncio.to_thread(client.sendall, f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        async with asyncio.timeout(20):
            while not kit.turns():
                await asyncio.sleep(0.02)
        await kit.gateway.close("ses_a")
        client.close()
        state: Any = kit.gateway._listener._state  # type: ignore[union-attr]
        async with asyncio.timeout(20):
            while state.connections or state.tasks:
                await asyncio.sleep(0.02)
        assert kit.gateway._delivery._replies == {}
