"""The gateway over real HTTP: attach, bridge, commit, reply; bad input; delivery."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.gateway_kit import CALL, WRITE, body, gateway, tools, user
from tugline.core.columns import take
from tugline.core.errors import StoreError
from tugline.core.turn import CallOutcome, CallRecord, Turn
from tugline.gateway.running import Timing

pytestmark = pytest.mark.usefixtures("no_blocking")


def calls_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    return list(message.get("tool_calls") or [])


async def test_a_conversation_is_one_path_and_every_prompt_extends_the_last(tmp_path: Path) -> None:
    script: list[object] = [
        {"settings": {"noncanonical": 0.5, "seed": 1}},
        {"reasoning": "Think.  ", "text": " hello\n", "calls": [CALL]},
        {"calls": [CALL, WRITE]},
        {"text": "Done."},
    ]
    async with gateway(tmp_path, script) as kit:
        access = await kit.session()
        messages = [{"role": "system", "content": "Be brief."}, user("go")]
        for _ in range(3):
            status, reply = await kit.post(body(*messages), key=access.secret)
            assert status == 200, reply
            message = reply["choices"][0]["message"]
            messages.append(message)
            for made in calls_of(message):
                value = json.loads(made["function"]["arguments"])
                made["function"]["arguments"] = json.dumps(value, separators=(",", ":")).replace("1.0", "1")
                messages.append({"role": "tool", "tool_call_id": made["id"], "content": "<|im_end|> ok"})
        await kit.gateway.close("ses_a")
        turns = list(kit.store.iter_turns("ses_a"))
        assert [t.parent for t in turns] == [None, turns[0].turn_id, turns[1].turn_id]
        from tugline.forest.forest import Forest

        forest = Forest.restore("ses_a", b"", turns)
        for before, after in itertools.pairwise(turns):
            assert forest.prompt(after.turn_id).startswith(take(forest.full(before.turn_id), 0, after.keep))
        assert "number_respell" in turns[2].drift
        assert "special_in_text" in turns[1].drift
        assert all(t.untrainable is None for t in turns)


async def test_streams_carry_the_same_reply_and_true_usage(tmp_path: Path) -> None:
    script: list[object] = [{"reasoning": "Why\u2028not", "text": "Hi", "calls": [CALL, WRITE]}] * 2
    async with gateway(tmp_path, [{"settings": {"repeat": True}}, *script]) as kit:
        access = await kit.session()
        status, whole = await kit.post(body(user("go")), key=access.secret)
        streamed, events = await kit.stream(body(user("go"), stream_options={"include_usage": True}), access.secret)
        expected = whole["choices"][0]["message"]
        assert status == 200
        assert events[-1] == "[DONE]"
        assert {k: streamed[k] for k in ("content", "reasoning_content")} == {
            k: expected[k] for k in ("content", "reasoning_content")
        }
        assert [c["function"] for c in calls_of(streamed)] == [c["function"] for c in calls_of(expected)]
        usage = json.loads(events[-2])["usage"]
        assert usage == whole["usage"]
        turn = next(iter(kit.store.iter_turns("ses_a")))
        assert usage["prompt_tokens"] == turn.prompt_len
        assert usage["completion_tokens"] == len(turn.sampled) // 4


@pytest.mark.parametrize(
    ("key", "status", "code"), [(None, 401, "invalid_api_key"), ("tug-unknown", 401, "invalid_api_key")]
)
async def test_unknown_credentials(tmp_path: Path, key: str | None, status: int, code: str) -> None:
    async with gateway(tmp_path, [{"text": "x"}]) as kit:
        await kit.session()
        got, reply = await kit.post(body(user("go")), key=key)
        assert (got, reply["error"]["code"]) == (status, code)


async def test_an_ended_session_is_forbidden_and_records_nothing(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"text": "x"}]) as kit:
        access = await kit.session()
        await kit.gateway.close("ses_a")
        status, reply = await kit.post(body(user("go")), key=access.secret)
        assert (status, reply["error"]["code"]) == (403, "session_ended")
        assert list(kit.store.iter_calls("ses_a")) == []


BAD = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"model": "m"}',
    b'{"model": "m", "messages": []}',
    b'{"model": "m", "messages": "hi"}',
    b'{"model": "m", "messages": [{"role": "user", "content": 3}]}',
    b'{"model": "m", "messages": [{"role": "alien", "content": "x"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [{"type": "x"}]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [3]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": "hot"}',
    b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 3}',
    b'{"model": "m", "messages": [{"role": "tool", "content": "x"}]}',
    b"[" * 200_000,
    b'{"a":' * 100_000,
]


async def test_bad_bodies_get_a_clear_error_and_record_no_turn(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"text": "x"}]) as kit:
        access = await kit.session()
        for data in BAD:
            status, reply = await kit.post(data, key=access.secret)
            assert status == 400, (data[:60], reply)
            assert reply["error"]["type"] == "invalid_request_error"
            assert reply["error"]["message"]
        assert list(kit.store.iter_turns("ses_a")) == []
        status, _ = await kit.post(body(user("go")), key=access.secret)
        assert status == 200, "the server is still up"


async def test_huge_bodies_are_refused_without_being_held(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"text": "x"}]) as kit:
        access = await kit.session()
        status, reply = await kit.post(b" " * (50 << 20), key=access.secret)
        assert (status, reply["error"]["code"]) == (413, "request_too_large")
        bomb = gzip.compress(b" " * (50 << 20))
        status, _ = await kit.post(bomb, key=access.secret, **{"content-encoding": "gzip"})
        assert status == 413
        status, _ = await kit.post(body(user("go")), key=access.secret)
        assert status == 200


async def test_unknown_paths_are_404_in_the_dialects_shape(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"text": "x"}]) as kit:
        access = await kit.session()
        status, reply = await kit.post(body(user("x")), key=access.secret, path="/v1/nothing")
        assert (status, reply["error"]["code"]) == (404, "not_found")


async def test_models_and_the_path_prefix(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"text": "x"}]) as kit:
        access = await kit.session()
        async with kit.http.get(access.secret_url + "/v1/models") as response:
            listed = await response.json()
        assert listed["data"][0]["object"] == "model"
        status, _ = await kit.post(body(user("go")), path=f"/s/{access.secret}/v1/chat/completions")
        assert status == 200


async def test_a_prompt_that_fills_the_window_is_the_native_context_error(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"text": "x"}]) as kit:
        access = await kit.session()
        status, reply = await kit.post(body(user("word " * 9000), stream=True), key=access.secret)
        assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
        assert "maximum context length" in reply["error"]["message"]


async def test_budgets_end_the_session_cleanly(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"settings": {"repeat": True}}, {"text": "x"}]) as kit:
        access = await kit.session(max_turns=1)
        assert (await kit.post(body(user("a")), key=access.secret))[0] == 200
        status, reply = await kit.post(body(user("b")), key=access.secret)
        assert (status, reply["error"]["code"]) == (403, "budget_turns")


async def test_sessions_never_mix(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"settings": {"repeat": True}}, {"text": "x"}]) as kit:
        a, b = await kit.session("ses_a"), await kit.session("ses_b")
        await asyncio.gather(*(kit.post(body(user(f"{i}")), key=(a, b)[i % 2].secret) for i in range(40)))
        assert len(list(kit.store.iter_turns("ses_a"))) == len(list(kit.store.iter_turns("ses_b"))) == 20


async def test_parallel_calls_of_one_session_become_siblings(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"settings": {"repeat": True}}, {"text": "x"}]) as kit:
        access = await kit.session()
        _, first = await kit.post(body(user("go")), key=access.secret)
        history = [user("go"), first["choices"][0]["message"]]
        results = await asyncio.gather(*(kit.post(body(*history, user(f"{i}")), key=access.secret) for i in range(16)))
        assert {status for status, _ in results} == {200}
        turns = list(kit.store.iter_turns("ses_a"))
        assert [t.parent for t in turns] == [None] + [turns[0].turn_id] * 16
        assert sorted(t.seq for t in turns) == list(range(17))


async def test_a_delivered_request_sent_again_is_a_new_sample(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"text": "one"}, {"text": "two"}]) as kit:
        access = await kit.session()
        replies = [(await kit.post(body(user("go")), key=access.secret))[1] for _ in range(2)]
        assert [r["choices"][0]["message"]["content"] for r in replies] == ["one", "two"]
        assert len(list(kit.store.iter_turns("ses_a"))) == 2


async def test_an_undelivered_reply_is_replayed_not_sampled_again(tmp_path: Path) -> None:
    script: list[object] = [{"text": "one", "delay_s": 0.4}, {"text": "two"}]
    async with gateway(tmp_path, script, timing=Timing(5.0, 5.0)) as kit:
        access = await kit.session()
        with pytest.raises(asyncio.TimeoutError):
            await kit.http.post(
                kit.gateway.url + "/v1/chat/completions",
                json=body(user("go")),
                headers={"authorization": f"Bearer {access.secret}"},
                timeout=aiohttp.ClientTimeout(total=0.15),
            )
        while not list(kit.store.iter_turns("ses_a")):
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.05)
        _, reply = await kit.post(body(user("go")), key=access.secret)
        assert reply["choices"][0]["message"]["content"] == "one"
        assert len(list(kit.store.iter_turns("ses_a"))) == 1
        for _ in range(200):  # recorded after its last byte: whether it was delivered is known only then
            outcomes = {c.outcome for c in kit.store.iter_calls("ses_a")}
            if CallOutcome.REPLAYED in outcomes:
                break
            await asyncio.sleep(0.01)
        assert CallOutcome.REPLAYED in outcomes


async def test_a_retry_joins_the_generation_its_client_left(tmp_path: Path) -> None:
    script: list[object] = [{"text": "one", "delay_s": 0.5}, {"text": "two"}]
    async with gateway(tmp_path, script, timing=Timing(5.0, 5.0)) as kit:
        access = await kit.session()
        headers = {"authorization": f"Bearer {access.secret}"}
        with pytest.raises(asyncio.TimeoutError):
            await kit.http.post(
                kit.gateway.url + "/v1/chat/completions",
                json=body(user("go")),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=0.15),
            )
        await asyncio.sleep(0.05)
        _, reply = await kit.post(body(user("go")), key=access.secret)
        assert reply["choices"][0]["message"]["content"] == "one"
        assert len(list(kit.store.iter_turns("ses_a"))) == 1


async def test_a_client_that_never_returns_costs_no_more_than_the_grace(tmp_path: Path) -> None:
    script: list[object] = [{"text": "one", "delay_s": 30}]
    async with gateway(tmp_path, script, timing=Timing(5.0, 0.1)) as kit:
        access = await kit.session()
        with pytest.raises(asyncio.TimeoutError):
            await kit.http.post(
                kit.gateway.url + "/v1/chat/completions",
                json=body(user("go")),
                headers={"authorization": f"Bearer {access.secret}"},
                timeout=aiohttp.ClientTimeout(total=0.1),
            )
        for _ in range(100):
            if list(kit.store.iter_calls("ses_a")):
                break
            await asyncio.sleep(0.02)
        assert [c.outcome for c in kit.store.iter_calls("ses_a")] == [CallOutcome.UNDELIVERED]
        assert list(kit.store.iter_turns("ses_a")) == []


async def test_silence_is_filled_with_keepalives_and_engine_failures_are_retried_inside(tmp_path: Path) -> None:
    script: list[object] = [{"text": "slow", "delay_s": 0.3}, {"text": "again", "fail_after_tokens": 1}]
    async with gateway(tmp_path, script, timing=Timing(0.05, 1.0)) as kit:
        access = await kit.session()
        headers = {"authorization": f"Bearer {access.secret}"}
        url = kit.gateway.url + "/v1/chat/completions"
        async with kit.http.post(url, json=body(user("go"), stream=True), headers=headers) as response:
            text = await response.text()
        assert ": keep-alive" in text
        assert text.rstrip().endswith("data: [DONE]")
        status, reply = await kit.post(body(user("other")), key=access.secret)
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "again")


class FailingLog:
    """A store whose disk is full."""

    async def commit(self, call: CallRecord, turn: Turn | None) -> None:
        raise StoreError("no space left on device", code="disk_full")

    async def mark(self, call_id: str, outcome: CallOutcome) -> None: ...
    async def seal(self, session_id: str) -> None: ...
    async def load_turns(self, session_id: str) -> tuple[Turn, ...]:
        return ()

    async def load_calls(self, session_id: str) -> tuple[CallRecord, ...]:
        return ()


async def test_what_cannot_be_stored_is_not_served(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"settings": {"repeat": True}}, {"text": "x"}], log=FailingLog()) as kit:
        access = await kit.session()
        for stream in (False, True):
            status, reply = await kit.post(body(user("go"), stream=stream), key=access.secret)
            assert (status, reply["error"]["type"]) == (503, "server_error")


async def test_a_full_disk_after_the_headers_cuts_the_stream(tmp_path: Path) -> None:
    script: list[object] = [{"settings": {"repeat": True}}, {"text": "x", "delay_s": 0.2}]
    async with gateway(tmp_path, script, log=FailingLog(), timing=Timing(0.03, 1.0)) as kit:
        access = await kit.session()
        headers = {"authorization": f"Bearer {access.secret}"}
        url = kit.gateway.url + "/v1/chat/completions"
        async with kit.http.post(url, json=body(user("go"), stream=True), headers=headers) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()


async def test_changed_tools_start_a_new_root_and_say_why(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"settings": {"repeat": True}}, {"text": "x"}]) as kit:
        access = await kit.session()
        _, first = await kit.post(body(user("go")), key=access.secret)
        history = [user("go"), first["choices"][0]["message"], user("more")]
        await kit.post(body(*history) | {"tools": tools("bash")}, key=access.secret)
        reasons = [c.root_reason for c in kit.store.iter_calls("ses_a")]
        assert reasons == ["root_first", "root_head_changed"]


async def test_tampered_engines_make_calls_untrainable_but_never_fail_the_agent(tmp_path: Path) -> None:
    from dataclasses import replace as change

    from tugline.core.columns import ids, ids_list

    async with gateway(tmp_path, [{"settings": {"repeat": True}}, {"text": "x"}]) as kit:
        access = await kit.session()
        honest = kit.engine.generate

        async def lying(request: Any) -> Any:
            sample = await honest(request)
            wrong = ids_list(sample.prompt_ids)
            wrong[3] ^= 1
            return change(sample, prompt_ids=ids(wrong))

        kit.engine.generate = lying  # type: ignore[method-assign]
        status, _ = await kit.post(body(user("go")), key=access.secret)
        assert status == 200
        assert next(iter(kit.store.iter_turns("ses_a"))).untrainable == "engine_echo_mismatch"
