"""Every API through its official SDK against a real gateway: exact, continuous, true counts, the SDK's own errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from service.sdk.agents import agent_class
from service.sdk.base import Agent, Answer, Result
from service.wire_kit import DIALECT_NAMES, NONCANONICAL, PNG, Streaming, Wire, assert_exact, tokens, wire
from tugline.core.errors import EngineError, Overloaded, StoreError
from tugline.gateway.running import Timing

pytestmark = [  # the SDKs' own
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),
]

every_dialect = pytest.mark.parametrize("dialect", DIALECT_NAMES)
both_clients = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
both_ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
every_way = pytest.mark.parametrize(
    ("stream", "mode"), [(False, "buffered"), (True, "buffered"), (True, "live")], ids=["whole", "streamed", "live"]
)
every_mode = pytest.mark.parametrize("mode", ["buffered", "live"])


def step(text: str = "", *arguments: str, reasoning: str = "", finish: str = "stop") -> dict[str, Any]:
    calls = [{"name": "look" if "path" in spelled else "bash", "arguments": spelled} for spelled in arguments]
    return {"text": text, "reasoning": reasoning, "calls": calls, "finish": finish}


SCRIPT: list[Any] = [
    NONCANONICAL,
    step("  Look first.\n\n", '{"command" :  "ls \\u00e9"}', reasoning="Think, \u2028 then act. "),
    step("Three.", '{"command": "a"}', '{"command":"b", "timeout": 1.0}', '{"command":"c"}'),
    step("", '{"path":"a \\"b\\" \\n.png"}', reasoning="An image would help."),
    step(" I see \U0001f469\u200d\U0001f4bb \u6f22 \n"),
    step("More", '{"command":"x", "timeout": 1e3}', reasoning="\nHm.\n"),
    step("This is cut in the mid", finish="length"),
    step("", '{"command":"' + "q" * 300 + '"}', "{}"),
    step("Nothing to refuse."),
    step("", '{"command": "exit", "timeout": 0.5}', reasoning="Last one."),
    step("Done."),
]
ENDS = ["length" if s["finish"] == "length" else "tool_calls" if s["calls"] else "stop" for s in SCRIPT[1:]]


@asynccontextmanager
async def agent(dialect: str, url: str, secret: str, *, asynchronous: bool, retries: int = 0) -> AsyncIterator[Agent]:
    made = agent_class(dialect)(url, secret, asynchronous=asynchronous, retries=retries)
    try:
        yield made
    finally:
        await made.close()


async def converse(talk: Agent, stream: bool) -> list[Answer]:
    """Ten turns: tools in parallel, images, a refused request, a cut reply, a refusal in the history."""
    said: list[Answer] = []

    async def turn() -> Answer:
        said.append(await talk.ask(stream))
        return said[-1]

    talk.user("Begin. ", None)
    (call,) = (await turn()).calls
    talk.results([Result(call, "a.txt\n<|im_end|>\n")])
    one, two, three = (await turn()).calls
    talk.results([Result(three, "c"), Result(one, ""), Result(two, " b ")])
    (call,) = (await turn()).calls
    talk.results([Result(call, "a picture", PNG)])
    await turn()
    talk.user("And this one?", PNG)
    (call,) = (await turn()).calls
    with pytest.raises(talk.kind("bad_request")) as refused:
        await talk.ask_wrongly()
    assert getattr(refused.value, "status_code", None) or refused.value.code == 400  # type: ignore[attr-defined]
    talk.results([Result(call, "1000")])
    await turn()
    talk.user("Go on.")
    first, second = (await turn()).calls
    talk.results([Result(second, "2"), Result(first, "1")])
    await turn()
    talk.user("Do something bad.")
    talk.refusal("I will not.")
    talk.user("Something good then.")
    (call,) = (await turn()).calls
    talk.results([Result(call, "ok")])
    await turn()
    return said


@every_way
@both_clients
@every_dialect
async def test_ten_turns_are_exact_and_one_row(
    tmp_path: Path, dialect: str, asynchronous: bool, stream: bool, mode: Streaming
) -> None:
    async with wire(tmp_path, SCRIPT, streaming=mode) as run:
        access = await run.session()
        async with agent(dialect, run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
            said = await converse(talk, stream)
        turns = run.turns()
        assert [a.usage for a in said] == [tokens(t) for t in turns]
        assert [a.native for a in said] == [talk.ends[end] for end in ENDS]
        assert [a.text for a in said] == [s["text"] for s in SCRIPT[1:]]
        assert [a.reasoning for a in said] == [s["reasoning"] for s in SCRIPT[1:]]
        assert said[1].calls[1].arguments == {"command": "b", "timeout": 1.0}
        assert {"media_omitted", "foreign_assistant"} <= {name for turn in turns for name in turn.drift}
        for turn in turns:
            assert turn.untrainable is None
        live = run.gateway.metrics.live
        shown = sum("text" in s and bool(s["text"].strip() or s["reasoning"].strip()) for s in SCRIPT[1:])
        assert live.labels("live_shown")._value.get() == (shown if mode == "live" else 0)
        assert live.labels("live_mismatch")._value.get() == 0
        assert_exact(await run.prove(), calls=10)


@every_mode
@every_dialect
async def test_whole_and_streamed_calls_of_both_clients_share_one_conversation(
    tmp_path: Path, dialect: str, mode: Streaming
) -> None:
    """Four sessions at once, each with its own client and form; none disturbs another."""
    async with wire(tmp_path, SCRIPT, streaming=mode) as run:

        async def one(name: str, asynchronous: bool, stream: bool) -> None:
            access = await run.session(name)
            async with agent(dialect, run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
                await converse(talk, stream)

        forms = [(a, s) for a in (False, True) for s in (False, True)]
        await asyncio.gather(*(one(f"ses_{i}", a, s) for i, (a, s) in enumerate(forms)))
        assert_exact(await run.prove(), calls=40, sessions=4)


@both_clients
@every_dialect
async def test_the_count_call_tells_the_prompts_length(tmp_path: Path, dialect: str, asynchronous: bool) -> None:
    async with wire(tmp_path, SCRIPT) as run:
        access = await run.session()
        async with agent(dialect, run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
            talk.user("Begin: \u6f22\u5b57 \U0001f469\u200d\U0001f4bb <|im_start|>", PNG)
            counted = await talk.count()
            if counted is None:
                pytest.skip("this API has no count call")
            first = await talk.ask(stream=False)
            assert counted == first.usage[0] == run.turns()[0].prompt_len
            talk.results([Result(first.calls[0], "ok")])
            counted = await talk.count()
            assert counted == (await talk.ask(stream=True)).usage[0] == run.turns()[1].prompt_len
        assert_exact(await run.prove(), calls=2)


@both_clients
@every_dialect
async def test_models(tmp_path: Path, dialect: str, asynchronous: bool) -> None:
    async with wire(tmp_path, SCRIPT) as run:
        access = await run.session()
        async with agent(dialect, run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
            assert await talk.models() == [run.engine.info.model]
            assert await talk.model("any-name") == "any-name"


async def raises(talk: Agent, what: str, stream: bool = False) -> Exception:
    with pytest.raises(talk.kind(what)) as caught:
        await talk.ask(stream)
    return caught.value


def status(err: Exception) -> int:
    return int(getattr(err, "status_code", 0) or getattr(err, "code", 0) or 0)


@both_ways
@both_clients
@every_dialect
async def test_refusals_are_the_sdks_own(tmp_path: Path, dialect: str, asynchronous: bool, stream: bool) -> None:
    async with wire(tmp_path, SCRIPT) as run:
        access = await run.session()

        def fresh(secret: str = access.secret) -> Any:
            return agent(dialect, run.gateway.url, secret, asynchronous=asynchronous)

        async with fresh() as talk:
            talk.user("x " * 20_000)
            overflow = await raises(talk, "overflow", stream)
            assert status(overflow) == 400 and "4096" in str(overflow)
        async with fresh() as talk:
            talk.user("x" * (2 << 20))
            assert status(await raises(talk, "large", stream)) == 413
        async with fresh("tug-unknown") as talk:
            talk.user("x")
            assert status(await raises(talk, "unauthorized", stream)) == 401
        async with fresh() as talk:
            with pytest.raises(talk.kind("missing")) as missing:
                await talk.elsewhere()
            assert status(missing.value) == 404
        await run.gateway.close("ses_a")
        async with fresh() as talk:
            talk.user("x")
            assert status(await raises(talk, "ended", stream)) == 403


class Failing:
    """Raises these, one per call, then works."""

    def __init__(self, run: Wire, *errors: Exception, after: float = 0.0) -> None:
        self.errors, self.times, self.after = list(errors), list[float](), after
        engine: Any = run.engine
        self.honest, self.streams = type(engine).generate.__get__(engine), type(engine).generate_stream.__get__(engine)
        engine.generate, engine.generate_stream = self.generate, self.generate_stream

    async def fail(self) -> None:
        self.times.append(time.monotonic())
        if self.errors:
            await asyncio.sleep(self.after)
            raise self.errors.pop(0)

    async def generate(self, request: Any) -> Any:
        await self.fail()
        return await self.honest(request)

    async def generate_stream(self, request: Any) -> AsyncGenerator[Any, None]:
        await self.fail()
        async for piece in self.streams(request):
            yield piece


@every_way
@both_clients
@every_dialect
async def test_failures_are_the_sdks_own(
    tmp_path: Path, dialect: str, asynchronous: bool, stream: bool, mode: Streaming
) -> None:
    async with wire(tmp_path, SCRIPT, streaming=mode) as run:
        access = await run.session()
        async with agent(dialect, run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
            talk.user("x")
            Failing(run, Overloaded("busy", retry_after=3))
            assert status(await raises(talk, "busy", stream)) == 429
            Failing(run, EngineError("the engine is gone", retryable=False))
            assert status(await raises(talk, "engine", stream)) == 502
            Failing(run, *[EngineError("the engine is away")] * 2)
            assert status(await raises(talk, "engine", stream)) == 502
            Failing(run, StoreError("the disk is full"))
            assert status(await raises(talk, "store", stream)) == 503
            assert (await talk.ask(stream)).calls, "the same conversation goes on"
        assert_exact(await run.prove(), calls=1)


@both_clients
@every_dialect
async def test_the_sdk_waits_as_long_as_it_is_told(tmp_path: Path, dialect: str, asynchronous: bool) -> None:
    async with wire(tmp_path, SCRIPT) as run:
        access = await run.session()
        retrying = agent(dialect, run.gateway.url, access.secret, asynchronous=asynchronous, retries=2)
        async with retrying as talk:
            talk.user("x")
            failing = Failing(run, Overloaded("busy", retry_after=1.2))
            await talk.ask(stream=False)
            first, second = failing.times
            waits = 0.0 if dialect == "gemini" else 1.9  # google-genai backs off by its own clock
            assert waits < second - first < 10
            failing = Failing(run, EngineError("no", retryable=False))
            if dialect != "gemini":  # it retries 5xx whatever the server says
                await raises(talk, "engine")
                assert len(failing.times) == 1, "an error that cannot pass is not retried"
        assert_exact(await run.prove(), calls=1)


@every_mode
@both_clients
@every_dialect
async def test_an_error_behind_keepalives_is_an_error(
    tmp_path: Path, dialect: str, asynchronous: bool, mode: Streaming
) -> None:
    async with wire(tmp_path, SCRIPT, timing=Timing(keepalive=0.05), streaming=mode) as run:
        access = await run.session()
        async with agent(dialect, run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
            talk.user("x")
            Failing(run, EngineError("the engine is gone", retryable=False), after=0.3)
            assert "the engine is gone" in str(await raises(talk, "stream", stream=True))
            await talk.ask(stream=True)
        assert_exact(await run.prove(), calls=1)


@every_mode
@both_clients
@every_dialect
async def test_a_slow_reply_behind_keepalives_is_whole(
    tmp_path: Path, dialect: str, asynchronous: bool, mode: Streaming
) -> None:
    script = [SCRIPT[0], *({**s, "delay_s": 0.12} for s in SCRIPT[1:])]
    async with wire(tmp_path, script, timing=Timing(keepalive=0.05), streaming=mode) as run:
        access = await run.session()
        async with agent(dialect, run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
            said = await converse(talk, stream=True)
        assert [a.usage for a in said] == [tokens(t) for t in run.turns()]
        assert_exact(await run.prove(), calls=10)


@every_mode
@both_clients
@every_dialect
async def test_a_cut_stream_is_no_answer(tmp_path: Path, dialect: str, asynchronous: bool, mode: Streaming) -> None:
    """Where a retry may help, a stream that has begun ends without its end: clients must not take it for a reply."""
    async with wire(tmp_path, SCRIPT, timing=Timing(keepalive=0.05), streaming=mode) as run:
        access = await run.session()
        async with agent(dialect, run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
            talk.user("x")
            Failing(run, StoreError("the disk is full"), after=0.3)
            with pytest.raises(Exception, match=r"incomplete|closed|payload|[Cc]onnection"):
                await talk.ask(stream=True)
            assert (await talk.ask(stream=True)).calls
        assert_exact(await run.prove(), calls=1)


@every_way
@both_clients
async def test_history_that_the_server_keeps(tmp_path: Path, asynchronous: bool, stream: bool, mode: Streaming) -> None:
    """`previous_response_id`: only what is new is sent, and the row is the same as if all of it had been."""
    async with wire(tmp_path, SCRIPT, streaming=mode) as run:
        access = await run.session()
        async with agent("responses", run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
            talk.server_side = True  # type: ignore[attr-defined]
            said = await converse(talk, stream)
        assert [a.usage for a in said] == [tokens(t) for t in run.turns()]
        assert_exact(await run.prove(), calls=10)


@both_clients
async def test_an_unknown_previous_reply_is_named(tmp_path: Path, asynchronous: bool) -> None:
    async with wire(tmp_path, SCRIPT) as run:
        access = await run.session()
        async with agent("responses", run.gateway.url, access.secret, asynchronous=asynchronous) as talk:
            talk.user("x")
            talk.previous = "resp_unknown"  # type: ignore[attr-defined]
            with pytest.raises(talk.kind("bad_request"), match="unknown"):
                await talk.ask(stream=False)
