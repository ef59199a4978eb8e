"""The real `google-genai` package reads our replies, streams and errors, and what it echoes is what we said."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from contract.gemini_kit import WRAPPER, is_object
from tugline.core.errors import (
    BadRequest,
    Conflict,
    ContextOverflow,
    EngineError,
    Forbidden,
    NotFound,
    Overloaded,
    StoreError,
    TooLarge,
    TuglineError,
    Unauthorized,
    Unsupported,
)
from tugline.core.items import Assistant, Reply, ToolCall, UserText
from tugline.dialects import GeminiDialect
from tugline.testing.dialect_suite import ASSISTANTS, pending_of, reply_of

genai = pytest.importorskip("google.genai")
httpx = pytest.importorskip("httpx")
types, errors = genai.types, genai.errors
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the SDK's own

DIALECT = GeminiDialect()
JSON = {"content-type": "application/json"}
TWO = Assistant("Both.", "Hm. ", (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "f", '{"x": 1, }')))


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in pieces of so many bytes, as sockets give it."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._data), self._size):
            yield self._data[start : start + self._size]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def client(respond: Any) -> Any:
    transport = httpx.MockTransport(respond)
    options = types.HttpOptions(
        base_url="http://gateway",
        httpx_client=httpx.Client(transport=transport),
        httpx_async_client=httpx.AsyncClient(transport=transport),
    )
    return genai.Client(api_key="k", vertexai=False, http_options=options)


def streamed(reply: Reply, beats: int = 2) -> bytes:
    """Keep-alives first, as while the engine works, and one behind."""
    parts, terminal = DIALECT.stream(reply, beats)
    beat = DIALECT.keepalive(pending_of(reply), 0)
    return beat * beats + b"".join(parts) + terminal


def answering(reply: Reply, size: int = 997, seen: list[bytes] | None = None) -> Any:
    def respond(request: Any) -> Any:
        assert DIALECT.credential(request.headers, {}) == "k" and DIALECT.claims(request.headers)
        if seen is not None:
            seen.append(request.content)
        DIALECT.decode(request.content, {"model": "m"})
        if request.url.path.endswith(":streamGenerateContent"):
            assert request.url.params["alt"] == "sse"
            headers = {"content-type": DIALECT.content_type_stream}
            return httpx.Response(200, headers=headers, stream=Pieces(streamed(reply), size))
        return httpx.Response(200, headers=JSON, content=DIALECT.encode(reply))

    return respond


def meant(parts: list[Any]) -> tuple[str, str, list[tuple[str, str, Any]]]:
    """Text, thoughts, calls, as an agent takes them from the SDK's parts."""
    return (
        "".join(p.text for p in parts if p.text and not p.thought),
        "".join(p.text for p in parts if p.text and p.thought),
        [(c.id, c.name, c.args) for p in parts if (c := p.function_call)],
    )


def said_by(said: Assistant) -> tuple[str, str, list[tuple[str, str, Any]]]:
    calls = [
        (c.id, c.name, json.loads(c.arguments) if is_object(c.arguments) else {WRAPPER: c.arguments})
        for c in said.calls
    ]
    return said.text or "", said.reasoning or "", calls


def check_end(response: Any) -> None:
    usage = response.usage_metadata
    assert response.candidates[0].finish_reason == types.FinishReason.STOP
    assert (usage.prompt_token_count, usage.cached_content_token_count) == (1000, 900)
    assert (usage.candidates_token_count, usage.thoughts_token_count, usage.total_token_count) == (43, 7, 1050)
    assert (response.model_version, response.response_id) == ("policy", "0123abc")


@pytest.mark.parametrize("said", [*ASSISTANTS, TWO], ids=range(len(ASSISTANTS) + 1))
def test_whole(said: Assistant) -> None:
    response = client(answering(reply_of(said))).models.generate_content(model="m", contents="hi")
    assert meant(response.candidates[0].content.parts) == said_by(said)
    check_end(response)


