"""The exact shape of what the Chat dialect answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from contract.chat_kit import events
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
    Unsupported,
)
from tugline.core.items import Assistant, Head, Options, Pending, Reply, Request, ToolCall, Usage, UserText
from tugline.dialects import DIALECTS, ChatDialect, dialect_named

SAID = Assistant("Hello", "Think", (ToolCall("call_1", "bash", '{"a" : 1}'),))
ASKED = Request("gpt-x", Head(), (UserText("a"),))
REPLY = Reply("abc", "gpt-x", 1_700_000_000, SAID, "tool_calls", Usage(100, 20, 90, 5), ASKED)
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 90},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"a" : 1}'}}


def test_whole_reply() -> None:
    assert json.loads(ChatDialect().encode(REPLY)) == {
        "id": "chatcmpl-abc",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "gpt-x",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hello",
                    "reasoning_content": "Think",
                    "tool_calls": [CALL],
                },
                "finish_reason": "tool_calls",
                "logprobs": None,
            }
        ],
        "usage": USAGE,
        "system_fingerprint": None,
    }


@pytest.mark.parametrize("nothing", [Assistant(), Assistant(text="", reasoning="", calls=())])
def test_content_is_null_when_there_is_none(nothing: Assistant) -> None:
    reply = Reply("abc", "m", 1, nothing, "length", Usage(1, 1), ASKED)
    (choice,) = json.loads(ChatDialect().encode(reply))["choices"]
    assert choice["message"] == {"role": "assistant", "content": None}
    assert choice["finish_reason"] == "length"


def chunks(usage: bool) -> list[dict[str, Any]]:
    asked = replace(ASKED, options=Options(stream=True, include_usage=usage))
    parts, terminal = ChatDialect().stream(replace(REPLY, request=asked))
    assert terminal == b"data: [DONE]\n\n"
    return [json.loads(e) for e in events(b"".join(parts))]


def test_stream_chunks() -> None:
    got = chunks(usage=True)
    assert [c["choices"][0]["delta"] for c in got[:-1]] == [
        {"role": "assistant"},
        {"reasoning_content": "Think"},
        {"content": "Hello"},
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "bash", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a" : 1}'}}]},
        {},
    ]
    assert [c["choices"][0]["finish_reason"] for c in got[:-1]] == [None] * 5 + ["tool_calls"]
    assert [c["usage"] for c in got] == [None] * 6 + [USAGE]
    assert got[-1]["choices"] == []
    assert {c["id"] for c in got} == {"chatcmpl-abc"}
    assert {c["object"] for c in got} == {"chat.completion.chunk"}


def test_usage_is_streamed_only_where_asked() -> None:
    assert not any("usage" in c for c in chunks(usage=False))
    assert all(c["choices"] for c in chunks(usage=False))


def test_long_texts_leave_in_few_pieces() -> None:
    reply = Reply("a", "m", 1, Assistant("x" * 100_000), "stop", Usage(1, 1), ASKED)
    parts, _ = ChatDialect().stream(reply)
    assert len(parts) == 4 + 2
    assert max(map(len, parts)) < 40_000


@pytest.mark.parametrize(
    ("err", "kind", "code", "param"),
    [
        (
            BadRequest("bad", path="messages[3].content"),
            "invalid_request_error",
            "invalid_request",
            "messages[3].content",
        ),
        (Unsupported("no", path="n"), "invalid_request_error", "unsupported", "n"),
        (ContextOverflow(70, 60), "invalid_request_error", "context_length_exceeded", None),
        (Unauthorized("x"), "authentication_error", "invalid_api_key", None),
        (Forbidden("x"), "permission_error", "session_ended", None),
        (Forbidden("x", code="budget_turns"), "permission_error", "budget_turns", None),
        (NotFound("x"), "invalid_request_error", "not_found", None),
        (TooLarge("x"), "invalid_request_error", "request_too_large", None),
        (Overloaded("x", retry_after=0.2), "rate_limit_error", "rate_limit_exceeded", None),
        (EngineError("x"), "server_error", "engine_error", None),
        (StoreError("x"), "server_error", "store_error", None),
        (TuglineError("x"), "server_error", "internal_error", None),
    ],
)
def test_errors(err: TuglineError, kind: str, code: str, param: str | None) -> None:
    status, headers, body = ChatDialect().error(err)
    shown = json.loads(body)["error"]
    assert (status, shown["type"], shown["code"], shown["param"]) == (err.status, kind, code, param)
    assert set(shown) == {"message", "type", "param", "code"}
    assert headers.get("retry-after") == ("1" if isinstance(err, Overloaded) else None)
    (streamed,) = events(ChatDialect().stream_error(err, Pending("abc", "m", 1, ASKED)))
    assert json.loads(streamed) == {"error": shown}


def test_context_error_in_the_words_that_clients_look_for() -> None:
    _, _, body = ChatDialect().error(ContextOverflow(70_123, 65_536))
    assert json.loads(body)["error"]["message"].startswith(
        "This model's maximum context length is 65536 tokens. However, your messages resulted in 70123 tokens."
    )


def test_retry_after_is_never_earlier_than_asked() -> None:
    assert ChatDialect().error(Overloaded("x", retry_after=2.1))[1]["retry-after"] == "3"


def test_a_failure_that_will_repeat_tells_the_client_so() -> None:
    assert ChatDialect().error(EngineError("x", retryable=False))[1]["x-should-retry"] == "false"
    assert "x-should-retry" not in ChatDialect().error(EngineError("x"))[1]


def test_dialects_are_found_by_name() -> None:
    assert DIALECTS[0].name == "chat", "it gives unknown paths their error shape"
    assert dialect_named("chat") is DIALECTS[0]
    with pytest.raises(NotFound, match="smoke signals"):
        dialect_named("smoke signals")
