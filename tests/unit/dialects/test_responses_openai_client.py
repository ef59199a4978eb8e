"""The real `openai` package reads our responses, streams, counts and errors, and sends back what it read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from contract.responses_kit import said
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
from tugline.core.items import Assistant, Pending, Reply, Request, ToolCall, UserText
from tugline.dialects.responses import ResponsesDialect
from tugline.testing.dialect_suite import ASSISTANTS, reply_of

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx")
from openai.types.responses import Response, ResponseStreamEvent  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402

DIALECT = ResponsesDialect()
JSON = {"content-type": "application/json"}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLS = [
    {"type": "function", "name": "bash", "description": "Runs.", "parameters": {"type": "object"}, "strict": False},
    {"type": "custom", "name": "patch", "description": "Edits.", "format": {"type": "text"}},
    {
        "type": "namespace",
        "name": "team",
        "description": "Helpers.",
        "tools": [{"type": "function", "name": "spawn", "parameters": {"type": "object"}, "strict": False}],
    },
]
ASK: dict[str, Any] = {
    "model": "m",
    "input": "hi",
    "instructions": "Be brief.",
    "tools": TOOLS,
    "temperature": 0.5,
    "max_output_tokens": 99,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
}


def client(respond: Callable[[Any], Any]) -> Any:
    return openai.OpenAI(
        api_key="k",
        base_url="http://gateway/v1",
        max_retries=0,
        http_client=httpx.Client(transport=httpx.MockTransport(respond)),
    )


class Pieces(httpx.SyncByteStream):
    """A body cut into pieces of `size` bytes, as sockets do."""

    def __init__(self, body: bytes, size: int = 997) -> None:
        self._body, self._size = body, size

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self._body), self._size):
            yield self._body[start : start + self._size]


def streamed(reply: Reply, beats: int) -> bytes:
    pending = Pending(reply.id, reply.model, reply.created, reply.request)
    parts, terminal = DIALECT.stream(reply, beats)
    return b"".join([*[DIALECT.keepalive(pending, n) for n in range(beats)], *parts, terminal])


def speaking(assistant: Assistant, beats: int = 0, finish: str | None = None) -> Callable[[Any], Any]:
    def respond(request: Any) -> Any:
        decoded = DIALECT.decode(request.content, {})
        reply = replace(reply_of(assistant, finish=finish), request=decoded)
        if decoded.options.stream:
            headers = {"content-type": DIALECT.content_type_stream}
            return httpx.Response(200, headers=headers, stream=Pieces(streamed(reply, beats)))
        return httpx.Response(200, headers=JSON, content=DIALECT.encode(reply))

    return respond


@pytest.mark.parametrize("beats", [0, 1, 4])
@pytest.mark.parametrize("assistant", ASSISTANTS, ids=range(len(ASSISTANTS)))
def test_whole_and_streamed(assistant: Assistant, beats: int) -> None:
    with client(speaking(assistant, beats)) as api:
        whole = api.responses.create(**ASK)
        with api.responses.stream(**ASK) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
    for response in (whole, final):
        assert said(response.model_dump()["output"]) == assistant
        assert response.output_text == (assistant.text or "")
        assert response.status == "completed" and response.error is None
        usage = response.usage
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (1000, 50, 1050)
        assert usage.input_tokens_details.cached_tokens == 900 and usage.output_tokens_details.reasoning_tokens == 7
        assert (response.instructions, response.temperature, response.max_output_tokens) == ("Be brief.", 0.5, 99)
        assert response.text.format.schema_ == {"type": "object"}
        assert [tool.type for tool in response.tools] == ["function", "custom", "namespace"]
    assert kinds.count("response.created") == 1 and kinds[-1] == "response.completed"
    assert kinds.count("response.in_progress") == max(1, beats)


@pytest.mark.parametrize("assistant", ASSISTANTS, ids=range(len(ASSISTANTS)))
@pytest.mark.parametrize("finish", [None, "length"])
def test_every_object_and_event_has_the_fields_of_its_official_type(assistant: Assistant, finish: str | None) -> None:
    """Validated strictly, where the client itself would take anything."""
    calls = (ToolCall("c1", "patch", '{"input":"*** a"}'), ToolCall("c2", "team__spawn", "{}"))
    decoded = DIALECT.decode(json.dumps({**ASK, "tool_choice": {"type": "custom", "name": "patch"}}).encode(), {})
    for spoken in (assistant, replace(assistant, calls=assistant.calls + calls)):
        reply = replace(reply_of(spoken, finish=finish), request=decoded)
        response = Response.model_validate(json.loads(DIALECT.encode(reply)))
        assert response.status == ("incomplete" if finish else "completed")
        assert response.output[-1].type == "custom_tool_call" or response.output[-1].status != "in_progress"
        for line in streamed(reply, 2).split(b"\n"):
            if line.startswith(b"data: "):
                event = EVENTS.validate_json(line[6:])
                assert type(event).model_fields["type"].annotation.__args__ == (event.type,)


def test_custom_and_namespaced_calls_and_their_echo() -> None:
    assistant = Assistant(
        calls=(
            ToolCall("c1", "patch", '{"input" : "*** Begin\\n\\u00e9"}'),
            ToolCall("c2", "patch", "not json"),
            ToolCall("c3", "team__spawn", '{"n": 1.0}'),
        )
    )
    with client(speaking(assistant)) as api, api.responses.stream(**ASK) as stream:
        output = stream.get_final_response().output
    assert [(i.type, i.name, i.namespace) for i in output] == [
        ("custom_tool_call", "patch", None),
        ("custom_tool_call", "patch", None),
        ("function_call", "spawn", "team"),
    ]
    assert [i.input for i in output[:2]] == ["*** Begin\né", "not json"]
    echo = [UserText("hi"), DIALECT.echo(replace(reply_of(assistant), request=DIALECT.decode(_asked(), {})))]
    sent: list[Request] = []

    def respond(request: Any) -> Any:
        sent.append(DIALECT.decode(request.content, {}))
        return httpx.Response(200, headers=JSON, content=DIALECT.encode(reply_of(Assistant("ok"))))

    with client(respond) as api:
        api.responses.create(model="m", input=[{"role": "user", "content": "hi"}, *output], tools=TOOLS)
    assert list(sent[0].items) == echo


def _asked() -> bytes:
    return json.dumps(ASK).encode()


@pytest.mark.parametrize("assistant", ASSISTANTS, ids=range(len(ASSISTANTS)))
def test_output_sent_back_as_input_is_the_echo(assistant: Assistant) -> None:
    """What the official client makes of a reply, handed back the way its documentation says."""
    sent: list[Request] = []

    def respond(request: Any) -> Any:
        sent.append(DIALECT.decode(request.content, {}))
        return httpx.Response(200, headers=JSON, content=DIALECT.encode(reply_of(assistant)))

    with client(respond) as api:
        first = api.responses.create(model="m", input="a")
        api.responses.create(model="m", input=[{"role": "user", "content": "a"}, *first.output])
        api.responses.create(model="m", input="go on", previous_response_id=first.id)
    assert sent[1].items == (UserText("a"), DIALECT.echo(reply_of(assistant)))
    assert sent[1].ignored == ()
    assert sent[2].previous == reply_of(assistant).id and sent[2].items == (UserText("go on"),)


def test_a_cut_reply() -> None:
    with client(speaking(Assistant("half"), 2, "length")) as api:
        whole = api.responses.create(**ASK)
        events = list(api.responses.create(**ASK, stream=True))
    assert events[-1].type == "response.incomplete"
    for response in (whole, events[-1].response):
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert response.output[-1].status == "incomplete"


ERRORS = [
    (BadRequest("x", path="input[3].content"), openai.BadRequestError, "invalid_request"),
    (ContextOverflow(9, 8), openai.BadRequestError, "context_length_exceeded"),
    (Unauthorized("x"), openai.AuthenticationError, "invalid_api_key"),
    (Forbidden("x"), openai.PermissionDeniedError, "session_ended"),
    (NotFound("x"), openai.NotFoundError, "not_found"),
    (TooLarge("x"), openai.APIStatusError, "request_too_large"),
    (Overloaded("x"), openai.RateLimitError, "rate_limit_exceeded"),
    (EngineError("x"), openai.InternalServerError, "engine_error"),
    (StoreError("x"), openai.InternalServerError, "store_error"),
]


@pytest.mark.parametrize(("err", "kind", "code"), ERRORS, ids=[type(e).__name__ for e, _, _ in ERRORS])
def test_errors(err: TuglineError, kind: type[Exception], code: str) -> None:
    def respond(_: Any) -> Any:
        status, headers, body = DIALECT.error(err)
        return httpx.Response(status, headers=headers, content=body)

    with client(respond) as api, pytest.raises(kind) as caught:
        api.responses.create(model="m", input="hi")
    assert caught.value.code == code  # type: ignore[attr-defined]
    if isinstance(err, BadRequest) and err.path:
        assert caught.value.param == err.path  # type: ignore[attr-defined]


@pytest.mark.parametrize("beats", [0, 1, 3])
@pytest.mark.parametrize("err", [ContextOverflow(9, 8), EngineError("gone", retryable=False), Overloaded("busy")])
def test_an_error_inside_a_stream_is_raised(err: TuglineError, beats: int) -> None:
    reply = reply_of(ASSISTANTS[0])
    pending = Pending(reply.id, reply.model, reply.created, reply.request)
    stream = b"".join([DIALECT.keepalive(pending, n) for n in range(beats)])
    stream += DIALECT.stream_error(err, pending, beats)
    numbers = [json.loads(line[6:])["sequence_number"] for line in stream.split(b"\n") if line.startswith(b"data: ")]
    assert numbers == list(range(len(numbers)))

    def respond(_: Any) -> Any:
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=Pieces(stream))

    with client(respond) as api:
        with pytest.raises(openai.APIError) as caught:
            list(api.responses.create(model="m", input="hi", stream=True))
        assert caught.value.code == json.loads(DIALECT.error(err)[2])["error"]["code"]
        with pytest.raises(openai.APIError), api.responses.stream(model="m", input="hi") as events:
            events.get_final_response()


def test_a_stream_without_its_end_is_noticed() -> None:
    parts, _ = DIALECT.stream(reply_of(ASSISTANTS[0]))

    def respond(_: Any) -> Any:
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=Pieces(b"".join(parts)))

    with client(respond) as api, pytest.raises(RuntimeError, match=r"response\.completed"):  # noqa: SIM117
        with api.responses.stream(model="m", input="hi") as events:
            events.get_final_response()


def test_count_and_models() -> None:
    counting = next(r for r in DIALECT.routes if r.kind == "count")
    sent: list[Any] = []

    def respond(request: Any) -> Any:
        if request.url.path == "/v1/models":
            return httpx.Response(200, headers=JSON, content=DIALECT.models("policy", 4096))
        assert (request.method, request.url.path) == (counting.method, counting.path)
        sent.append(DIALECT.decode(request.content, dict(counting.params)))
        return httpx.Response(200, headers=JSON, content=DIALECT.counted(1234))

    with client(respond) as api:
        assert api.responses.input_tokens.count(input="hi", tools=TOOLS).input_tokens == 1234
        assert (
            api.responses.input_tokens.count(model="m", input=[{"role": "user", "content": "a"}]).input_tokens == 1234
        )
        assert [m.id for m in api.models.list()] == ["policy"]
    assert [r.items for r in sent] == [(UserText("hi"),), (UserText("a"),)]


CALLS: list[Callable[[Any], Any]] = [
    lambda r: r.compact(model="m", input="a"),
    lambda r: r.retrieve("resp_1"),
    lambda r: r.delete("resp_1"),
    lambda r: r.cancel("resp_1"),
    lambda r: list(r.input_items.list("resp_1")),
]


@pytest.mark.parametrize("call", CALLS, ids=["compact", "retrieve", "delete", "cancel", "input_items"])
def test_what_is_not_served_says_why(call: Callable[[Any], Any]) -> None:
    refused = {(r.method, r.path.replace("{model}", "resp_1")) for r in DIALECT.routes if r.kind == "refuse"}

    def respond(request: Any) -> Any:
        assert (request.method, request.url.path) in refused
        status, headers, body = DIALECT.error(DIALECT.refusal(request.url.path))
        return httpx.Response(status, headers=headers, content=body)

    with client(respond) as api, pytest.raises(openai.NotFoundError, match=r"here|cannot be"):
        call(api.responses)
