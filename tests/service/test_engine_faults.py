"""Everything that an engine's HTTP side can do wrong, in every dialect: a correct reply or a native error, nothing
untrue is trained, and each fault is counted by its name."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.engine_kit import DRIVERS, At, engine, is_error
from service.raw_client import call
from service.test_live import relax
from service.wire_kit import DIALECT_NAMES
from tugline.core.columns import count

SCRIPT: list[object] = [{"settings": {"repeat": True, "noncanonical": 0.3, "seed": 1}}, {"text": "all is well"}]
FAILS = {
    "http_500": "http_500",
    "http_503": "http_503",
    "http_429": "http_429",
    "truncated": "truncated",
    "reset": "truncated",
    "drop": "truncated",
    "garbage": "unreadable",
    "not_json": "unreadable",
    "huge_id": "unreadable",
    "negative_id": "unreadable",
    "no_finish": "finish_none",
    "strange_finish": "finish_repetition",
    "other_reply": "other_reply",
    "duplicate": "other_reply",
}
"""Fault of the server -> its name. The attempt fails, and another is made."""
UNTRUE = {
    "wrong_echo": "engine_echo_mismatch",
    "no_echo": "no_prompt_ids",
    "no_logprobs": "no_logprobs",
    "nan": "nonfinite_logprob",
    "infinite": "nonfinite_logprob",
    "minus_infinite": "nonfinite_logprob",
    "positive": "positive_logprob",
    "wrong_count": "length_mismatch",
    "too_many": "length_mismatch",
    "wrong_usage": "usage_mismatch",
    "wrong_logprob_ids": "logprob_ids_mismatch",
    "strange_id": "id_out_of_vocab",
    "no_stop": "bad_stop",
    "no_versions": "bad_version_runs",
    "old_version": "version_backwards",
}
"""Fault of the server -> why the turn does not train. The agent gets its reply."""
OTHER_WORDS = {"strange_id"}
"""Faults by which the reply's own words are others."""
MODES = {"whole": (False, "buffered"), "streamed": (True, "buffered"), "live": (True, "live")}
"""Name -> (does the agent ask for a stream, when do streams begin)."""
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm": ("vllm", {}),
    "vllm_completions": ("vllm", {"scale_out": False}),
    "sglang": ("sglang", {}),
    "sglang_incremental": ("sglang", {"incremental": True}),
}


@pytest.fixture(autouse=True)
def _any_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    relax(monkeypatch)


drivers = pytest.mark.parametrize("kind", DRIVERS)
dialects = pytest.mark.parametrize("dialect", DIALECT_NAMES)


def fault_of(kind: str, mode: str, fault: str) -> str | None:
    """What a fault is counted as there; None: it cannot happen there."""
    if kind == "vllm_completions" and fault in ("wrong_logprob_ids", "no_versions", "old_version"):
        return None  # its replies have none of these
    if fault == "no_finish" and kind.startswith("vllm") and mode == "live":
        return "truncated"  # such a stream has no end
    return FAILS.get(fault) or UNTRUE[fault]


@pytest.mark.parametrize(
    ("kind", "dialects"), [("vllm", 4), ("sglang", 4), ("vllm_completions", 1), ("sglang_incremental", 1)]
)
async def test_every_fault_in_every_way_of_asking(tmp_path: Path, kind: str, dialects: int) -> None:
    """All ways at once, each in a session of its own, fault after fault."""
    driver, behaviour = KINDS[kind]
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))  # each client blocks one
    async with engine(tmp_path, driver, SCRIPT, version="7", **behaviour) as at:
        ways = list(itertools.product(DIALECT_NAMES[:dialects], MODES))
        at.served.driver.guard.breaker.limit = len(ways) + 1  # they fail together

        async def every(dialect: str, mode: str) -> Counter[str]:
            counted: Counter[str] = Counter()
            for fault in (*FAILS, *UNTRUE):
                if fault == "old_version":  # known of the engine, not of a session: below, one after the other
                    continue
                name = fault_of(kind, mode, fault)
                if name is not None:
                    await one_fault(at, dialect, mode, (fault, name))
                    counted[name] += 1
            return counted

        expected = sum(await asyncio.gather(*[every(*way) for way in ways]), Counter[str]())
        assert sum(expected.values()) > 25 * len(ways)
        assert at.faults() == dict(expected)
        proof = await at.run.prove()
        kinds_found = {finding.kind for finding in proof.findings}
        assert kinds_found <= {"length_mismatch"}, "only what the engine itself got wrong is found"
        good = [turn for name in at.keys for turn in at.run.turns(name) if turn.untrainable is None]
        assert proof.trained_tokens == sum(count(turn.sampled) for turn in good) > 0


