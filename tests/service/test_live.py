"""Replies shown while they are sampled: the same replies, sooner; never mended."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract.kits import kits
from service.raw_client import RawClient, call, request_of
from service.wire_kit import DIALECT_NAMES, Wire, wire
from tugline.core.columns import Ids, count, ids, take
from tugline.core.contracts import Generation, Piece, Sample
from tugline.core.errors import EngineError
from tugline.core.turn import CallOutcome
from tugline.gateway.running import Timing

SAY = {
    "reasoning": "I should look at é first. 👩\u200d💻\u2028" + "Then I go on. " * 6,
    "text": "  Looking…\n\nThere it is: 漢字. " + "word " * 30 + "\n",
    "calls": [
        {"name": "bash", "arguments": '{"command" :  "ls"}'},
        {"name": "write", "arguments": '{"path": "a", "n": 1.0}'},
    ],
}
REPEAT = {"settings": {"noncanonical": 0.4, "seed": 3, "repeat": True}}


class Wrapped:
    """Somebody else's engine around the scripted one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Whole(Wrapped):
    """Cannot stream."""

    def __getattr__(self, name: str) -> Any:
        if name == "generate_stream":
            raise AttributeError(name)
        return super().__getattr__(name)


def live(kit: Wire, what: str) -> float:
    return kit.gateway.metrics.live.labels(what)._value.get()  # type: ignore[attr-defined]


def unnamed(said: Any) -> Any:
    """A turn without the ids of its calls, which differ from reply to reply."""
    return replace(said, calls=tuple(replace(c, id="") for c in said.calls))


