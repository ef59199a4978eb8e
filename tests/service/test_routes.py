"""Model names that mean another engine, and everything on the data plane that is no sample."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.gateway_kit import Kit, body, user
from tugline.cli.wiring import PILOT, chat_model, journal_of, make_trajectory
from tugline.core.contracts import ModelRoute
from tugline.core.errors import ConfigError
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.turn import CallOutcome
from tugline.dialects import DIALECTS
from tugline.engines.scripted import ScriptedEngine
from tugline.gateway.gateway import GatewayOptions, LocalGateway, Seat
from tugline.rollout.proof import prove_run
from tugline.rollout.summary import summarise
from tugline.store import RunStore

JUDGE = (ModelRoute("judge-*", "judge"), ModelRoute("judge-fast", "never reached"))


@asynccontextmanager
async def two_engines(tmp_path: Path, script: list[object] | None = None) -> AsyncIterator[Kit]:
    run = tmp_path / "run"
    store = RunStore.create(run, "")
    policy = ScriptedEngine(script or [{"text": f"policy {n}"} for n in range(9)], PILOT, run / "engine")
    judge = ScriptedEngine([{"text": f"judge {n}"} for n in range(9)], PILOT, run / "engines" / "judge")
    model = chat_model(PILOT)
    gate = LocalGateway(
        policy,
        model,
        store,
        DIALECTS,
        GatewayOptions(),
        others={"judge": Seat(judge, model), "never reached": Seat(judge, model)},
    )
    for engine in (policy, judge):
        await engine.start()
    await gate.start()
    async with aiohttp.ClientSession() as http:
        try:
            yield Kit(store, policy, gate, http, run)
        finally:
            await gate.stop()
            await policy.close()
            await judge.close()
            await store.close()


async def ask(kit: Kit, key: str, model: str, *messages: dict[str, Any], **more: Any) -> str:
    status, reply = await kit.post(body(*messages, **more) | {"model": model}, key=key)
    assert status == 200, reply
    assert reply["model"] == model
    return str(reply["choices"][0]["message"]["content"])


async def test_routed_names_go_elsewhere_are_recorded_and_never_trained(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        key = (await kit.session(routes=JUDGE, max_turns=2)).secret
        hello = user("hello")
        assert await ask(kit, key, "anything", hello) == "policy 0"
        assert await ask(kit, key, "judge-fast", hello, temperature=0.3) == "judge 0"
        said = {"role": "assistant", "content": "judge 0"}
        assert await ask(kit, key, "judge-fast", hello, said, user("more")) == "judge 1"
        mine = {"role": "assistant", "content": "policy 0"}
        assert await ask(kit, key, "gpt-x", hello, mine, user("go on")) == "policy 1"
        status, _ = await kit.post(body(user("a third turn of the policy")), key=key)
        assert status == 403, "the judge's turns must not have been counted"
        assert await ask(kit, key, "judge-fast", user("the judge is outside the budget")) == "judge 2"
        await kit.gateway.close("ses_a")
        turns = list(kit.store.iter_turns("ses_a"))
        assert [t.engine for t in turns] == ["", "judge", "judge", "", "judge"]
        assert turns[3].parent == turns[0].turn_id and turns[2].parent == turns[1].turn_id
        assert turns[1].sampling.temperature == 0.3 and turns[0].sampling.temperature == 1.0
        calls = list(kit.store.iter_calls("ses_a"))
        assert [c.engine for c in calls if c.turn_id] == ["", "judge", "judge", "", "judge"]

        ended = Ended(SessionKey("ses_a", "g", "t", 0), Outcome.COMPLETED, 1.0)
        trajectory = make_trajectory(ended, turns, calls)
        (row,) = trajectory.traces
        assert {s.turn_id for s in row.spans} <= {turns[0].turn_id, turns[3].turn_id}
        assert trajectory.untrained["other_engine"] == sum(len(t.sampled) // 4 for t in turns if t.engine)
        await kit.store.put_trajectory(trajectory)
        await kit.store.put_session(ended)
        proof = prove_run(kit.store, journal_of(kit.run))
        assert proof.ok and proof.calls_exact == proof.calls_total == 5, proof.findings


async def test_a_session_of_another_engine_alone_is_proven_and_has_no_rows(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        key = (await kit.session(routes=(ModelRoute("*", "judge"),))).secret
        assert await ask(kit, key, "anything", user("hello")) == "judge 0"
        await kit.gateway.close("ses_a")
        turns, calls = list(kit.store.iter_turns("ses_a")), list(kit.store.iter_calls("ses_a"))
        ended = Ended(SessionKey("ses_a", "g", "t", 0), Outcome.COMPLETED, 1.0)
        trajectory = make_trajectory(ended, turns, calls)
        assert trajectory.traces == ()
        await kit.store.put_trajectory(trajectory)
        await kit.store.put_session(ended)
        assert prove_run(kit.store, journal_of(kit.run)).ok


async def test_a_reopened_session_keeps_its_engines_apart(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        key = (await kit.session(routes=JUDGE)).secret
        hello = user("hello")
        await ask(kit, key, "m", hello)
        await ask(kit, key, "judge-1", hello)
        again = (await kit.session(routes=JUDGE)).secret
        await ask(kit, again, "judge-1", hello, {"role": "assistant", "content": "judge 0"}, user("x"))
        turns = list(kit.store.iter_turns("ses_a"))
        assert turns[-1].engine == "judge" and turns[-1].parent == turns[1].turn_id
        assert [t.seq for t in turns] == [0, 1, 2]


async def test_a_route_to_no_engine_is_an_error_when_the_session_opens(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        with pytest.raises(ConfigError, match="no engine 'jugde'; there are: judge"):
            await kit.session(routes=(ModelRoute("x", "jugde"),))


async def get(kit: Kit, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    async with kit.http.request(method, kit.gateway.url + path, headers=headers) as response:
        return response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read()


async def test_any_model_can_be_asked_about(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        key = (await kit.session()).secret
        for path in ("/v1/models/gpt-x", "/v1/models/org%2Fname"):
            status, _, data = await get(kit, path, authorization=f"Bearer {key}")
            assert status == 200 and b'"object":"model"' in data
        status, _, _ = await get(kit, "/v1/models/x")
        assert status == 401


async def test_websocket_upgrades_are_refused_at_once(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        access = await kit.session()
        upgrade = {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
            "sec-websocket-version": "13",
        }
        for path in ("/v1/responses", f"/s/{access.secret}/v1/responses", "/v1/chat/completions", "/nowhere"):
            status, headers, data = await asyncio.wait_for(get(kit, path, **upgrade), 2)
            assert status == 426 and headers["connection"] == "close" and b"WebSocket" in data


async def test_dropped_content_is_recorded_and_reported(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        key = (await kit.session()).secret
        await ask(kit, key, "m", user("hello"), metadata={"a": "b"}, service_tier="x")
        await kit.gateway.close("ses_a")
        (call,) = kit.store.iter_calls("ses_a")
        assert set(call.ignored) >= {"metadata", "service_tier"}
        await kit.store.put_session(Ended(SessionKey("ses_a", "g", "t", 0), Outcome.COMPLETED))
        assert summarise(kit.store).as_json()["ignored"] == {"metadata": 1, "service_tier": 1}


async def test_prefill_is_continued_and_extends_the_conversation(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        key = (await kit.session()).secret
        began = {"role": "assistant", "content": "Sure, "}
        said = await ask(kit, key, "m", user("hello"), began, continue_final_message=True)
        assert said == "policy 0"
        whole = {"role": "assistant", "content": "Sure, policy 0"}
        await ask(kit, key, "m", user("hello"), whole, user("more"))
        turns = list(kit.store.iter_turns("ses_a"))
        prompt = kit.gateway._model.codec.decode(kit.store.prompt(turns[0].turn_id))
        assert prompt.endswith("Sure, ")
        assert turns[1].parent == turns[0].turn_id and not turns[1].drift
        assert len({t.turn_id for t in turns}) == 2


async def test_counts_are_side_calls(tmp_path: Path) -> None:
    """Through a dialect of the test's own, so that it holds for every API that counts."""

    class Counting(type(DIALECTS[0])):  # type: ignore[misc]
        routes = (*DIALECTS[0].routes, replace(DIALECTS[0].routes[0], path="/v1/count", kind="count"))

        def counted(self, tokens: int) -> bytes:
            return b'{"n": %d}' % tokens

    run = tmp_path / "run"
    store = RunStore.create(run, "")
    engine = ScriptedEngine([{"text": "a"}, {"text": "b"}], PILOT, run / "engine")
    await engine.start()
    gate = LocalGateway(engine, chat_model(PILOT), store, (Counting(),))
    await gate.start()
    async with aiohttp.ClientSession() as http:
        kit = Kit(store, engine, gate, http, run)
        key = (await kit.session()).secret
        talk = [user("hello"), {"role": "assistant", "content": "a"}, user("more")]
        await kit.post(body(talk[0]), key=key)
        status, counted = await kit.post(body(*talk), key=key, path="/v1/count")
        assert status == 200
        _, reply = await kit.post(body(*talk), key=key)
        assert counted["n"] == reply["usage"]["prompt_tokens"]
        assert (await kit.post(b"{", key=key, path="/v1/count"))[0] == 400
        assert [c.outcome for c in store.iter_calls("ses_a")].count(CallOutcome.SIDE) == 1
        assert len(list(store.iter_turns("ses_a"))) == 2
    await gate.stop()
    await engine.close()
    await store.close()


