"""The real `anthropic` package reads our replies, streams and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from contract.anthropic_kit import WRAPPER, events
from tugline.core.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    Forbidden,
    NotFound,
    Overloaded,
    StoreError,
    TooLarge,
    TuglineError,
    Unauthorized,
)
from tugline.core.items import Assistant, Reply, ToolCall, UserText
from tugline.dialects import AnthropicDialect
from tugline.testing.dialect_suite import ASSISTANTS, pending_of, reply_of

anthropic = pytest.importorskip("anthropic")
transport = pytest.importorskip("httpx2")

DIALECT = AnthropicDialect()
JSON = {"content-type": "application/json"}
ASK: dict[str, Any] = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
BAD = Assistant(calls=(ToolCall("call_1", "bash", '{"command": "a", }'),))


def client(respond: Any) -> Any:
    mock = transport.Client(transport=transport.MockTransport(respond))
    return anthropic.Anthropic(api_key="k", base_url="http://gateway", max_retries=0, http_client=mock)


class Pieces(transport.SyncByteStream):
    def __init__(self, data: bytes, size: int) -> None:
        self._data, self._size = data, size

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._data), self._size):
            yield self._data[start : start + self._size]


def streamed(reply: Reply, beats: int = 2) -> bytes:
    """Keep-alives first, as while the engine works."""
    parts, terminal = DIALECT.stream(reply, beats)
    return b"".join([*(DIALECT.keepalive(pending_of(reply), n) for n in range(beats)), *parts, terminal])


def answering(reply: Reply, size: int = 997) -> Any:
    def respond(request: Any) -> Any:
        assert DIALECT.credential(request.headers, {}) == "k" and DIALECT.claims(request.headers)
        if DIALECT.decode(request.content, {}).options.stream:
            headers = {"content-type": DIALECT.content_type_stream}
            return transport.Response(200, headers=headers, stream=Pieces(streamed(reply), size))
        return transport.Response(200, headers=JSON, content=DIALECT.encode(reply))

    return respond


def meant(message: Any) -> tuple[str, str, list[tuple[str, str, Any]]]:
    """Text, thinking, calls, as an agent takes them from the SDK's message."""
    assert [b.type for b in message.content] == sorted(
        [b.type for b in message.content], key=["thinking", "text", "tool_use"].index
    )
    return (
        "".join(b.text for b in message.content if b.type == "text"),
        "".join(b.thinking for b in message.content if b.type == "thinking"),
        [(b.id, b.name, b.input) for b in message.content if b.type == "tool_use"],
    )


@pytest.mark.parametrize("said", ASSISTANTS, ids=range(len(ASSISTANTS)))
def test_whole_and_streamed(said: Assistant) -> None:
    reply = reply_of(said)
    expected = (said.text or "", said.reasoning or "", [(c.id, c.name, json.loads(c.arguments)) for c in said.calls])
    with client(answering(reply)) as api:
        whole = api.messages.create(**ASK)
        with api.messages.stream(**ASK) as stream:
            final = stream.get_final_message()
        beta = api.beta.messages.create(**ASK, betas=["unknown-2030-01-01"])
    for message in (whole, final, beta):
        assert meant(message) == expected
        assert (message.id, message.model, message.role) == ("msg_0123abc", "policy", "assistant")
        assert message.stop_reason == ("tool_use" if said.calls else "end_turn")
        usage = message.usage
        assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == 1000
        assert (usage.cache_read_input_tokens, usage.output_tokens) == (900, 50)
        assert usage.output_tokens_details.thinking_tokens == 7
    history = [*ASK["messages"], {"role": "assistant", "content": final.content}, {"role": "user", "content": "b"}]
    sent: list[bytes] = []

    def keep(request: Any) -> Any:
        sent.append(request.content)
        return transport.Response(200, headers=JSON, content=DIALECT.encode(reply))

    with client(keep) as api:
        api.messages.create(**ASK | {"messages": history})
    request = DIALECT.decode(sent[0], {})
    ours = DIALECT.echo(reply)
    echoed = request.items[1]
    assert isinstance(echoed, Assistant)
    assert (echoed.text, echoed.reasoning) == (ours.text, ours.reasoning)
    assert [json.loads(c.arguments) for c in echoed.calls] == [json.loads(c.arguments) for c in ours.calls]
    assert not request.ignored, "nothing that the SDK echoes of our own reply is without effect"