@pytest.mark.parametrize("api", DIALECT_NAMES)
async def test_live_streams_are_the_buffered_ones(tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    relax(monkeypatch)
    said = {}
    for mode in ("buffered", "live"):
        async with wire(
            tmp_path / mode, [REPEAT, SAY, {"text": "Done."}, {"calls": SAY["calls"]}], streaming=mode
        ) as kit:
            secret = (await kit.session()).secret
            answers = [await call(kit.gateway.url, secret, api, f"go {i}", stream=True) for i in range(3)]
            said[mode] = [unnamed(answer.said(api, stream=True)) for answer in answers]
            assert all(answer.whole for answer in answers)
            assert (live(kit, "live_shown"), live(kit, "live_mismatch")) == ((2, 0) if mode == "live" else (0, 0))
            assert [t.untrainable for t in kit.turns()] == [None] * 3
    assert said["live"] == said["buffered"]


@pytest.mark.parametrize("mode", ["buffered", "live"])
async def test_a_session_may_have_it_otherwise_than_the_gateway(tmp_path: Path, mode: Any) -> None:
    other = "live" if mode == "buffered" else "buffered"
    async with wire(tmp_path, [REPEAT, SAY], streaming=mode) as kit:
        for name, asked, shown in (("a", None, mode), ("b", other, other)):
            before = live(kit, "live_shown")
            secret = (await kit.session(f"ses_{name}", streaming=asked)).secret
            answer = await call(kit.gateway.url, secret, "chat", "go", stream=True)
            assert answer.whole
            assert live(kit, "live_shown") - before == (shown == "live")


def relax(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kits' clients know the counts of the shipped suite's reply."""
    from contract import anthropic_kit

    monkeypatch.setattr(anthropic_kit, "check_usage", lambda usage: None)
    monkeypatch.setattr(
        anthropic_kit.Assembler, "_message_delta", lambda self, event, message: setattr(self, "stopped", True)
    )


@pytest.mark.parametrize("api", DIALECT_NAMES)
async def test_text_arrives_long_before_the_reply_is_whole_and_silence_is_filled(
    tmp_path: Path, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    relax(monkeypatch)
    timing = Timing(0.08, 5.0)
    slow = {
        "text": "word " * 40,
        "calls": [{"name": "bash", "arguments": json.dumps({"command": "x " * 120})}],
        "delay_s": 1.2,
    }
    async with wire(tmp_path, [slow], streaming="live", timing=timing) as kit:
        secret = (await kit.session()).secret
        client = await asyncio.to_thread(RawClient, kit.gateway.url, secret)
        client.ask(*request_of(api, "go", stream=True))
        await asyncio.to_thread(client.until, b"word")
        assert kit.turns() == [], "the reply is whole already"
        got = await asyncio.to_thread(client.read)
        client.leave()
        assert kit.turns()
        rest = got.raw[got.raw.index(b"word") :]
        beats = {
            "chat": b": keep-alive",
            "anthropic": b"event: ping",
            "responses": b'"delta":""',
            "gemini": b"2\r\n\n\n\r\n",
        }
        assert rest.count(beats[api]) >= 2, "nothing is said while a call is sampled"


async def test_an_engine_that_cannot_stream_is_served_whole_and_said_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire(tmp_path, [REPEAT, SAY], streaming="live", engine=Whole) as kit:
        secret = (await kit.session()).secret
        with caplog.at_level(logging.WARNING):
            for i in range(3):
                answer = await call(kit.gateway.url, secret, "chat", f"go {i}", stream=True)
                assert len(answer.said("chat", stream=True).calls) == 2
        assert len([r for r in caplog.records if "no effect" in r.message]) == 1
        assert (live(kit, "live_unsupported"), live(kit, "live_shown")) == (3, 0)


class Lying(Wrapped):
    """Hands out other ids than those of its sample."""

    async def generate_stream(self, request: Generation) -> AsyncGenerator[Piece, None]:
        sample: Sample = await self.inner.generate(request)
        from tokenizers import Tokenizer

        coder = Tokenizer.from_file(str(self.inner.info.model_dir / "tokenizer.json"))
        yield Piece(ids(coder.encode("Something else altogether. ").ids))
        yield Piece(Ids(b""), sample)


@pytest.mark.parametrize("api", DIALECT_NAMES)
async def test_a_stream_that_is_not_the_reply_is_cut_and_a_retry_gets_the_reply(tmp_path: Path, api: str) -> None:
    async with wire(tmp_path, [SAY, {"text": "Never."}], streaming="live", engine=Lying) as kit:
        secret = (await kit.session()).secret
        answer = await call(kit.gateway.url, secret, api, "go", stream=True)
        assert not answer.whole and b"Something" in answer.raw
        assert live(kit, "live_mismatch") == 1
        again = await call(kit.gateway.url, secret, api, "go", stream=True)
        assert again.whole and b"Never" not in again.raw and b"Looking" in again.raw
        outcomes = await settled(kit, 2)
        assert outcomes == [CallOutcome.UNDELIVERED, CallOutcome.REPLAYED]
        assert len(kit.turns()) == 1


async def settled(kit: Wire, calls: int) -> list[CallOutcome]:
    """Outcomes when so many calls have been counted and recorded."""
    session = kit.gateway._sessions["ses_a"]
    async with asyncio.timeout(10):
        while sum(session.calls.values()) < calls or len(kit.store.iter_calls("ses_a")) < calls:
            await asyncio.sleep(0.01)
    return [c.outcome for c in kit.store.iter_calls("ses_a")]


@pytest.mark.parametrize("after", [0, 1, 60])
async def test_an_engine_that_fails_behind_a_delta_cuts_the_stream(tmp_path: Path, after: int) -> None:
    """Before the first one it is tried again inside."""
    script = [{"text": "word " * 80, "fail_after_tokens": after}]
    async with wire(tmp_path, [{"settings": {"repeat": True}}, *script], streaming="live") as kit:
        secret = (await kit.session()).secret
        answer = await call(kit.gateway.url, secret, "chat", "go", stream=True)
        shown = after > 0
        assert answer.whole is not shown
        outcomes = await settled(kit, 1)
        assert outcomes == [CallOutcome.ENGINE_FAILED if shown else CallOutcome.ANSWERED]
        again = await call(kit.gateway.url, secret, "chat", "go", stream=True)
        assert again.said("chat", stream=True).text == "word " * 80


class Broken(Wrapped):
    """Ends for good behind its first pieces."""

    async def generate_stream(self, request: Generation) -> AsyncGenerator[Piece, None]:
        sample: Sample = await self.inner.generate(request)
        yield Piece(take(sample.ids, 0, count(sample.ids) // 2))
        raise EngineError("nonsense", retryable=False)


@pytest.mark.parametrize("api", DIALECT_NAMES)
async def test_no_error_event_stands_behind_part_of_a_reply(tmp_path: Path, api: str) -> None:
    async with wire(tmp_path, [SAY], streaming="live", engine=Broken) as kit:
        secret = (await kit.session()).secret
        answer = await call(kit.gateway.url, secret, api, "go", stream=True)
        assert not answer.whole and b"nonsense" not in answer.raw and b"look" in answer.raw


async def test_stop_strings_are_not_shown(tmp_path: Path) -> None:
    script = [REPEAT, {"text": "One, two, STOP three"}, {"text": "A\nST and S. And STO."}]
    async with wire(tmp_path, script, streaming="live") as kit:
        secret = (await kit.session()).secret
        for expected in ("One, two, ", "A\nST and S. And STO."):
            answer = await call(kit.gateway.url, secret, "chat", expected, stream=True, stop=["STOP"])
            assert answer.said("chat", stream=True).text == expected
        assert live(kit, "live_mismatch") == 0


@pytest.mark.parametrize("first_streams", [True, False])
async def test_a_retry_of_another_form_joins(tmp_path: Path, first_streams: bool) -> None:
    """A stream joins a whole call and the other way round; cross-checked by the one turn that there is."""
    async with wire(tmp_path, [{**SAY, "delay_s": 1.0}], streaming="live", timing=Timing(0.05, 5.0)) as kit:
        secret = (await kit.session()).secret
        client = await asyncio.to_thread(RawClient, kit.gateway.url, secret)
        client.ask(*request_of("chat", "go", stream=first_streams))
        await asyncio.sleep(0.4)
        client.leave()
        await asyncio.sleep(0.1)
        answer = await call(kit.gateway.url, secret, "chat", "go", stream=not first_streams)
        said = answer.said("chat", stream=not first_streams)
        assert said.reasoning == SAY["reasoning"] and len(said.calls) == 2
        assert CallOutcome.COALESCED in await settled(kit, 2)
        assert len(kit.turns()) == 1


async def test_every_dialect_has_a_live_stream() -> None:
    assert all(hasattr(kit.dialect, "live") for kit in kits().values())