async def test_a_stop_string_ends_the_turn_and_is_not_shown(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        key = (await kit.session()).secret
        status, reply = await kit.post(body(user("a"), stop=["cy", "zz"]), key=key)
        assert status == 200 and reply["choices"][0]["finish_reason"] == "stop"
        assert reply["choices"][0]["message"]["content"] == "poli"
        await ask(kit, key, "m", user("a"), {"role": "assistant", "content": "poli"}, user("b"))
        first, second = kit.store.iter_turns("ses_a")
        assert kit.gateway._model.decode(first.sampled).startswith("policy")
        assert second.parent == first.turn_id and first.untrainable is None
        assert "stop_string_tail" in second.drift
        await kit.gateway.close("ses_a")
        await kit.store.put_session(Ended(SessionKey("ses_a", "g", "t", 0), Outcome.CANCELLED))
        assert prove_run(kit.store, journal_of(kit.run)).calls_exact == 2


async def test_half_a_character_is_served_and_named(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        key = (await kit.session()).secret
        data = rb'{"model": "m", "messages": [{"role": "user", "content": "cut \ud83d"}]}'
        status, _ = await kit.post(data, key=key)
        assert status == 200
        (call,), (turn,) = kit.store.iter_calls("ses_a"), kit.store.iter_turns("ses_a")
        assert call.ignored == ("half_surrogate",)
        assert turn.items[0].text == "cut \ufffd"
        assert (await kit.post(data[:-1], key=key))[0] == 400


async def test_an_engine_failure_that_an_answer_followed_is_not_held_against_the_engine(tmp_path: Path) -> None:
    async with two_engines(tmp_path) as kit:
        key = (await kit.session()).secret
        session = kit.gateway._sessions["ses_a"]
        session.engine_failures, session.last_error = 1, "EngineError: gone"
        await ask(kit, key, "m", user("a"))
        assert (await kit.post(b"{", key=key))[0] == 400
        summary = await kit.gateway.close("ses_a")
        assert summary.engine_failures == 0 and (summary.last_error or "").startswith("BadRequest")


@pytest.mark.parametrize(
    ("host", "advertise", "shown"),
    [
        ("127.0.0.1", None, "127.0.0.1"),
        ("0.0.0.0", None, socket.gethostname()),
        ("0.0.0.0", "gateway.example", "gateway.example"),
        ("::1", None, "[::1]"),
    ],
)
async def test_agents_get_an_address_that_they_can_use(
    tmp_path: Path, host: str, advertise: str | None, shown: str
) -> None:
    store = RunStore.create(tmp_path / "run", "")
    engine = ScriptedEngine([{"text": "a"}], PILOT, tmp_path / "run" / "engine")
    gate = LocalGateway(engine, chat_model(PILOT), store, DIALECTS, GatewayOptions(host=host, advertise=advertise))
    try:
        port = await gate.start()
        assert gate.url == f"http://{shown}:{port}"
    finally:
        await gate.stop()
        await store.close()


async def test_a_stop_string_in_what_is_not_shown_is_still_the_reason(tmp_path: Path) -> None:
    async with two_engines(tmp_path, [{"reasoning": "think", "text": "said"}]) as kit:
        access = await kit.session()
        ask = {"model": "m", "max_tokens": 50, "stop_sequences": ["</think>"], "messages": [user("a")]}
        status, reply = await kit.post(ask, key=access.secret, path="/v1/messages")
        assert status == 200
        assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "</think>")
