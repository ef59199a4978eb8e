"""Replies behind which the connection is closed, or that were asked for before they came: who has not read is seen."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from service.raw_client import RawClient, request_of
from service.test_disconnects import END, check_idle, end, leave, outcomes, small_buffers, trained
from service.wire_kit import wire
from tugline.core.columns import count
from tugline.core.items import Request
from tugline.core.turn import CallOutcome
from tugline.gateway import receipt, server
from tugline.gateway.connection import Connection
from tugline.gateway.receipt import Line
from tugline.gateway.running import Timing

TEXT = "A long answer. " * 60


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("again", ["replayed", "joined"])
async def test_a_second_client_that_closes_and_has_not_read_has_nothing(
    tmp_path: Path, stream: bool, again: str
) -> None:
    """It fits into the sockets, so that our side has closed the connection long before the client leaves."""
    script = [{"text": TEXT, "delay_s": 0.5 if again == "joined" else 0.02}]
    async with wire(tmp_path, script, context=100_000, timing=Timing(5.0, 5.0)) as kit:
        access, ask = await kit.session(max_tokens=20_000), request_of("chat", "go", stream=stream)
        how: dict[str, Any] = {"close": True, "end": END["chat"] if stream else None, "total": 1000}
        small_buffers(kit)
        await leave(kit, access, ask, 0, **how)
        if again == "replayed":
            await outcomes(kit, "ses_a", {CallOutcome.UNDELIVERED}, 1)
            await check_idle(kit)
        for n in (1, 2):
            await leave(kit, access, ask, 25, **how)
            await outcomes(kit, "ses_a", {CallOutcome.UNDELIVERED}, 1 + n)
        rows = await end(kit, "ses_a")
        (turn,) = kit.turns()
        assert (trained(rows), rows.untrained) == (0, {"undelivered": count(turn.sampled)})


async def test_requests_that_are_sent_at_once_do_not_say_that_the_first_reply_was_read(tmp_path: Path) -> None:
    async with wire(tmp_path, [{"settings": {"repeat": True}}, {"text": TEXT, "delay_s": 0.2}]) as kit:
        access = await kit.session()
        client = await asyncio.to_thread(RawClient, kit.gateway.url, access.secret)
        session = kit.gateway._sessions["ses_a"]
        for n in (1, 2):
            client.ask(*request_of("chat", f"go {n}", stream=False))
            await asyncio.sleep(0.05)
        async with asyncio.timeout(10):
            while session.calls["answered"] < 2:
                await asyncio.sleep(0.01)
        client.leave()
        async with asyncio.timeout(10):
            while session.calls["undelivered"] < 2:
                await asyncio.sleep(0.01)
        assert trained(await end(kit, "ses_a")) == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
async def test_a_client_that_leaves_as_the_last_part_waits_for_room_has_not_got_it(
    tmp_path: Path, stream: bool, leaves: bool
) -> None:
    """It has read all that was sent before, and closes with a farewell: nothing is unread then."""

    class Pipe:
        def is_closing(self) -> bool:
            return False

        def get_write_buffer_size(self) -> int:
            return 0

        def get_extra_info(self, _: str) -> None:
            return None

    pipe: Any = Pipe()
    line = Line(pipe)
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not message["more_body"] and leaves:
            line.farewell()  # while this part waited for room
        sent.append(message.get("body", b""))

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async with wire(tmp_path, [{"text": "one"}]) as kit:
        delivery: Any = kit.gateway._delivery
        made: list[Any] = []
        honest = delivery._send

        async def keep(conn: Any, call: Any, reply: Any, follower: Any = None) -> bool:
            made[:] = [call, reply]
            return bool(await honest(conn, call, reply, follower))

        delivery._send = keep
        client = await asyncio.to_thread(RawClient, kit.gateway.url, (await kit.session()).secret)
        client.ask(*request_of("chat", "go", stream=stream))
        await asyncio.to_thread(client.read)
        client.leave()
        assert await honest(Connection(send, receive, line), *made) is not leaves
        assert sent


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("read", [False, True])
async def test_connections_that_stay_open_and_replies_that_wait_hold_no_conversations(
    tmp_path: Path, read: bool, stream: bool
) -> None:
    """Each request brings all of its conversation again: of the ones that were answered nothing is needed."""
    async with wire(tmp_path, [{"settings": {"repeat": True}}, {"text": TEXT, "delay_s": 0.05}]) as kit:
        access = await kit.session()
        clients = []
        for n in range(4):
            client = await asyncio.to_thread(RawClient, kit.gateway.url, access.secret)
            client.ask(*request_of("chat", f"mark {n}", stream=stream))
            if read:
                await asyncio.to_thread(client.read)
                clients.append(client)
            else:
                client.leave()
        await outcomes(kit, "ses_a", {CallOutcome.ANSWERED if read else CallOutcome.UNDELIVERED}, 4)
        await check_idle(kit)
        session, waiting = kit.gateway._sessions["ses_a"], kit.gateway._delivery._replies
        async with asyncio.timeout(5):
            while session.serving:
                await asyncio.sleep(0.01)
        assert (len(session.receipts._open), len(waiting)) == ((4, 0) if read else (0, 4))
        gc.collect()
        held = [r for r in gc.get_objects() if type(r) is Request and "mark" in str(r.items)]
        assert held == []
        for client in clients:
            client.leave()


@pytest.mark.parametrize("reads", [False, True])
async def test_a_connection_that_is_closed_for_its_silence_still_tells(
    tmp_path: Path, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply is in our system's buffers, where nobody takes it; then it is too late to ask the transport."""
    monkeypatch.setattr(server, "KEEP_ALIVE", 0.3)
    async with wire(tmp_path, [{"text": TEXT * 20}], context=100_000) as kit:
        access = await kit.session(max_tokens=20_000)
        client = await asyncio.to_thread(RawClient, kit.gateway.url, access.secret, small=True)
        client.ask(*request_of("chat", "go", stream=False))
        state: Any = kit.gateway._listener._state  # type: ignore[union-attr]
        session = kit.gateway._sessions["ses_a"]
        async with asyncio.timeout(10):
            while state.connections or not session.calls["answered"]:
                await asyncio.sleep(0.01)
        if reads:
            assert (await asyncio.to_thread(client.read)).whole
        client.leave()
        async with asyncio.timeout(10):
            while session.receipts._open:
                await asyncio.sleep(0.01)
        assert session.calls == ({"answered": 1} if reads else {"answered": 0, "undelivered": 1})
        (turn,) = kit.turns()
        assert trained(await end(kit, "ses_a")) == (count(turn.sampled) if reads else 0)


async def test_a_client_that_is_slow_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipt, "LINGER", 0.1)
    async with wire(tmp_path, [{"text": TEXT * 20}], context=100_000) as kit:
        access = await kit.session(max_tokens=20_000)
        client = await asyncio.to_thread(RawClient, kit.gateway.url, access.secret, small=True, close=True)
        client.ask(*request_of("chat", "go", stream=False))
        session = kit.gateway._sessions["ses_a"]
        async with asyncio.timeout(10):
            while not session.calls["answered"]:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        assert (await asyncio.to_thread(client.read)).whole
        client.leave()
        async with asyncio.timeout(10):
            while session.receipts._open:
                await asyncio.sleep(0.01)
        assert session.calls == {"answered": 1}
