"""Clients that leave when they have read 0, 25, 50, 99 or all of a reply's bytes.

120 disconnects, from replies that do not fit into the sockets. The long form, TUGLINE_TEST_DISCONNECTS=N from 2 on, has
180 N more from replies that do: 3 N for each part of each API and form.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from service.raw_client import Answer, RawClient, request_of
from service.wire_kit import DIALECT_NAMES, Wire, wire
from tugline.cli.wiring import make_trajectory
from tugline.core.columns import count
from tugline.core.contracts import Access
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.trace import Trajectory
from tugline.core.turn import CallOutcome
from tugline.gateway.running import Timing

ROUNDS = int(os.environ.get("TUGLINE_TEST_DISCONNECTS", "1"))
SAY = {
    "reasoning": "Think of é. " * 20,
    "text": "A long answer. " * 700,
    "calls": [{"name": "bash", "arguments": '{"command": "ls"}'}],
    "delay_s": 0.02,
}
PARTS = (0, 25, 50, 99, 100)
END = {"chat": b"data: [DONE]", "anthropic": b"event: message_stop", "gemini": b'"finishReason"'}
END["responses"] = b"event: response.completed"
FORMS = (("buffered", False), ("buffered", True), ("live", True))
BIG = SAY["text"]
SIZES = [pytest.param(BIG, 1, id="big")]
if ROUNDS > 1:
    SIZES.append(pytest.param("A long answer. " * 60, ROUNDS, id="small"))
AGAIN = (CallOutcome.REPLAYED, CallOutcome.COALESCED)


def read_part(client: RawClient, part: int, end: bytes | None, total: int) -> None:
    """Read `part` percent of a response. `end`: what the terminal part of a stream begins with: 99 % is all before it,
    and as streams that are cut elsewhere have other lengths, less is a share of the length that one had before."""
    if part == 100:
        assert client.read().whole
    elif end is None:
        client.until(b"\r\n\r\n", 1)
        head = client.answer.head
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        client.read(len(head) + (length * part // 100 if part < 99 else length - 1))
    elif part == 99:
        client.until(end, 1)
    else:
        client.read(total * part // 100)
    assert part == 100 or not client.answer.whole


async def leave(kit: Wire, access: Access, ask: tuple[str, bytes], part: int, **how: Any) -> None:
    """Ask, read a part, leave; nothing is read before the gateway has taken the call."""
    taken = threading.Event()
    session = kit.gateway._sessions[access.session_id]
    before = session._next_call

    async def tell() -> None:
        while session._next_call == before:
            await asyncio.sleep(0.001)
        taken.set()

    def go() -> None:
        client = RawClient(kit.gateway.url, access.secret, small=True, close=how["close"])
        try:
            client.ask(*ask)
            if not part:
                taken.wait(10)
            else:
                read_part(client, part, how["end"], how["total"])
        finally:
            client.leave()

    await asyncio.gather(asyncio.to_thread(go), tell())


async def ask_again(kit: Wire, access: Access, ask: tuple[str, bytes]) -> Answer:
    def go() -> Answer:
        client = RawClient(kit.gateway.url, access.secret)
        try:
            client.ask(*ask)
            return client.read()
        finally:
            client.leave()

    return await asyncio.to_thread(go)


async def outcomes(kit: Wire, name: str, expected: set[CallOutcome], calls: int) -> None:
    """Wait until the calls of a session have ended so."""
    found: list[CallOutcome] = []
    try:
        async with asyncio.timeout(10):
            while len(found) != calls or not set(found) <= expected:
                await asyncio.sleep(0.005)
                found = [c.outcome for c in kit.store.iter_calls(name)]
    except TimeoutError:
        raise AssertionError(f"{name}: {found}, not {expected}") from None


async def end(kit: Wire, name: str) -> Trajectory:
    """Close a session; its rows."""
    summary = await kit.gateway.close(name)
    calls = list(kit.store.iter_calls(name))
    assert sum(summary.calls.values()) == len(calls), (summary.calls, calls)
    ended = Ended(SessionKey(name, f"grp_{name}", "task", 0), Outcome.COMPLETED, 1.0)
    return make_trajectory(ended, kit.turns(name), calls)


def trained(rows: Trajectory) -> int:
    return sum(sum(trace.loss_mask) for trace in rows.traces)


async def check_idle(kit: Wire) -> None:
    """No work is left behind, neither at the engine nor here."""
    async with asyncio.timeout(5):
        while kit.engine._state.running or kit.gateway._delivery._running:  # type: ignore[attr-defined]
            await asyncio.sleep(0.005)


def small_buffers(kit: Wire) -> None:
    server: Any = kit.gateway._listener._server  # type: ignore[union-attr]
    server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


@pytest.mark.parametrize(("mode", "stream"), FORMS)
@pytest.mark.parametrize("api", DIALECT_NAMES)
@pytest.mark.parametrize(("text", "rounds"), SIZES)
@pytest.mark.timeout(120 + 60 * ROUNDS)
async def test_a_client_that_leaves(tmp_path: Path, api: str, mode: Any, stream: bool, text: str, rounds: int) -> None:
    script = [{"settings": {"repeat": True, "noncanonical": 0.2, "seed": 1}}, SAY | {"text": text}]
    ask, terminal = request_of(api, "go", stream=stream), END[api] if stream else None
    async with wire(tmp_path, script, context=100_000, streaming=mode, timing=Timing(5.0, 5.0)) as kit:
        small_buffers(kit)
        first = await ask_again(kit, await kit.session("ref", max_tokens=20_000), ask)
        how: dict[str, Any] = {"end": terminal, "total": len(first.head) + len(first.raw)}
        for n in range(rounds):
            for part in PARTS:
                await check_unseen(kit, f"a{n}.{part}", ask, part, how | {"close": False})
                for close in (False, True) if rounds > 1 else (part % 2 == 1,):
                    await check_retry(kit, f"b{n}.{part}.{close}", ask, part, how | {"close": close})
        await check_idle(kit)


async def check_unseen(kit: Wire, name: str, ask: tuple[str, bytes], part: int, how: dict[str, Any]) -> None:
    """Nobody comes back: trained is what was read."""
    access = await kit.session(name, max_tokens=20_000)
    await leave(kit, access, ask, part, **how)
    await outcomes(kit, name, {CallOutcome.ANSWERED if part == 100 else CallOutcome.UNDELIVERED}, 1)
    await check_idle(kit)
    rows = await end(kit, name)
    (turn,) = kit.turns(name)
    assert trained(rows) == (count(turn.sampled) if part == 100 else 0)
    assert rows.untrained == ({} if part == 100 else {"undelivered": count(turn.sampled)})
    assert kit.gateway._delivery._replies == {}


async def check_retry(kit: Wire, name: str, ask: tuple[str, bytes], part: int, how: dict[str, Any]) -> None:
    """The same body at once: the reply that was not read, or another sample."""
    access = await kit.session(name, max_tokens=20_000)
    await leave(kit, access, ask, part, **how)
    again = await ask_again(kit, access, ask)
    assert again.whole
    turns = kit.turns(name)
    assert len(turns) == (2 if part == 100 else 1), f"{name}: {[c.outcome for c in kit.store.iter_calls(name)]}"
    expected = {CallOutcome.ANSWERED} if part == 100 else {CallOutcome.UNDELIVERED, *AGAIN}
    assert turns[-1].turn_id.removeprefix("turn_").encode() in again.raw
    await outcomes(kit, name, expected, 2)
    await check_idle(kit)
    rows = await end(kit, name)
    assert trained(rows) == sum(count(turn.sampled) for turn in turns)


@pytest.mark.parametrize("api", DIALECT_NAMES)
@pytest.mark.parametrize("mode", ["buffered", "live"])
async def test_a_generation_that_nobody_comes_back_for_is_aborted(tmp_path: Path, api: str, mode: Any) -> None:
    script = [{"text": "word " * 400, "delay_s": 30}]
    async with wire(tmp_path, script, streaming=mode, timing=Timing(0.05, 0.1)) as kit:
        access = await kit.session()
        client = await asyncio.to_thread(RawClient, kit.gateway.url, access.secret)
        client.ask(*request_of(api, "go", stream=True))
        await asyncio.to_thread(client.until, b"word" if mode == "live" else b"\n\n")
        client.leave()
        await outcomes(kit, "ses_a", {CallOutcome.UNDELIVERED}, 1)
        await check_idle(kit)
        assert kit.turns() == []


@pytest.mark.parametrize("mode", ["buffered", "live"])
async def test_a_reply_that_was_not_read_and_is_continued_all_the_same_was_seen(tmp_path: Path, mode: Any) -> None:
    """Clients that stop at the last event and drop the connection have what they need."""
    script = [SAY | {"calls": []}, {"text": "Second."}]
    async with wire(tmp_path, script, context=100_000, streaming=mode) as kit:
        small_buffers(kit)
        access = await kit.session(max_tokens=20_000)
        path, asked = request_of("chat", "go", stream=True)
        await leave(kit, access, (path, asked), 99, close=False, end=END["chat"], total=0)
        await outcomes(kit, "ses_a", {CallOutcome.UNDELIVERED}, 1)
        said = {"role": "assistant", "content": SAY["text"], "reasoning_content": SAY["reasoning"]}
        history = [{"role": "user", "content": "go"}, said, {"role": "user", "content": "on"}]
        await ask_again(kit, access, request_of("chat", "go", stream=True, messages=history))
        rows = await end(kit, "ses_a")
        first, second = kit.turns()
        assert second.parent == first.turn_id
        assert trained(rows) == count(first.sampled) + count(second.sampled)


async def test_a_connection_that_goes_on_has_read_what_came_before(tmp_path: Path) -> None:
    """A reset later says nothing about the reply before."""
    async with wire(
        tmp_path, [{"text": "One."}, {"text": "Two. " * 100, "delay_s": 30}], timing=Timing(5.0, 0.05)
    ) as kit:
        access = await kit.session()
        client = await asyncio.to_thread(RawClient, kit.gateway.url, access.secret)
        client.ask(*request_of("chat", "go", stream=True))
        assert (await asyncio.to_thread(client.read)).whole
        client.ask(*request_of("chat", "other", stream=True))
        await asyncio.sleep(0.1)
        client.leave(reset=True)
        await outcomes(kit, "ses_a", {CallOutcome.ANSWERED, CallOutcome.UNDELIVERED}, 2)
        assert [c.outcome for c in kit.store.iter_calls("ses_a") if c.turn_id] == [CallOutcome.ANSWERED]


async def test_of_two_clients_with_one_reply_one_that_read_it_is_enough(tmp_path: Path) -> None:
    async with wire(tmp_path, [SAY | {"delay_s": 0.6}], context=100_000, timing=Timing(5.0, 5.0)) as kit:
        small_buffers(kit)
        access = await kit.session(max_tokens=20_000)
        ask = request_of("chat", "go", stream=True)
        await leave(kit, access, ask, 0, close=False)
        await asyncio.sleep(0.1)
        joined = asyncio.ensure_future(ask_again(kit, access, ask))
        await asyncio.sleep(0.1)
        assert (await joined).whole
        await outcomes(kit, "ses_a", {CallOutcome.COALESCED, CallOutcome.UNDELIVERED}, 2)
        rows = await end(kit, "ses_a")
        assert trained(rows) == count(kit.turns()[0].sampled)


async def test_a_client_that_joined_and_left_too_has_seen_nothing(tmp_path: Path) -> None:
    async with wire(tmp_path, [SAY | {"delay_s": 0.6}], context=100_000, timing=Timing(5.0, 5.0)) as kit:
        access = await kit.session(max_tokens=20_000)
        ask = request_of("chat", "go", stream=True)
        for _ in range(2):
            await leave(kit, access, ask, 0, close=False)
            await asyncio.sleep(0.1)
        await outcomes(kit, "ses_a", {CallOutcome.UNDELIVERED}, 2)
        assert trained(await end(kit, "ses_a")) == 0


@pytest.mark.parametrize("api", DIALECT_NAMES)
async def test_a_session_that_ends_while_its_last_reply_waits_to_be_read(tmp_path: Path, api: str) -> None:
    """What the client's system has not acknowledged by then was not seen."""
    async with wire(tmp_path, [SAY], context=100_000) as kit:
        small_buffers(kit)
        access = await kit.session(max_tokens=20_000)
        client = await asyncio.to_thread(RawClient, kit.gateway.url, access.secret, small=True)
        client.ask(*request_of(api, "go", stream=False))
        await outcomes(kit, "ses_a", {CallOutcome.ANSWERED}, 1)
        session = kit.gateway._sessions["ses_a"]
        async with asyncio.timeout(5):
            while not session.receipts._open:
                await asyncio.sleep(0.01)
        rows = await end(kit, "ses_a")
        assert trained(rows) == 0
        client.leave()
