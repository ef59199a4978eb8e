"""Replies on their way as a session ends, and replies that several clients ask for: what nobody got trains nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.wire_kit import Wire, wire
from tugline.core.turn import CallOutcome
from tugline.gateway.running import Timing
from tugline.trajectory.rows import undelivered_turns

URL, CHAT = "/v1/responses", "/v1/chat/completions"


def narrow(kit: Wire) -> socket.socket:
    """A client that takes a few kilobytes and then reads no more."""
    server: Any = kit.gateway._listener._server  # type: ignore[union-attr]
    server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    return client


async def ask(kit: Wire, client: socket.socket, secret: str, *, stream: bool) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", int(kit.gateway.url.rpartition(":")[2])))
    schema = {"type": "object", "description": "d" * 300_000}  # the reply repeats it, no prompt holds it
    output = {"format": {"type": "json_schema", "name": "o", "schema": schema}}
    data = json.dumps({"model": "m", "input": "go", "stream": stream, "text": output}).encode()
    head = f"POST {URL} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
    await loop.sock_sendall(client, f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)


async def test_a_session_that_ends_while_a_reply_is_on_its_way_does_not_train_it(tmp_path: Path) -> None:
    for n, stream in enumerate((False, True)):
        async with wire(tmp_path / str(n), [{"text": "one"}]) as kit:
            secret = (await kit.session(constraints="ignore")).secret
            client = narrow(kit)
            await ask(kit, client, secret, stream=stream)
            async with asyncio.timeout(20):
                while not kit.turns():
                    await asyncio.sleep(0.02)
            await asyncio.sleep(0.1)  # the sender is waiting for room now
            proof = await kit.prove()
            client.close()
            turns, calls = kit.turns(), list(kit.store.iter_calls("ses_a"))
            assert [c.outcome for c in calls] == [CallOutcome.UNDELIVERED]
            assert undelivered_turns(turns, calls) == {turns[0].turn_id}
            assert proof.trained_tokens == 0


def chat(secret: str, text: str = "go") -> dict[str, Any]:
    return {"json": {"model": "m", "messages": [{"role": "user", "content": text}]}, "headers": bearer(secret)}


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


async def outcomes(kit: Wire, *wanted: CallOutcome) -> None:
    """Wait until the calls of the session are recorded so, in whatever order."""
    async with asyncio.timeout(20):
        while sorted(call.outcome for call in kit.store.iter_calls("ses_a")) != sorted(wanted):
            await asyncio.sleep(0.02)


async def leave(kit: Wire, http: aiohttp.ClientSession, secret: str) -> None:
    """Ask, and leave when the gateway samples."""
    asked = asyncio.ensure_future(http.post(kit.gateway.url + CHAT, **chat(secret)))
    async with asyncio.timeout(20):
        while not kit.gateway._delivery._running:
            await asyncio.sleep(0.01)
    asked.cancel()
    await asyncio.wait([asked])


async def replies(kit: Wire, http: aiohttp.ClientSession, secret: str, n: int) -> list[str]:
    """Ids of the replies to n equal requests at a time."""

    async def one() -> str:
        async with http.post(kit.gateway.url + CHAT, **chat(secret)) as response:
            assert response.status == 200
            return str((await response.json())["id"])

    return list(await asyncio.gather(*(one() for _ in range(n))))


@pytest.mark.parametrize("delay", [0.6, 1.5])
async def test_of_requests_that_come_together_one_is_the_retry(tmp_path: Path, delay: float) -> None:
    """The reply that nobody got, or the generation that nobody waits for, is for one of them; the others sample."""
    script: list[object] = [{"text": f"reply {n}", "delay_s": delay if not n else 0.05} for n in range(4)]
    async with wire(tmp_path, script, timing=Timing(5.0, 10.0)) as kit, aiohttp.ClientSession() as http:
        secret = (await kit.session()).secret
        await leave(kit, http, secret)
        if delay < 1:  # the reply is there before they come
            await outcomes(kit, CallOutcome.UNDELIVERED)
        ids = await replies(kit, http, secret, 3)
        assert len(set(ids)) == 3
        again = CallOutcome.REPLAYED if delay < 1 else CallOutcome.COALESCED
        await outcomes(kit, CallOutcome.UNDELIVERED, again, CallOutcome.ANSWERED, CallOutcome.ANSWERED)
        proof = await kit.prove()
        assert proof.findings == []
        assert proof.trained_tokens == proof.sampled_tokens


async def test_a_reply_is_spelled_in_the_api_that_asks_again(tmp_path: Path) -> None:
    """The same words through two APIs are one request; who left asked for another spelling."""
    async with wire(tmp_path, [{"text": "one", "delay_s": 0.6}]) as kit, aiohttp.ClientSession() as http:
        secret = (await kit.session()).secret
        await leave(kit, http, secret)
        await outcomes(kit, CallOutcome.UNDELIVERED)
        asked = {"model": "m", "input": "go", "instructions": None, "stream": True, "metadata": {"a": "b"}}
        async with http.post(kit.gateway.url + URL, json=asked, headers=bearer(secret)) as response:
            assert response.status == 200
            text = await response.text()
        assert "response.completed" in text and '"one"' in text
        await outcomes(kit, CallOutcome.UNDELIVERED, CallOutcome.REPLAYED)


async def test_a_stream_asked_for_with_usage_gets_it_though_the_first_asked_without(tmp_path: Path) -> None:
    async with wire(tmp_path, [{"text": "one", "delay_s": 0.6}]) as kit, aiohttp.ClientSession() as http:
        secret = (await kit.session()).secret
        await leave(kit, http, secret)
        await outcomes(kit, CallOutcome.UNDELIVERED)
        more = {"stream": True, "stream_options": {"include_usage": True}}
        asked = chat(secret)
        async with http.post(kit.gateway.url + CHAT, json=asked["json"] | more, headers=asked["headers"]) as response:
            text = await response.text()
        assert '"completion_tokens"' in text
        await outcomes(kit, CallOutcome.UNDELIVERED, CallOutcome.REPLAYED)


async def test_the_call_of_a_client_that_left_is_no_delivery_whoever_is_told_first(tmp_path: Path) -> None:
    """The waiter that joined gets the reply before the one that left notices: should it be lost too, nobody has it."""
    async with wire(tmp_path, [{"text": "one"}]) as kit, aiohttp.ClientSession() as http:
        secret = (await kit.session()).secret
        delivery: Any = kit.gateway._delivery
        plain = delivery._settle

        async def settle(session: Any, calls: Any, attached: Any, produced: Any, _: CallOutcome) -> None:
            calls[0].lane.forest.mark_delivered(produced.turn.turn_id)  # as the one that joined has done
            await plain(session, calls, attached, produced, CallOutcome.UNDELIVERED)

        delivery._settle = settle
        await replies(kit, http, secret, 1)
        await outcomes(kit, CallOutcome.UNDELIVERED)
        assert not delivery._replies
