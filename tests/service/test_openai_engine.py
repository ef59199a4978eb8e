"""An engine that takes messages behind the gateway: what it is sent, what is recorded, what trains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.engine_kit import is_error, request_of
from service.wire_kit import DIALECT_NAMES, Wire
from tugline.cli.wiring import PILOT, chat_model, make_trajectory, wordless
from tugline.core.contracts import MessageEngine, ModelRoute, Policy
from tugline.core.errors import EngineError
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.turn import CallOutcome, Sampling
from tugline.dialects import DIALECTS
from tugline.engines import make_engine
from tugline.engines.journal import read_journal
from tugline.engines.openai import OpenAiEngine
from tugline.engines.scripted import ScriptedEngine
from tugline.engines.spending import spent_in
from tugline.gateway.gateway import GatewayOptions, LocalGateway, Seat
from tugline.gateway.upstream import RetryPolicy
from tugline.store import RunStore
from tugline.testing.openai_server import OpenAiServer

CALL = {"id": "call_abc", "type": "function", "function": {"name": "bash", "arguments": '{"command" :  "ls"}'}}
SCRIPT = [{"content": "Let me look.", "tool_calls": [CALL]}, {"content": "all is well"}]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
dialects = pytest.mark.parametrize("dialect", DIALECT_NAMES)


class At(Wire):
    server: OpenAiServer
    http: aiohttp.ClientSession
    key: str

    async def post(self, path: str, body: Any, headers: dict[str, str]) -> tuple[int, Any]:
        async with self.http.post(self.gateway.url + path, json=body, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def chat(self, *messages: dict[str, Any], **more: Any) -> tuple[int, Any]:
        body = {"model": "m", "messages": list(messages), "tools": TOOLS} | more
        return await self.post("/v1/chat/completions", body, {"authorization": f"Bearer {self.key}"})


@asynccontextmanager
async def over(tmp_path: Path, script: list[dict[str, Any]] | None = None, **behaviour: Any) -> AsyncIterator[At]:
    streaming = behaviour.pop("streaming", "buffered")
    far = {"prices": ("3", "15", "0.3"), "reply_timeout": 2.0, "patience": 2.0} | behaviour.pop("far", {})
    async with OpenAiServer(script or SCRIPT, **behaviour) as server:
        store = RunStore.create(tmp_path / "run", "")
        journal = tmp_path / "run" / "engine"
        engine = make_engine(f"openai:{server.url}", model="teacher", journal_dir=journal, far=far)  # type: ignore[arg-type]
        await engine.start()
        options = GatewayOptions(retry=RetryPolicy(3, 0.01, 0.02), streaming=streaming)
        gateway = LocalGateway(engine, wordless(), store, DIALECTS, options)
        await gateway.start()
        try:
            async with aiohttp.ClientSession() as http:
                at = At(store, engine, gateway, tmp_path / "run")
                at.server, at.http = server, http
                at.key = (await at.session()).secret
                yield at
        finally:
            await gateway.stop()
            await engine.close()
            await store.close()


async def test_a_session_of_text_alone_is_recorded_and_never_trains(tmp_path: Path) -> None:
    async with over(tmp_path) as at:
        assert isinstance(at.engine, MessageEngine) and at.engine.info.level == "L0"
        status, first = await at.chat({"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"})
        message = first["choices"][0]["message"]
        assert status == 200 and first["choices"][0]["finish_reason"] == "tool_calls"
        assert message["tool_calls"][0]["function"] == CALL["function"], "arguments are not respelled"
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a.txt"}
        talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}, message, result]
        status, second = await at.chat(*talk)
        assert second["choices"][0]["message"]["content"] == "all is well"
        assert second["usage"]["prompt_tokens"] > 0, "the usage is the engine's own"
        one, two = at.turns()
        assert two.parent == one.turn_id and [t.level for t in (one, two)] == ["L0", "L0"]
        assert {t.untrainable for t in (one, two)} == {"level_l0"}
        sent = at.server.seen.generations[1]
        assert [m["role"] for m in sent["messages"]] == ["system", "user", "assistant", "tool"]
        assert sent["messages"][2]["tool_calls"][0]["id"] == sent["messages"][3]["tool_call_id"]
        assert sent["tools"] == TOOLS
        proof = await at.prove()
        assert proof.findings == [] and proof.trained_tokens == 0 and proof.rewarded_without_tokens == []
        ended = Ended(SessionKey("ses_a", "g", "t", 0), Outcome.COMPLETED, 1.0)
        assert make_trajectory(ended, [one, two], list(at.store.iter_calls("ses_a"))).traces == ()


async def test_ids_that_come_back_make_rows_by_their_ids_alone(tmp_path: Path) -> None:
    async with over(tmp_path, [{"content": "one"}, {"content": "two"}], ids=True) as at:
        assert at.engine.info.level == "L2"
        _, first = await at.chat({"role": "user", "content": "go"})
        _, _ = await at.chat(
            {"role": "user", "content": "go"}, first["choices"][0]["message"], {"role": "user", "content": "on"}
        )
        turns = at.turns()
        assert [t.level for t in turns] == ["L2", "L2"] and {t.untrainable for t in turns} == {None}
        assert all(t.parent is None and t.bridge for t in turns)
        proof = await at.prove()
        assert proof.ok and proof.traces_total == 1, "the second prompt begins with all ids of the first call"
        assert proof.trained_tokens == proof.sampled_tokens


async def test_sampled_ids_without_their_prompt_are_no_training_data(tmp_path: Path) -> None:
    async with over(tmp_path, [{"content": "one"}], ids=True, faults=["no_echo"]) as at:
        assert (await at.chat({"role": "user", "content": "go"}))[0] == 200
        (turn,) = at.turns()
        assert (turn.level, turn.untrainable, turn.sampled) == ("L0", "no_prompt_ids", b"")


@dialects
async def test_every_dialect_has_its_reply(tmp_path: Path, dialect: str) -> None:
    async with over(tmp_path, [{"content": "all is well"}]) as at:
        path, body, headers = request_of(dialect, "go", at.key)
        status, said = await at.post(path, body, headers)
        assert status == 200 and "all is well" in json.dumps(said)


@dialects
@pytest.mark.parametrize(("fault", "name"), [("http_500", "http_500"), ("hang", "timeout"), ("truncated", "truncated")])
async def test_a_failed_attempt_is_repeated(tmp_path: Path, dialect: str, fault: str, name: str) -> None:
    async with over(tmp_path, [{"content": "all is well"}], faults=[fault]) as at:
        path, body, headers = request_of(dialect, "go", at.key)
        status, _ = await at.post(path, body, headers)
        assert status == 200 and len(at.turns()) == 1
        assert isinstance(at.engine, OpenAiEngine) and at.engine.faults[name] == 1
        assert at.engine.spent.calls == 1, "only what was answered is counted"


@dialects
async def test_an_api_that_fails_every_time_is_an_error_in_the_agents_own_words(tmp_path: Path, dialect: str) -> None:
    async with over(tmp_path, faults=["http_500"] * 3) as at:
        path, body, headers = request_of(dialect, "go", at.key)
        status, said = await at.post(path, body, headers)
        assert is_error(dialect, status, said) and at.turns() == []


async def test_a_rate_limit_is_kept(tmp_path: Path) -> None:
    async with over(tmp_path, faults=["http_429", "http_429"]) as at:
        assert (await at.chat({"role": "user", "content": "go"}))[0] == 200
        assert isinstance(at.engine, OpenAiEngine) and at.engine.faults["http_429"] == 2


async def test_fields_that_a_model_refuses_are_left_out_and_named(tmp_path: Path) -> None:
    async with over(tmp_path, refuses=["max_tokens", "temperature"]) as at:
        assert (await at.chat({"role": "user", "content": "go"}))[0] == 200
        sent = at.server.seen.generations[-1]
        assert "max_completion_tokens" in sent and "temperature" not in sent
        (turn,) = at.turns()
        assert "not_sent_temperature" in turn.drift


async def test_costs_add_up(tmp_path: Path) -> None:
    """What a probe or an answer of no use costs is paid too, and told apart."""
    async with over(tmp_path, faults=["strange_finish"]) as at:
        for _ in range(3):
            await at.chat({"role": "user", "content": "go"})
        assert isinstance(at.engine, OpenAiEngine)
        lines = [json.loads(line) for line in (tmp_path / "run/engine/usage.jsonl").read_text().splitlines()]
        assert [line["fault"] for line in lines] == ["probe", "finish_repetition", None, None, None]
        assert [line["ref"] for line in lines[2:]] == [c.engine_ref for c in at.store.iter_calls("ses_a")]
        spent = at.engine.spent
        assert spent.calls == 3 and spent.prompt == sum(line["prompt"] for line in lines)
        assert spent.reasoning == sum(line["reasoning"] for line in lines) > 0
        fresh = spent.prompt - spent.cached
        assert spent.cost == pytest.approx((fresh * 3 + spent.cached * 0.3 + spent.completion * 15) / 1e6)
        assert spent.wasted == pytest.approx(sum(line["cost"] for line in lines[:2]))
        assert spent_in(tmp_path / "run") == {"policy": spent}, "a report reads the same"
        told = at.gateway.metrics.text().decode()
        assert f'tugline_engine_api_cost_total{{engine="policy"}} {spent.cost}' in told
        assert f'tugline_engine_api_tokens_total{{engine="policy",kind="reasoning"}} {float(spent.reasoning)}' in told
        assert 'tugline_engine_breaker{engine="policy"} 0.0' in told
        assert 'tugline_engine_events_total{engine="policy",what="finish_repetition"} 1.0' in told


async def test_an_answer_that_says_nothing_is_asked_for_again_and_recorded_once(tmp_path: Path) -> None:
    async with over(tmp_path, [{"content": "all is well"}], faults=["empty"]) as at:
        assert (await at.chat({"role": "user", "content": "go"}))[0] == 200
        (turn,) = at.turns()
        assert turn.drift == ("retried_empty_reply",)
        assert len(list(read_journal(tmp_path / "run" / "engine"))) == 1


async def test_calls_that_learn_together_what_a_model_refuses_all_succeed(tmp_path: Path) -> None:
    async with over(tmp_path, refuses=["max_tokens", "temperature", "top_p"]) as at:
        at.engine._without.clear()  # type: ignore[attr-defined]
        at.engine._limit = "max_tokens"  # type: ignore[attr-defined]
        asked = [at.chat({"role": "user", "content": f"go {n}"}) for n in range(8)]
        assert [status for status, _ in await asyncio.gather(*asked)] == [200] * 8


@pytest.mark.parametrize("fault", ["http_429", "http_503"])
async def test_an_api_that_is_busy_at_the_start_is_waited_for_and_not_taken_for_one_without_ids(
    tmp_path: Path, fault: Any
) -> None:
    """A probe that fails says nothing of the level."""
    async with OpenAiServer(SCRIPT, ids=True) as server:
        honest, busy = server.route, [fault]

        async def route(method: str, path: str, query: str, body: bytes) -> Any:
            if busy and method == "POST":
                server.now.faults.append(busy.pop())
                await server.next_fault()
            return await honest(method, path, query, body)

        server.route = route  # type: ignore[method-assign]
        engine = make_engine(f"openai:{server.url}", model="teacher", journal_dir=tmp_path / "j", far={"patience": 5.0})
        await engine.start()
        assert engine.info.level == "L2" and busy == []
        await engine.close()


async def test_forced_tools_and_schemas_are_the_engines_affair(tmp_path: Path) -> None:
    async with over(tmp_path) as at:
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        status, _ = await at.chat({"role": "user", "content": "go"}, tool_choice="required", response_format=schema)
        sent = at.server.seen.generations[-1]
        assert status == 200 and sent["tool_choice"] == "required"
        assert sent["response_format"]["json_schema"]["schema"] == {"type": "object"}


async def test_a_wrong_key_is_said_at_the_start(tmp_path: Path) -> None:
    async with OpenAiServer(SCRIPT, key="right") as server:
        (tmp_path / "key").write_text("wrong\n")
        far = {"key_file": str(tmp_path / "key"), "patience": 0.1}
        engine = make_engine(f"openai:{server.url}", model="teacher", journal_dir=tmp_path / "j", far=far)  # type: ignore[arg-type]
        with pytest.raises(EngineError, match="key is missing or wrong"):
            await engine.start()
        (tmp_path / "key").write_text("right\n")
        engine = make_engine(f"openai:{server.url}", model="teacher", journal_dir=tmp_path / "k", far=far)  # type: ignore[arg-type]
        await engine.start()
        assert "right" not in repr(engine.remote)  # type: ignore[attr-defined]
        await engine.close()


@pytest.mark.parametrize("streaming", ["buffered", "live"])
async def test_streams_are_made_of_whole_replies(tmp_path: Path, streaming: str) -> None:
    async with over(tmp_path, [{"content": "all is well"}], streaming=streaming) as at:
        headers = {"authorization": f"Bearer {at.key}"}
        body = {"model": "m", "messages": [{"role": "user", "content": "go"}], "stream": True}
        async with at.http.post(at.gateway.url + "/v1/chat/completions", json=body, headers=headers) as response:
            events = [line[6:] async for line in response.content if line.startswith(b"data: ")]
        deltas = [json.loads(e)["choices"][0]["delta"].get("content") or "" for e in events[:-1]]
        assert events[-1].strip() == b"[DONE]" and "".join(deltas) == "all is well"


async def test_counts_are_estimates(tmp_path: Path) -> None:
    async with over(tmp_path) as at:
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}]}
        headers = {"x-api-key": at.key, "anthropic-version": "2023-06-01"}
        status, said = await at.post("/v1/messages/count_tokens", body, headers)
        assert (status, said["input_tokens"]) == (200, 100)


async def test_a_lost_reply_is_made_anew_from_the_record(tmp_path: Path) -> None:
    """The gateway dies behind the commit: the next one sends the recorded words, and asks nobody again."""
    async with over(tmp_path, SCRIPT) as at:
        asked = {"role": "user", "content": "go"}
        _, first = await at.chat(asked)
        calls = list(at.store.iter_calls("ses_a"))
        await at.store.mark(calls[0].call_id, CallOutcome.UNDELIVERED)
        again = LocalGateway(at.engine, wordless(), at.store, DIALECTS, GatewayOptions())
        await again.start()
        access = await again.open("ses_a", Policy(Sampling(max_tokens=1000)))
        body = {"model": "m", "messages": [asked], "tools": TOOLS}
        url, headers = again.url + "/v1/chat/completions", {"authorization": f"Bearer {access.secret}"}
        async with at.http.post(url, json=body, headers=headers) as response:
            second = json.loads(await response.read())
        assert second["choices"][0] == first["choices"][0]
        assert len(at.server.seen.generations) == 1 and len(at.turns()) == 1
        await again.stop()


async def test_a_teacher_beside_the_policy(tmp_path: Path) -> None:
    async with OpenAiServer([{"content": "I judge."}]) as server:
        store = RunStore.create(tmp_path / "run", "")
        policy = ScriptedEngine([{"settings": {"repeat": True}}, {"text": "mine"}], PILOT, tmp_path / "run" / "engine")
        teacher = make_engine(f"openai:{server.url}", model="teacher", journal_dir=tmp_path / "run" / "engines" / "t")
        await policy.start()
        await teacher.start()
        seat = Seat(teacher, wordless())
        gateway = LocalGateway(policy, chat_model(PILOT), store, DIALECTS, others={"t": seat})
        await gateway.start()
        rules = Policy(Sampling(max_tokens=50), routes=(ModelRoute("big-*", "t"),))
        access = await gateway.open("ses_a", rules)
        async with aiohttp.ClientSession() as http:
            said = []
            for model in ("small", "big-one"):
                body = {"model": model, "messages": [{"role": "user", "content": "go"}]}
                headers = {"authorization": f"Bearer {access.secret}"}
                async with http.post(gateway.url + "/v1/chat/completions", json=body, headers=headers) as response:
                    said.append(json.loads(await response.read())["choices"][0]["message"]["content"])
        assert said == ["mine", "I judge."]
        turns = list(store.iter_turns("ses_a"))
        assert [(t.engine, t.level) for t in turns] == [("", "L4"), ("t", "L0")]
        await gateway.stop()
        ended = Ended(SessionKey("ses_a", "g", "t", 0), Outcome.COMPLETED, 1.0)
        made = make_trajectory(ended, turns, list(store.iter_calls("ses_a")))
        assert [trace.level for trace in made.traces] == ["L4"]
        for engine in (policy, teacher):
            await engine.close()
        await store.close()
