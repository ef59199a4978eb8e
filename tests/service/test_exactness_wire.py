"""The fake engine speaks the wire of the engines that gateways know: shapes, ids, limits, errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tugline.cli.wiring import PILOT
from tugline.core.columns import floats_array, ids, ids_list
from tugline.engines.script import Call, Step
from tugline.testing.exactness.app import COMPLETION_TOKENS
from tugline.testing.exactness.fake import FakeEngine
from tugline.testing.exactness.suite import fake_server

STEP = Step(reasoning="Look first.", text="Let me see.", calls=(Call("bash", '{"command" :  "ls"}'),))
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "List."}]


@dataclass
class Wire:
    engine: FakeEngine
    http: httpx.AsyncClient

    async def post(self, path: str, **body: Any) -> Any:
        reply = await self.http.post(path, json=body)
        assert reply.status_code == 200, reply.text
        if reply.headers["content-type"].startswith("text/event-stream"):
            lines = [line[6:] for line in reply.text.split("\n") if line.startswith("data: ")]
            assert lines.pop() == "[DONE]"
            return [json.loads(line) for line in lines]
        return reply.json()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    engine = FakeEngine(PILOT, seed=1)
    engine.plan(STEP)
    async with fake_server(engine) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
        yield Wire(engine, http)


async def test_chat_completions(wire: Wire) -> None:
    reply = await wire.post("/v1/chat/completions", messages=MESSAGES, return_token_ids=True, logprobs=True)
    (made,), (choice,) = wire.engine.made, reply["choices"]
    assert reply["prompt_token_ids"] == ids_list(made.prompt)
    assert choice["token_ids"] == ids_list(made.sampled)
    assert [row["logprob"] for row in choice["logprobs"]["content"]] == floats_array(made.logprobs).tolist()
    message = choice["message"]
    assert (message["reasoning"], message["content"], choice["finish_reason"]) == (
        "Look first.", "Let me see.", "tool_calls",
    )  # fmt: skip
    assert message["tool_calls"][0]["function"] == {"name": "bash", "arguments": '{"command": "ls"}'}, (
        "as parsers write"
    )
    prompt = wire.engine.decode(made.prompt)
    assert (
        prompt == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nList.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert '{"command" :  "ls"}' in wire.engine.decode(made.sampled), "as the model wrote"
    bare = await wire.post("/v1/chat/completions", messages=MESSAGES)
    assert bare["prompt_token_ids"] is None and bare["choices"][0]["logprobs"] is None


async def test_sampled_ids_are_no_encoders(wire: Wire) -> None:
    await wire.post("/v1/chat/completions", messages=MESSAGES)
    (made,) = wire.engine.made
    text = wire.engine.decode(made.sampled)
    assert wire.engine.model.encode(text) != made.sampled
    assert made.said.text == "Let me see."


async def test_a_stream_is_the_same_reply(wire: Wire) -> None:
    asked = {"messages": MESSAGES, "return_token_ids": True, "logprobs": True, "stream": True}
    chunks = await wire.post("/v1/chat/completions", **asked, stream_options={"include_usage": True})
    (made,) = wire.engine.made
    choices = [c for chunk in chunks for c in chunk["choices"]]
    assert chunks[0]["prompt_token_ids"] == ids_list(made.prompt)
    assert [t for c in choices for t in c.get("token_ids", ())] == ids_list(made.sampled)
    assert sum(len((c["logprobs"] or {"content": ()})["content"]) for c in choices) == len(ids_list(made.sampled))
    assert "".join(c["delta"].get("content") or "" for c in choices) == "Let me see."
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"]["completion_tokens"] == len(ids_list(made.sampled))


@pytest.mark.parametrize("stream", [False, True])
async def test_completions(wire: Wire, stream: bool) -> None:
    asked = {"prompt": [1, 2, 3], "max_tokens": 500, "logprobs": 1, "return_token_ids": True, "stream": stream}
    replies = await wire.post("/v1/completions", **asked)
    (made,) = wire.engine.made
    choices = [c for reply in (replies if stream else [replies]) for c in reply["choices"]]
    assert len(choices) == (len(ids_list(made.sampled)) if stream else 1)
    assert choices[0]["prompt_token_ids"] == [1, 2, 3]
    assert [t for c in choices for t in c["token_ids"]] == ids_list(made.sampled)
    told = [value for c in choices for value in c["logprobs"]["token_logprobs"]]
    assert told == floats_array(made.logprobs).tolist()
    assert (choices[-1]["finish_reason"], made.form) == ("stop", "ids")


async def test_a_completion_without_a_limit_is_short(wire: Wire) -> None:
    reply = await wire.post("/v1/completions", prompt="Hello")
    (made,) = wire.engine.made
    assert reply["usage"]["completion_tokens"] == COMPLETION_TOKENS
    assert (reply["choices"][0]["finish_reason"], made.form) == ("length", "text")
    assert made.prompt == wire.engine.model.encode("Hello")


@pytest.mark.parametrize("stream", [False, True])
async def test_generate(wire: Wire, stream: bool) -> None:
    sampling = {"max_tokens": 500, "logprobs": 0}
    asked = {"token_ids": [5, 6], "sampling_params": sampling, "return_token_ids": True, "stream": stream}
    replies = await wire.post("/inference/v1/generate", **asked)
    (made,), told = wire.engine.made, replies if stream else [replies]
    choices = [c for reply in told for c in reply["choices"]]
    sampled = [t for c in choices for t in c["token_ids"]]
    assert (told[0]["prompt_token_ids"], sampled) == ([5, 6], ids_list(made.sampled))
    rows = [row for c in choices for row in c["logprobs"]["content"]]
    assert [row["token_id"] for row in rows] == sampled
    assert [row["logprob"] for row in rows] == floats_array(made.logprobs).tolist()
    assert rows[0]["token"] == f"token_id:{sampled[0]}"
    assert choices[-1]["weight_versions"] == [{"version": "default", "start": 0, "end": len(rows)}]
    assert told[-1]["usage"]["completion_tokens"] == len(sampled)


async def test_sglang(wire: Wire) -> None:
    reply = await wire.post("/generate", input_ids=[5, 6], sampling_params={"max_new_tokens": 500})
    (made,), meta = wire.engine.made, reply["meta_info"]
    assert reply["output_ids"] == ids_list(made.sampled) == [row[1] for row in meta["output_token_logprobs"]]
    assert [row[0] for row in meta["output_token_logprobs"]] == floats_array(made.logprobs).tolist()
    assert [row[1] for row in meta["input_token_logprobs"]] == [5, 6]
    assert meta["finish_reason"] == {"type": "stop", "matched": ids_list(made.sampled)[-1]}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (2, len(reply["output_ids"]))


async def test_sglangs_chat_takes_ids(wire: Wire) -> None:
    asked = {"messages": MESSAGES, "input_ids": [5, 6], "return_meta_info": True, "logprobs": True}
    reply = await wire.post("/v1/chat/completions", **asked)
    (made,), (choice,) = wire.engine.made, reply["choices"]
    assert (made.prompt, made.form) == (ids([5, 6]), "ids")
    assert [row[1] for row in choice["meta_info"]["output_token_logprobs"]] == ids_list(made.sampled)
    assert choice["message"]["reasoning_content"] == "Look first."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"model": "m", "max_tokens": 500, "messages": [{"role": "user", "content": "List."}]}),
        ("/v1/responses", {"model": "m", "input": "List."}),
    ],
)
async def test_other_apis_of_the_engine(wire: Wire, path: str, body: dict[str, Any], stream: bool) -> None:
    reply = await wire.http.post(path, json=body | {"stream": stream})
    assert reply.status_code == 200
    assert "Let me see." in reply.text or "Let me" in reply.text
    assert "token_ids" not in reply.text
    assert wire.engine.made[0].form == "messages"


async def test_there_and_back(wire: Wire) -> None:
    found = await wire.post("/tokenize", messages=MESSAGES)
    text = (await wire.post("/detokenize", tokens=found["tokens"]))["prompt"]
    assert found["count"] == len(found["tokens"]) and text.endswith("<|im_start|>assistant\n")
    assert (await wire.post("/tokenize", prompt=text))["tokens"] == found["tokens"]
    for path in ("/health", "/v1/models", "/version", "/get_model_info"):
        assert (await wire.http.get(path)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/inference/v1/generate", {"token_ids": []}),
        ("/inference/v1/generate", {"token_ids": [10**9]}),
        ("/inference/v1/generate", {"token_ids": "text"}),
        ("/v1/completions", {"prompt": [-1]}),
        ("/generate", {"input_ids": None}),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{"}}]}]}),
    ],
)  # fmt: skip
async def test_what_no_engine_would_take(wire: Wire, path: str, body: dict[str, Any]) -> None:
    reply = await wire.http.post(path, json=body)
    assert reply.status_code == 400 and reply.json()["error"]["code"] == 400
    assert wire.engine.made == []


async def test_bytes_that_are_no_json(wire: Wire) -> None:
    assert (await wire.http.post("/v1/chat/completions", content=b"{")).status_code == 400


async def test_what_a_tool_loop_makes_of_a_prompt(wire: Wire) -> None:
    """Text parts are joined, empty content stays empty, arguments are read as objects."""
    call = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"command" : "ls"}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
    ]
    await wire.post("/v1/chat/completions", messages=messages)
    text = wire.engine.decode(wire.engine.made[0].prompt)
    assert "user\none\ntwo<|im_end|>" in text and "<think>\nwhy\n</think>" in text
    assert '"arguments": {"command": "ls"}}' in text


def test_unplanned_generations_are_marked() -> None:
    engine = FakeEngine(PILOT)
    made = engine.generate(ids([1]), route="/x", form="ids")
    assert (made.planned, made.said.text) == (False, "ok")
    engine.plan(Step(text="one"), Step(text="two"))
    said = [engine.generate(ids([1]), route="/x", form="ids").said.text for _ in range(3)]
    assert said == ["one", "two", "two"]


def test_a_cut_turn() -> None:
    engine = FakeEngine(PILOT)
    engine.plan(Step(text="A long story of many words, told slowly.", finish="length"))
    made = engine.generate(ids([1]), route="/x", form="ids")
    assert made.finish == "length" and ids_list(made.sampled)[-1] not in engine.files.stop_ids