async def one_fault(at: At, dialect: str, mode: str, what: tuple[str, str]) -> None:
    """A correct reply, or a cut that the agent sees and asks again; told by its turn, recorded once."""
    fault, name = what
    where, session = f"{fault} {mode} {dialect}", f"ses_{dialect}_{mode}"
    if fault == "duplicate":  # of the reply to this
        assert (await ask(at, dialect, mode, f"before {where}"))[0] == "whole"
    turns = len(at.run.turns(session))
    at.served.server.now.by_session[session] = [fault]  # type: ignore[list-item]
    outcome, text = await ask(at, dialect, mode, where)
    assert at.served.server.now.by_session[session] == [], where
    made = at.run.turns(session)[turns:]
    if outcome == "cut":
        assert mode == "live" and fault in FAILS and made == [], where
        assert await ask(at, dialect, mode, where) == ("whole", "all is well")
        made = at.run.turns(session)[turns:]
        assert len(made) == 1 and made[0].untrainable is None and made[0].drift == (), where
        return
    assert outcome == "whole" and (text == "all is well" or fault in OTHER_WORDS), (where, text)
    (turn,) = made
    if fault in FAILS:
        assert turn.untrainable is None and f"retried_{name}" in turn.drift, where
    else:
        assert turn.untrainable == name, where


async def ask(at: At, dialect: str, mode: str, text: str) -> tuple[str, str | None]:
    """("whole", the text), ("error", None) for a native error, or ("cut", None) for a reply without its end."""
    streamed, streaming = MODES[mode]
    name = f"ses_{dialect}_{mode}"
    if name not in at.keys:
        at.keys[name] = (await at.run.session(name, streaming=streaming)).secret
    answer = await call(at.run.gateway.url, at.keys[name], dialect, text, stream=streamed)
    if not answer.whole:
        return "cut", None
    if not answer.head.startswith(b"HTTP/1.1 200"):
        assert is_error(dialect, int(answer.head.split()[1]), json.loads(answer.body))
        return "error", None
    return "whole", answer.said(dialect, stream=streamed).text


@drivers
@pytest.mark.parametrize("fault", ["hang", "hang_inside"])
async def test_an_engine_that_hangs_is_asked_again(tmp_path: Path, kind: str, fault: Any) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
    async with engine(tmp_path, kind, SCRIPT, {"reply": 4.0}) as at:
        at.served.driver.guard.breaker.limit = 100
        ways = list(itertools.product(DIALECT_NAMES, ("whole", "live")))
        for dialect, mode in ways:
            assert (await ask(at, dialect, mode, "before"))[0] == "whole"
            at.served.server.now.by_session[f"ses_{dialect}_{mode}"] = [fault]
        found = await asyncio.gather(*[ask(at, dialect, mode, fault) for dialect, mode in ways])
        for (dialect, mode), (outcome, _) in zip(ways, found, strict=True):
            shown = mode == "live" and fault == "hang_inside"
            assert outcome == ("cut" if shown else "whole"), (dialect, mode)
            turns = at.run.turns(f"ses_{dialect}_{mode}")
            assert [turn.drift for turn in turns[1:]] == ([] if shown else [("retried_timeout",)])
        assert at.faults() == {"timeout": len(ways)}
        assert (await at.run.prove()).findings == []


@drivers
@dialects
async def test_an_engine_that_fails_every_time_is_an_error_in_the_agents_own_words(
    tmp_path: Path, kind: str, dialect: str
) -> None:
    async with engine(tmp_path, kind, SCRIPT) as at:
        for mode, fault in itertools.product(("whole", "streamed"), ("http_500", "truncated", "garbage")):
            before = at.faults().get(FAILS[fault], 0)
            at.served.server.now.faults += [fault] * 2  # type: ignore[list-item]
            assert (await ask(at, dialect, mode, fault))[0] == "error"
            assert at.run.turns(f"ses_{dialect}_{mode}") == [] and at.faults()[FAILS[fault]] - before == 2
            at.served.driver.guard.succeeded()
        assert (await ask(at, dialect, "whole", "go"))[0] == "whole"


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
async def test_versions_that_go_backwards_do_not_train(tmp_path: Path, kind: str) -> None:
    async with engine(tmp_path, kind, SCRIPT, version="7") as at:
        for dialect, mode in itertools.product(DIALECT_NAMES, MODES):
            assert (await ask(at, dialect, mode, "before"))[0] == "whole"
            await one_fault(at, dialect, mode, ("old_version", "version_backwards"))
        assert at.faults() == {"version_backwards": len(DIALECT_NAMES) * len(MODES)}


@drivers
@pytest.mark.parametrize("mode", MODES)
async def test_weights_that_an_engine_lost_unnoticed_are_loaded_again(tmp_path: Path, kind: str, mode: str) -> None:
    """It restarted between two calls: nothing broke, but it samples with its first weights again."""
    async with engine(tmp_path, kind, SCRIPT) as at:
        driver, server = at.served.driver, at.served.server
        await driver.load_weights(Path("/weights/step-5"), 5)  # type: ignore[attr-defined]
        assert (await ask(at, "chat", mode, "before"))[0] == "whole"
        server.now.version = "default"
        outcome, _ = await ask(at, "chat", mode, "after")
        if mode == "live" and outcome == "cut":  # words of the lost weights were shown already
            outcome, _ = await ask(at, "chat", mode, "after")
        assert outcome == "whole"
        turns = at.run.turns(f"ses_chat_{mode}")
        assert [turn.version_runs for turn in turns] == [((0, 5),), ((0, 5),)]
        assert at.faults() == {"version_backwards": 1} and driver.faults["circuit_opened"] == 1


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