@pytest.mark.parametrize("size", [1, 997, 1 << 20])
@pytest.mark.parametrize("said", [*ASSISTANTS, TWO], ids=range(len(ASSISTANTS) + 1))
def test_streamed(said: Assistant, size: int) -> None:
    if size == 1 and len(said.text or "") > 1000:
        size = 13
    chunks = list(client(answering(reply_of(said), size)).models.generate_content_stream(model="m", contents="hi"))
    assert meant([p for c in chunks for p in c.candidates[0].content.parts]) == said_by(said)
    assert [c.candidates[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all(c.usage_metadata is None for c in chunks[:-1])
    check_end(chunks[-1])


@pytest.mark.parametrize("said", [*ASSISTANTS, TWO], ids=range(len(ASSISTANTS) + 1))
async def test_streamed_asynchronously(said: Assistant) -> None:
    stream = await client(answering(reply_of(said))).aio.models.generate_content_stream(model="m", contents="hi")
    chunks = [c async for c in stream]
    assert meant([p for c in chunks for p in c.candidates[0].content.parts]) == said_by(said)
    check_end(chunks[-1])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("said", [*ASSISTANTS, TWO], ids=range(len(ASSISTANTS) + 1))
def test_chat_sessions_echo_what_was_said(said: Assistant, stream: bool) -> None:
    """A streamed turn is kept as one content per chunk; it is one turn all the same."""
    seen: list[bytes] = []
    off = types.GenerateContentConfig(automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True))
    chat = client(answering(reply_of(said), seen=seen)).chats.create(model="m", config=off)
    for text in ("one", "two"):
        if stream:
            list(chat.send_message_stream(text))
        else:
            chat.send_message(text)
    request = DIALECT.decode(seen[-1], {"model": "m"})
    one, echo, two = request.items
    assert (one, two) == (UserText("one"), UserText("two"))
    assert isinstance(echo, Assistant)
    assert (echo.text, echo.reasoning) == (said.text, said.reasoning)
    assert [(c.id, c.name) for c in echo.calls] == [(c.id, c.name) for c in said.calls]
    assert said_by(echo) == said_by(said)
    assert "contents[].parts[].thoughtSignature" not in request.ignored, "our own signature, in the SDK's alphabet"


def test_python_functions_as_tools() -> None:
    """The SDK calls them itself and answers {"result": value}."""

    def look(path: str) -> str:
        """Look at a path.

        Args:
            path: which.
        """
        return f"at {path}"

    seen: list[bytes] = []
    calling = reply_of(Assistant(calls=(ToolCall("call_1", "look", '{"path":"x"}'),)))
    done = reply_of(Assistant("Done."))

    def respond(request: Any) -> Any:
        return answering(done if seen else calling, seen=seen)(request)

    config = types.GenerateContentConfig(tools=[look], max_output_tokens=9, temperature=0.5)
    response = client(respond).models.generate_content(model="m", contents="go", config=config)
    assert response.text == "Done."
    request = DIALECT.decode(seen[-1], {"model": "m"})
    assert request.items[1] == calling.assistant
    assert (request.items[2].call_id, request.items[2].text) == ("call_1", "at x")
    assert request.options.max_tokens == 9 and request.options.temperature == 0.5
    spec = json.loads(request.head.tools[0].spec)["function"]
    assert spec["name"] == "look" and spec["parameters"]["properties"]["path"]["type"] == "string"


ERRORS: list[tuple[TuglineError, Any, int, str]] = [
    (BadRequest("x", path="contents[0].role"), errors.ClientError, 400, "INVALID_ARGUMENT"),
    (Unsupported("x"), errors.ClientError, 400, "INVALID_ARGUMENT"),
    (ContextOverflow(70_123, 65_536), errors.ClientError, 400, "INVALID_ARGUMENT"),
    (Unauthorized("x"), errors.ClientError, 401, "UNAUTHENTICATED"),
    (Forbidden("x"), errors.ClientError, 403, "PERMISSION_DENIED"),
    (NotFound("x"), errors.ClientError, 404, "NOT_FOUND"),
    (Conflict("x"), errors.ClientError, 409, "ABORTED"),
    (TooLarge("x"), errors.ClientError, 413, "INVALID_ARGUMENT"),
    (Overloaded("x", retry_after=2.5), errors.ClientError, 429, "RESOURCE_EXHAUSTED"),
    (EngineError("x"), errors.ServerError, 502, "INTERNAL"),
    (StoreError("x"), errors.ServerError, 503, "UNAVAILABLE"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("err", "kind", "code", "status"), ERRORS, ids=[type(e[0]).__name__ for e in ERRORS])
def test_errors(err: TuglineError, kind: Any, code: int, status: str, stream: bool) -> None:
    def respond(_: Any) -> Any:
        answer, headers, body = DIALECT.error(err)
        return httpx.Response(answer, headers=headers, content=body)

    models = client(respond).models
    with pytest.raises(kind) as caught:
        if stream:
            list(models.generate_content_stream(model="m", contents="hi"))
        else:
            models.generate_content(model="m", contents="hi")
    assert (caught.value.code, caught.value.status) == (code, status)
    details = {d["@type"].rpartition(".")[2]: d for d in caught.value.details["error"]["details"]}
    assert details["ErrorInfo"]["reason"] == err.detail_code.upper()
    assert details.get("RetryInfo", {}).get("retryDelay") == ("3s" if code == 429 else None)
    assert ("BadRequest" in details) == (getattr(err, "path", "") != "")


def test_a_context_error_has_the_real_apis_words() -> None:
    message = json.loads(DIALECT.error(ContextOverflow(70_123, 65_536))[2])["error"]["message"]
    assert message == "The input token count (70123) exceeds the maximum number of tokens allowed (65536)."


@pytest.mark.parametrize("asynchronous", [False, True])
def test_error_inside_a_stream(asynchronous: bool) -> None:
    pending = pending_of(reply_of(Assistant("a")))
    body = DIALECT.keepalive(pending, 0) + DIALECT.stream_error(EngineError("the engine is gone"), pending, 1)
    made = client(lambda _: httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body))

    async def read() -> None:
        async for _ in await made.aio.models.generate_content_stream(model="m", contents="hi"):
            raise AssertionError("nothing was said")

    with pytest.raises(errors.ServerError, match="the engine is gone"):
        if asynchronous:
            asyncio.run(read())
        else:
            list(made.models.generate_content_stream(model="m", contents="hi"))


def test_models_and_counts() -> None:
    def respond(request: Any) -> Any:
        if request.url.path.endswith(":countTokens"):
            DIALECT.decode(request.content, {"model": "m"})
            body = DIALECT.counted(12)
        elif request.url.path.endswith("/models"):
            body = DIALECT.models("policy", 4096)
        else:
            body = DIALECT.model(request.url.path.rpartition("/")[2], 4096)
        return httpx.Response(200, headers=JSON, content=body)

    models = client(respond).models
    assert models.count_tokens(model="m", contents="hi").total_tokens == 12
    assert [(m.name, m.input_token_limit) for m in models.list()] == [("models/policy", 4096)]
    asked = models.get(model="gemini-9")
    assert (asked.name, asked.supported_actions) == ("models/gemini-9", ["generateContent", "countTokens"])


def test_a_structured_reply_is_asked_for_as_a_json_schema() -> None:
    seen: list[bytes] = []
    schema = types.Schema(
        type="OBJECT",
        properties={"n": types.Schema(type="INTEGER", nullable=True), "type": types.Schema(type="STRING")},
        required=["n"],
    )
    config = types.GenerateContentConfig(response_mime_type="application/json", response_schema=schema)
    client(answering(reply_of(Assistant("{}")), seen=seen)).models.generate_content(
        model="m", contents="x", config=config
    )
    output = DIALECT.decode(seen[0], {}).options.output
    assert output is not None and json.loads(output) == {
        "type": "object",
        "properties": {"n": {"type": ["integer", "null"]}, "type": {"type": "string"}},
        "required": ["n"],
    }
