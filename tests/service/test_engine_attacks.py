"""Engines that would hurt others: floods of names and events, errors that repeat what agents say, answers that cost
again, bodies that are slow to read. And what a user's typing mistake shows."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.engine_kit import engine
from service.test_engine_hostile import KEY, answering, said
from service.test_openai_engine import over
from tugline.cli import doctor_engine
from tugline.cli.main import app
from tugline.cli.wiring import PILOT
from tugline.core.columns import ids
from tugline.core.contracts import Generation
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.engines import openai, spending
from tugline.engines.openai import OpenAiEngine
from tugline.engines.remote.client import Http
from tugline.engines.remote.driver import SPARE
from tugline.engines.remote.reply import decode_json
from tugline.engines.remote.where import Remote
from tugline.engines.spending import UsageLine, append_line, spent_in
from tugline.engines.vllm_wire import Generated
from tugline.testing.engine_server import Refused

Route = Callable[[str, str, str, bytes], Awaitable[Any]]
GO = {"role": "user", "content": "go"}
LINE = UsageLine("r", "s", "i", "m", 3, 0, 2, 0, 0.5)


BROKEN = [b'{"a":"' + b"x" * (12 << 20), b'{"a":"' + b"\\n" * (6 << 20) + b'", NaN', b"-" * (12 << 20)]


@pytest.mark.parametrize("broken", BROKEN, ids=["text", "escapes", "signs"])
def test_a_large_reply_that_is_broken_is_refused_in_a_moment(broken: bytes) -> None:
    """Before, 10 MB took five seconds of the event loop and 1.2 GB."""
    begun = time.process_time()
    with pytest.raises(EngineError, match="cannot be read"):
        decode_json(broken, Generated)
    assert time.process_time() - begun < 2.0


def test_bare_words_are_null_and_texts_stay() -> None:
    entries = b'{"logprob": -Infinity, "token_id": 1}, {"logprob": NaN, "token_id": 2}'
    body = b'{"choices": [{"finish_reason": "a NaN \\" NaN", "logprobs": {"content": [' + entries + b"]}}]}"
    found: Any = decode_json(body, Generated)
    assert found.choices[0].finish_reason == 'a NaN " NaN'
    assert [e.logprob for e in found.choices[0].logprobs.content] == [None, None]


async def test_ends_that_are_new_each_time_are_counted_under_one_name(tmp_path: Path) -> None:
    """A metric has as many series as it has names, for ever."""
    async with over(tmp_path) as at:
        honest: Route = at.server.route
        count = iter(range(100))

        async def route(method: str, path: str, query: str, body: bytes) -> Any:
            reply, fault = await honest(method, path, query, body)
            reply["choices"][0]["finish_reason"] = f"end{next(count)}"
            return reply, fault

        at.server.route = route  # type: ignore[method-assign]
        for _ in range(3):
            assert (await at.chat(GO))[0] == 502
        assert isinstance(at.engine, OpenAiEngine)
        assert dict(at.engine.faults) == {"finish_other": 9}


async def test_an_agent_cannot_make_an_engine_drop_a_field_for_everybody(tmp_path: Path) -> None:
    """Errors repeat what was said to them. Only an answer without the field proves that it was the field."""
    async with over(tmp_path, [{"content": "one"}]) as at:
        honest: Route = at.server.route

        async def route(method: str, path: str, query: str, body: bytes) -> Any:
            choice = json.loads(body).get("tool_choice")
            if isinstance(choice, dict):
                raise Refused(400, f"Unknown tool '{choice['function']['name']}' is not supported.")
            return await honest(method, path, query, body)

        at.server.route = route  # type: ignore[method-assign]
        tool = [{"type": "function", "function": {"name": "temperature", "parameters": {"type": "object"}}}]
        forced = {"type": "function", "function": {"name": "temperature"}}
        assert (await at.chat(GO, tools=tool, tool_choice=forced))[0] >= 400
        assert (await at.chat({"role": "user", "content": "on"}))[0] == 200
        assert "temperature" in at.server.seen.generations[-1]
        assert at.turns()[-1].drift == ()


async def test_a_sample_of_another_distribution_than_was_asked_for_does_not_train(tmp_path: Path) -> None:
    async with over(tmp_path, [{"content": "one"}], ids=True, refuses=["temperature"]) as at:
        assert (await at.chat(GO))[0] == 200
        (turn,) = at.turns()
        assert turn.level == "L2" and turn.untrainable == "sampling_not_sent"
        proof = await at.prove()
        assert proof.findings == [] and proof.trained_tokens == 0


async def test_a_bill_that_cannot_be_written_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with over(tmp_path, [{"content": "one"}]) as at:

        def full(path: Path, line: UsageLine) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(openai, "append_line", full)
        assert (await at.chat(GO))[0] == 502
        assert len(at.server.seen.generations) == 1, "every further attempt would cost as much"
        assert isinstance(at.engine, OpenAiEngine) and at.engine.spent.calls == 1, "it was paid for all the same"
        monkeypatch.undo()
        assert (await at.chat(GO))[0] == 200
        assert len(at.turns()) == 1


def test_a_line_that_a_crash_cut_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "engine" / spending.FILE
    path.parent.mkdir()
    append_line(path, LINE)
    with path.open("ab") as file:
        file.write(b'{"ref":"x","sess')
    append_line(path, LINE)
    assert spent_in(tmp_path)["policy"].cost == 1.0
    assert len(path.read_bytes().splitlines()) == 3


async def test_counts_that_no_file_can_hold_cost_one_call_at_most(tmp_path: Path) -> None:
    async with over(tmp_path, [{"content": "one"}]) as at:
        honest: Route = at.server.route

        async def route(method: str, path: str, query: str, body: bytes) -> Any:
            reply, fault = await honest(method, path, query, body)
            reply["usage"] = {"prompt_tokens": (1 << 63) - 1, "completion_tokens": (1 << 63) - 1}
            return reply, fault

        at.server.route = route  # type: ignore[method-assign]
        for dialect_more in ({}, {"stream": True}):
            async with at.http.post(
                at.gateway.url + "/v1/chat/completions",
                json={"model": "m", "messages": [GO]} | dialect_more,
                headers={"authorization": f"Bearer {at.key}"},
            ) as response:
                assert response.status == 200 and await response.read()
        assert (await at.prove()).findings == []


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("empty", [True, False])
async def test_a_stream_that_never_ends_is_left(tmp_path: Path, kind: str, empty: bool) -> None:
    """Of an engine gone wild, or one that says nothing for ever: a client keeps what it was told."""
    async with engine(tmp_path, kind, [{"text": "yes"}]) as at:
        driver = at.served.driver
        driver._info = replace(driver._info, context=64)
        told = 0

        @asynccontextmanager
        async def stream(path: str, body: bytes, headers: Any) -> AsyncIterator[Any]:
            yield events()

        async def events() -> AsyncIterator[bytes]:
            nonlocal told
            said: list[int] = [] if empty else [5]
            choice = {"token_ids": said, "logprobs": {"content": [{"logprob": -1.0, "token_id": t} for t in said]}}
            while True:
                told += 1
                meta = {"completion_tokens": told * len(said), "output_token_logprobs": [[-1.0, t, None] for t in said]}
                event = {"choices": [choice]} if kind == "vllm" else {"output_ids": said, "meta_info": meta}
                yield json.dumps(event).encode()

        driver.http.stream = stream  # type: ignore[method-assign, assignment]
        with pytest.raises(EngineError) as caught:
            async for _ in driver.generate_stream(Generation("r", "s", ids([1, 2]), Sampling(max_tokens=8))):
                pass
        assert caught.value.fault == "too_large" and not caught.value.retryable
        assert told <= 64 + SPARE + 1


async def test_an_answer_of_200_does_not_repeat_the_key_either() -> None:
    async with answering(said("200 OK", f'{{"content": "your key is {KEY}"}}'.encode())) as (url, _):
        http = Http(Remote(url, key=KEY))
        http.open()
        body = (await http.post("/x", b"{}")).body
        await http.close()
    assert KEY.encode() not in body and b"[key]" in body


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (f"openai:https://{KEY}@127.0.0.1/v1", "a key stands in the URL"),
        (f"openai:https://127.0.0.1/v1?key={KEY}", "has no query"),
        (f"openia:https://{KEY}@127.0.0.1/v1", "is no engine"),
        ("vllm:127.0.0.1:8000", "is no URL such as"),
        ("vllm:http//127.0.0.1:8000", "is no URL such as"),
        ("vllm", "say where it listens"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_the_doctor_says_what_is_wrong_with_an_address_and_never_repeats_a_key(
    spec: str, says: str, more: list[str]
) -> None:
    done = CliRunner().invoke(app, ["doctor", "engine", spec, *more])
    assert done.exit_code == 1 and says in done.output.replace("\n", " ")
    assert KEY not in done.output


def test_the_doctor_does_not_wait_a_minute_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUGLINE_ENGINE__PATIENCE", raising=False)
    monkeypatch.setattr(doctor_engine, "PATIENCE", 0.1)
    begun = time.monotonic()
    done = CliRunner().invoke(app, ["doctor", "engine", "vllm:http://127.0.0.1:9", "--model", str(PILOT)])
    assert done.exit_code == 1 and "nobody answers" in done.output and time.monotonic() - begun < 10