def test_arguments_that_are_no_json_reach_the_agent_and_come_back() -> None:
    with client(answering(reply_of(BAD))) as api:
        with api.messages.stream(**ASK) as stream:
            final = stream.get_final_message()
        whole = api.messages.create(**ASK)
    for message in (final, whole):
        assert message.content[0].input == {WRAPPER: {"raw": '{"command": "a", }', "len": 18}}
    body = {**ASK, "messages": [*ASK["messages"], {"role": "assistant", "content": [final.content[0].to_dict()]}]}
    body["messages"].append({"role": "user", "content": "b"})
    assert DIALECT.decode(json.dumps(body).encode(), {}).items == (UserText("hi"), BAD, UserText("b"))


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_stream_cut_anywhere_into_pieces(size: int) -> None:
    said = ASSISTANTS[6]
    with client(answering(reply_of(said), size)) as api, api.messages.stream(**ASK) as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_message().content[-1].text == said.text
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [("stop", None, "end_turn"), ("stop", "END", "stop_sequence"), ("length", None, "max_tokens")],
)
def test_why_it_stopped(finish: str, stop: str | None, reason: str) -> None:
    base = reply_of(ASSISTANTS[0], finish=finish)
    reply = Reply(base.id, base.model, 1, base.assistant, finish, base.usage, base.request, stop)
    with client(answering(reply)) as api:
        with api.messages.stream(**ASK) as stream:
            final = stream.get_final_message()
        whole = api.messages.create(**ASK)
    assert {(m.stop_reason, m.stop_sequence) for m in (final, whole)} == {(reason, stop)}


@pytest.mark.parametrize(
    ("err", "kind", "name"),
    [
        (BadRequest("x", path="messages[0].content"), "BadRequestError", "invalid_request_error"),
        (ContextOverflow(9, 8), "BadRequestError", "invalid_request_error"),
        (Unauthorized("x"), "AuthenticationError", "authentication_error"),
        (Forbidden("x"), "PermissionDeniedError", "permission_error"),
        (NotFound("x"), "NotFoundError", "not_found_error"),
        (TooLarge("x"), "ContentTooLargeError", "request_too_large"),
        (Overloaded("x"), "RateLimitError", "rate_limit_error"),
        (EngineError("x"), "InternalServerError", "api_error"),
        (StoreError("x"), "InternalServerError", "api_error"),
    ],
)
def test_errors(err: TuglineError, kind: str, name: str) -> None:
    def respond(_: Any) -> Any:
        status, headers, body = DIALECT.error(err)
        return transport.Response(status, headers=headers, content=body)

    expected = getattr(anthropic, kind, anthropic.APIStatusError)
    with client(respond) as api:
        for ask in (api.messages.create, api.messages.count_tokens):
            fields = ASK if ask == api.messages.create else {k: ASK[k] for k in ("model", "messages")}
            with pytest.raises(expected) as caught:
                ask(**fields)
            assert caught.value.status_code == err.status
            assert caught.value.type == name


def test_a_busy_gateway_is_asked_again_when_it_said() -> None:
    waits: list[str] = []

    def respond(_: Any) -> Any:
        if waits:
            return transport.Response(200, headers=JSON, content=DIALECT.encode(reply_of(ASSISTANTS[0])))
        status, headers, body = DIALECT.error(Overloaded("x", retry_after=0.2))
        waits.append(headers["retry-after"])
        return transport.Response(status, headers={**headers, "retry-after-ms": "1"}, content=body)

    mock = transport.Client(transport=transport.MockTransport(respond))
    with anthropic.Anthropic(api_key="k", base_url="http://gateway", max_retries=1, http_client=mock) as api:
        assert api.messages.create(**ASK).content[0].text == "Done."
    assert waits == ["1"]


def test_error_inside_a_stream() -> None:
    pending = pending_of(reply_of(ASSISTANTS[0]))

    def respond(_: Any) -> Any:
        body = DIALECT.keepalive(pending, 0) + DIALECT.stream_error(EngineError("the engine is gone"), pending, 1)
        return transport.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    with client(respond) as api, pytest.raises(anthropic.APIStatusError, match="the engine is gone"):
        list(api.messages.create(**ASK, stream=True))
    ((name, data),) = events(DIALECT.stream_error(EngineError("x"), pending, 1))
    assert (name, json.loads(data)["error"]["type"]) == ("error", "api_error")


def test_model_list_and_one_model() -> None:
    def respond(request: Any) -> Any:
        path = request.url.path
        if path == "/v1/models":
            assert dict(request.url.params) == {"limit": "1000"}
            return transport.Response(200, headers=JSON, content=DIALECT.models("policy", 4096))
        return transport.Response(200, headers=JSON, content=DIALECT.model(path.rpartition("/")[2], 4096))

    with client(respond) as api:
        assert [(m.id, m.max_input_tokens) for m in api.models.list(limit=1000)] == [("policy", 4096)]
        one = api.models.retrieve("claude-x")
        assert (one.id, one.created_at.year) == ("claude-x", 1970)


def test_count() -> None:
    def respond(request: Any) -> Any:
        assert DIALECT.decode(request.content, {"call": "count"}).items == (UserText("hi"),)
        return transport.Response(200, headers=JSON, content=DIALECT.counted(77))

    with client(respond) as api:
        assert api.messages.count_tokens(model="m", messages=ASK["messages"]).input_tokens == 77
