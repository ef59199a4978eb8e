"""However a client leaves: metrics, the session's own counts, the records and the report say the same of every call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.raw_client import RawClient, request_of
from service.test_disconnects import ask_again, check_idle, leave, small_buffers
from service.wire_kit import Streaming, Wire, wire
from tugline.cli.wiring import make_trajectory
from tugline.core.columns import Ids
from tugline.core.contracts import Access, Generation, Piece, Sample, SessionCalls
from tugline.core.errors import EngineError
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.turn import CallOutcome
from tugline.gateway.running import Timing
from tugline.rollout.summary import summarise
from tugline.rollout.views import usage_of

O = CallOutcome  # noqa: E741
ASK = request_of("chat", "go", stream=True)
LONG = {"text": "A long answer. " * 700}
SLOW = {"text": "word " * 60, "delay_s": 0.6}
HANGS = {"text": "word " * 60, "delay_s": 30}


def measured(kit: Wire) -> Counter[str]:
    """What the metrics say of calls, those taken back at their new place."""
    found: Counter[str] = Counter()
    for metric, sign in ((kit.gateway.metrics.calls, 1), (kit.gateway.metrics.revoked, -1)):
        for sample in next(iter(metric.collect())).samples:
            if sample.name.endswith("_total"):
                found[sample.labels["outcome"]] += sign * int(sample.value)
                found[O.UNDELIVERED.value] += int(sample.value) if sign < 0 else 0
    return +found


async def accounts(kit: Wire, summary: SessionCalls) -> Counter[str]:
    """Calls by outcome, if all tell the same."""
    calls = list(kit.store.iter_calls("ses_a"))
    recorded = Counter(call.outcome.value for call in calls)
    assert Counter(summary.calls) == recorded, "the session's counts"
    assert measured(kit) == recorded, "the metrics"
    assert usage_of(calls, kit.turns()).calls == dict(recorded), "the view of the session"
    ended = Ended(SessionKey("ses_a", "grp", "task", 0), Outcome.COMPLETED, 1.0)
    await kit.store.put_session(ended)
    assert summarise(kit.store).as_json()["calls"] == dict(recorded), "the report"
    rows = make_trajectory(ended, kit.turns(), calls)
    served = {c.turn_id for c in calls if c.outcome in (O.ANSWERED, O.REPLAYED, O.COALESCED)}
    trained = {span.turn_id for trace in rows.traces for span in trace.spans if span.trained}
    assert trained == served, "what trains is what was read"
    assert summary.turns == len(kit.turns())
    return recorded


async def calls_ended(kit: Wire, n: int) -> None:
    session = kit.gateway._sessions["ses_a"]
    async with asyncio.timeout(10):
        while sum(session.calls.values()) < n:
            await asyncio.sleep(0.005)


async def read(kit: Wire, access: Access, part: int = 100, total: int = 12_000) -> None:
    if part == 100:
        assert (await ask_again(kit, access, ASK)).whole
    else:
        await leave(kit, access, ASK, part, close=False, end=b"data: [DONE]", total=total)


async def hold(kit: Wire, access: Access) -> RawClient:
    """A client that has asked, whose call is taken, and that reads nothing."""
    session = kit.gateway._sessions["ses_a"]
    before = len(session.serving)
    client = await asyncio.to_thread(RawClient, kit.gateway.url, access.secret, small=True)
    client.ask(*ASK)
    async with asyncio.timeout(10):
        while len(session.serving) <= before:
            await asyncio.sleep(0.005)
    return client


async def reads_all(kit: Wire, access: Access) -> None:
    await read(kit, access)


async def leaves_at_once(kit: Wire, access: Access) -> None:
    await read(kit, access, 0)
    await calls_ended(kit, 1)


async def leaves_in_the_middle(kit: Wire, access: Access) -> None:
    await read(kit, access, 25)
    await calls_ended(kit, 1)


async def leaves_the_last_bytes(kit: Wire, access: Access) -> None:
    await read(kit, access, 99)
    await calls_ended(kit, 1)


async def comes_back(kit: Wire, access: Access) -> None:
    await read(kit, access, 25)
    await calls_ended(kit, 1)
    await read(kit, access)


async def comes_back_and_leaves(kit: Wire, access: Access) -> None:
    for n in (1, 2):
        await read(kit, access, 25)
        await calls_ended(kit, n)


async def joins(kit: Wire, access: Access) -> None:
    await read(kit, access, 0)
    await read(kit, access)


async def joins_and_leaves(kit: Wire, access: Access) -> None:
    await read(kit, access, 0)
    await read(kit, access, 0)
    await calls_ended(kit, 2)


class Fails:
    """An engine that breaks for good after a while."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def generate(self, request: Generation) -> Sample:
        await asyncio.sleep(0.5)
        raise EngineError("nonsense", retryable=False)

    async def generate_stream(self, request: Generation) -> AsyncGenerator[Piece, None]:
        yield Piece(Ids(b""), await self.generate(request))


