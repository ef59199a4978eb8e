"""Everything that an engine's HTTP side can do wrong, in every dialect: a correct reply or a native error, nothing
untrue is trained, and each fault is counted by its name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.engine_kit import DRIVERS, engine, is_error
from service.wire_kit import DIALECT_NAMES
from tugline.core.columns import count

SCRIPT: list[object] = [{"settings": {"repeat": True, "noncanonical": 0.3, "seed": 1}}, {"text": "all is well"}]
FAILS = {
    "http_500": "http_500",
    "http_429": "http_429",
    "hang": "timeout",
    "truncated": "truncated",
    "drop": "truncated",
    "garbage": "unreadable",
    "no_finish": "finish_none",
}
"""Fault of the server -> its name. The attempt fails, and another is made."""
UNTRUE = {
    "wrong_echo": "engine_echo_mismatch",
    "no_echo": "no_prompt_ids",
    "no_logprobs": "no_logprobs",
    "nan": "nonfinite_logprob",
    "positive": "positive_logprob",
    "wrong_count": "length_mismatch",
    "wrong_usage": "usage_mismatch",
    "wrong_logprob_ids": "logprob_ids_mismatch",
    "no_versions": "bad_version_runs",
}
"""Fault of the server -> why the turn does not train. The agent gets its reply."""

drivers = pytest.mark.parametrize("kind", DRIVERS)
dialects = pytest.mark.parametrize("dialect", DIALECT_NAMES)


@drivers
@dialects
@pytest.mark.parametrize("fault", FAILS)
async def test_a_failed_attempt_is_repeated_once_and_recorded_once(
    tmp_path: Path, kind: str, dialect: str, fault: str
) -> None:
    async with engine(tmp_path, kind, SCRIPT, {"reply": 2.0} if fault == "hang" else {}, faults=[fault]) as at:
        status, body = await at.say(dialect)
        assert status == 200 and "all is well" in str(body)
        (turn,) = at.run.turns()
        assert turn.untrainable is None
        assert at.faults() == {FAILS[fault]: 1} == dict(at.served.driver.faults)
        names = [g.get("request_id") or g.get("rid") for g in at.served.server.seen.generations]
        assert len(names) == 2 and len(set(names)) == 2, "each attempt has a name of its own"
        proof = await at.run.prove()
        assert proof.ok and proof.calls_total == 1 and proof.trained_tokens == count(turn.sampled)


@drivers
@dialects
@pytest.mark.parametrize("fault", UNTRUE)
async def test_an_untrue_reply_reaches_the_agent_and_never_trains(
    tmp_path: Path, kind: str, dialect: str, fault: str
) -> None:
    async with engine(tmp_path, kind, SCRIPT, faults=[fault]) as at:
        status, body = await at.say(dialect)
        assert status == 200 and "all is well" in str(body)
        assert (await at.say(dialect, "another"))[0] == 200
        bad, good = at.run.turns()
        assert (bad.untrainable, good.untrainable) == (UNTRUE[fault], None)
        assert at.faults() == {UNTRUE[fault]: 1}
        proof = await at.run.prove()
        assert proof.trained_tokens == count(good.sampled)
        assert [f.kind for f in proof.findings if f.turn_id == good.turn_id] == []
        wrong = {f.kind for f in proof.findings}
        assert wrong <= {"length_mismatch"}, "only what the engine itself got wrong is found"


@drivers
@dialects
@pytest.mark.parametrize("fault", ["http_500", "truncated", "garbage"])
async def test_an_engine_that_fails_every_time_is_an_error_in_the_agents_own_words(
    tmp_path: Path, kind: str, dialect: str, fault: str
) -> None:
    async with engine(tmp_path, kind, SCRIPT, faults=[fault] * 2) as at:
        status, body = await at.say(dialect)
        assert is_error(dialect, status, body) and status >= 500
        assert at.run.turns() == []
        assert at.faults() == {FAILS[fault]: 2}
        assert (await at.say(dialect))[0] == 200


@drivers
async def test_an_engine_that_restarts_is_waited_for(tmp_path: Path, kind: str) -> None:
    async with engine(tmp_path, kind, SCRIPT) as at:
        assert (await at.say("chat"))[0] == 200
        server = at.served.server
        await server.down()
        asking = asyncio.ensure_future(at.say("chat", "while it is down"))
        while not at.served.driver.faults["circuit_opened"]:
            await asyncio.sleep(0.01)
        server.now.version = "7"
        await server.up()
        status, _ = await asking
        assert status == 200
        first, second = at.run.turns()
        assert (first.version_runs, second.version_runs) == (((0, 0),), ((0, 7),))
        assert at.faults()["unreachable"] == 1
        assert (await at.run.prove()).ok


@drivers
async def test_an_engine_that_restarts_gets_its_weights_again(tmp_path: Path, kind: str) -> None:
    async with engine(tmp_path, kind, SCRIPT) as at:
        driver, server = at.served.driver, at.served.server
        await driver.load_weights(Path("/weights/step-5"), 5)  # type: ignore[attr-defined]
        await server.down()
        asking = asyncio.ensure_future(at.say("chat"))
        while not driver.faults["circuit_opened"]:
            await asyncio.sleep(0.01)
        server.now.version = "default"
        await server.up()
        assert (await asking)[0] == 200
        (turn,) = at.run.turns()
        assert turn.version_runs == ((0, 5),)


@drivers
async def test_an_engine_that_stays_away_fails_calls_once_not_for_ever(tmp_path: Path, kind: str) -> None:
    async with engine(tmp_path, kind, SCRIPT, {"patience": 0.6}) as at:
        await at.served.server.down()
        status, body = await at.say("anthropic")
        assert is_error("anthropic", status, body)
        assert at.faults() == {"unreachable": 1, "circuit_open": 1}
        sent = len(at.served.server.seen.headers)
        await at.say("anthropic")
        assert len(at.served.server.seen.headers) == sent, "nobody was sent there"


@drivers
async def test_what_nobody_waits_for_stops_at_the_engine(tmp_path: Path, kind: str) -> None:
    slow = [{"text": "at once"}, {"text": "so many words", "delay_s": 30}]
    async with engine(tmp_path, kind, slow, {"reply": 2.0}) as at:
        assert (await at.say("chat"))[0] == 200
        status, _ = await at.say("chat", "slow")
        assert status >= 500
        seen = at.served.server.seen
        while seen.running or len(seen.aborted) < 2:
            await asyncio.sleep(0.01)
        assert len([n for n in seen.finished if "probe" not in n]) == 1
        assert len(set(seen.aborted)) == 2, "each attempt was aborted by name"
