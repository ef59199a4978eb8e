"""The real `openai` package reads our replies, streams and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from contract.chat_kit import said
from tugline.core.errors import ContextOverflow, EngineError, Forbidden, Overloaded, TuglineError, Unauthorized
from tugline.core.items import Assistant
from tugline.dialects import ChatDialect
from tugline.testing.dialect_suite import ASSISTANTS, WITH_USAGE, pending_of, reply_of

openai = pytest.importorskip("openai")
httpx = pytest.importorskip("httpx")

DIALECT = ChatDialect()
JSON = {"content-type": "application/json"}


PENDING = pending_of(reply_of(ASSISTANTS[0], WITH_USAGE))


def client(respond: Any) -> Any:
    return openai.OpenAI(
        api_key="k",
        base_url="http://gateway/v1",
        max_retries=0,
        http_client=httpx.Client(transport=httpx.MockTransport(respond)),
    )


def stream_of(assistant: Assistant, size: int) -> Iterator[bytes]:
    """Keep-alives first, then the stream cut into pieces of `size` bytes, as sockets do."""
    reply = reply_of(assistant, WITH_USAGE)
    parts, terminal = DIALECT.stream(reply, 2)
    whole = DIALECT.keepalive(pending_of(reply), 0) * 2 + b"".join(parts) + terminal
    for start in range(0, len(whole), size):
        yield whole[start : start + size]


@pytest.mark.parametrize("assistant", ASSISTANTS, ids=range(len(ASSISTANTS)))
def test_whole_and_streamed(assistant: Assistant) -> None:
    def respond(request: Any) -> Any:
        decoded = DIALECT.decode(request.content, {})
        if decoded.options.stream:
            headers = {"content-type": DIALECT.content_type_stream}
            return httpx.Response(200, headers=headers, stream=Pieces(stream_of(assistant, 997)))
        return httpx.Response(200, headers=JSON, content=DIALECT.encode(reply_of(assistant)))

    ask: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with client(respond) as chat:
        whole = chat.chat.completions.create(**ask)
        assert said(whole.choices[0].message.model_dump()) == assistant
        assert whole.usage.prompt_tokens_details.cached_tokens == 900
        with chat.chat.completions.stream(**ask) as stream:
            final = stream.get_final_completion()
    message = final.choices[0].message.model_dump()
    assert final.choices[0].finish_reason == ("tool_calls" if assistant.calls else "stop")
    assert final.usage.completion_tokens_details.reasoning_tokens == 7
    message["reasoning_content"] = message.get("reasoning_content")
    assert said(message) == assistant


class Pieces(httpx.SyncByteStream):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces


@pytest.mark.parametrize(
    ("err", "kind", "code"),
    [
        (ContextOverflow(9, 8), openai.BadRequestError, "context_length_exceeded"),
        (Unauthorized("x"), openai.AuthenticationError, "invalid_api_key"),
        (Forbidden("x"), openai.PermissionDeniedError, "session_ended"),
        (Overloaded("x"), openai.RateLimitError, "rate_limit_exceeded"),
        (EngineError("x"), openai.InternalServerError, "engine_error"),
    ],
)
def test_errors(err: TuglineError, kind: type[Exception], code: str) -> None:
    def respond(_: Any) -> Any:
        status, headers, body = DIALECT.error(err)
        return httpx.Response(status, headers=headers, content=body)

    with client(respond) as chat, pytest.raises(kind) as caught:
        chat.chat.completions.create(model="m", messages=[])
    assert caught.value.code == code  # type: ignore[attr-defined]


def test_error_inside_a_stream() -> None:
    def respond(_: Any) -> Any:
        body = DIALECT.keepalive(PENDING, 0) + DIALECT.stream_error(EngineError("the engine is gone"), PENDING, 1)
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)

    with client(respond) as chat, pytest.raises(openai.APIError, match="the engine is gone"):
        list(chat.chat.completions.create(model="m", messages=[], stream=True))


def test_model_list() -> None:
    def respond(_: Any) -> Any:
        return httpx.Response(200, headers=JSON, content=DIALECT.models("policy", 4096))

    with client(respond) as chat:
        assert [m.id for m in chat.models.list()] == ["policy"]