async def leaves_what_fails(kit: Wire, access: Access) -> None:
    await read(kit, access, 0)
    await calls_ended(kit, 1)


async def joins_what_fails(kit: Wire, access: Access) -> None:
    await read(kit, access, 0)
    assert b" 502 " in (await ask_again(kit, access, ASK)).head


async def ends_in_use(kit: Wire, access: Access) -> None:
    client = await hold(kit, access)
    summary = asyncio.ensure_future(kit.gateway.close("ses_a"))
    assert b" 403 " in (await asyncio.to_thread(client.read)).head
    await summary
    client.leave()


async def ends_in_grace(kit: Wire, access: Access) -> None:
    await read(kit, access, 0)
    await asyncio.sleep(0.1)


async def ends_unread(kit: Wire, access: Access) -> None:
    """The reply is sampled and stored, and does not fit into what the client takes."""
    client = await hold(kit, access)
    async with asyncio.timeout(10):
        while not kit.turns():
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.1)
    assert kit.gateway._sessions["ses_a"].calls == {}, "it has been handed over: this client proves nothing"
    await kit.gateway.close("ses_a")
    client.leave()


@dataclass(frozen=True)
class Case:
    play: Callable[[Wire, Access], Awaitable[None]]
    step: dict[str, Any]
    expected: dict[CallOutcome, int]
    grace: float = 5.0
    engine: Callable[[Any], Any] = lambda engine: engine


CASES = (
    Case(reads_all, LONG, {O.ANSWERED: 1}),
    Case(leaves_at_once, LONG, {O.UNDELIVERED: 1}),
    Case(leaves_at_once, HANGS, {O.UNDELIVERED: 1}, grace=0.1),
    Case(leaves_in_the_middle, LONG, {O.UNDELIVERED: 1}),
    Case(leaves_the_last_bytes, LONG, {O.UNDELIVERED: 1}),
    Case(comes_back, LONG, {O.UNDELIVERED: 1, O.REPLAYED: 1}),
    Case(comes_back_and_leaves, LONG, {O.UNDELIVERED: 2}),
    Case(joins, SLOW, {O.UNDELIVERED: 1, O.COALESCED: 1}),
    Case(joins_and_leaves, SLOW, {O.UNDELIVERED: 2}),
    Case(joins_and_leaves, HANGS, {O.UNDELIVERED: 2}, grace=0.3),
    Case(leaves_what_fails, SLOW, {O.ENGINE_FAILED: 1}, engine=Fails),
    Case(joins_what_fails, SLOW, {O.ENGINE_FAILED: 2}, engine=Fails),
    Case(ends_in_use, HANGS, {O.REJECTED: 1}),
    Case(ends_in_grace, HANGS, {O.REJECTED: 1}),
    Case(ends_unread, {"text": "A very long answer. " * 12_000}, {O.UNDELIVERED: 1}),
)


@pytest.mark.parametrize("mode", ["buffered", "live"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.play.__name__}-{len(str(case.step)):x}")
async def test_all_say_the_same(tmp_path: Path, case: Case, mode: Streaming) -> None:
    timing = Timing(5.0, case.grace)
    async with wire(tmp_path, [case.step], context=1_000_000, streaming=mode, timing=timing, engine=case.engine) as kit:
        small_buffers(kit)
        access = await kit.session(max_tokens=500_000)
        await case.play(kit, access)
        summary = await kit.gateway.close("ses_a")
        await check_idle(kit)
        assert await accounts(kit, summary) == {outcome.value: n for outcome, n in case.expected.items()}
