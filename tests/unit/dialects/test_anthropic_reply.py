"""The exact shape of what the Anthropic dialect answers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from contract.anthropic_kit import events
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
from tugline.core.items import Assistant, Head, Pending, Reply, Request, ToolCall, Usage, UserText
from tugline.dialects import DIALECTS, AnthropicDialect, dialect_named
from tugline.dialects.anthropic_blocks import input_json, is_object, signature

DIALECT = AnthropicDialect()
SAID = Assistant("Hello", "Think", (ToolCall("call_1", "bash", '{"a" : 1.0}'),))
ASKED = Request("claude-x", Head(), (UserText("a"),))
REPLY = Reply("abc", "claude-x", 1_700_000_000, SAID, "tool_calls", Usage(100, 20, 90, 5), ASKED)
USAGE = {
    "input_tokens": 10,
    "cache_read_input_tokens": 90,
    "cache_creation_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
    "output_tokens": 20,
    "output_tokens_details": {"thinking_tokens": 5},
    "server_tool_use": None,
    "service_tier": "standard",
}
FRAME = {"id": "msg_abc", "type": "message", "role": "assistant", "model": "claude-x"}


def test_whole_reply() -> None:
    assert json.loads(DIALECT.encode(REPLY)) == {
        **FRAME,
        "content": [
            {"type": "thinking", "thinking": "Think", "signature": signature("Think")},
            {"type": "text", "text": "Hello", "citations": None},
            {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"a": 1.0}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": USAGE,
    }


@pytest.mark.parametrize("nothing", [Assistant(), Assistant(text="", reasoning="", calls=())])
def test_an_empty_reply_has_no_blocks(nothing: Assistant) -> None:
    reply = replace(REPLY, assistant=nothing, finish="length")
    shown = json.loads(DIALECT.encode(reply))
    assert (shown["content"], shown["stop_reason"]) == ([], "max_tokens")
    parts, _ = DIALECT.stream(reply)
    assert [name for name, _ in events(b"".join(parts))] == ["message_start", "ping", "message_delta"]


def test_stream_events() -> None:
    parts, terminal = DIALECT.stream(REPLY)
    got = [(name, json.loads(data)) for name, data in events(b"".join(parts) + terminal)]
    assert all(data["type"] == name for name, data in got)
    start = {**FRAME, "content": [], "stop_reason": None, "stop_sequence": None}
    details = {"output_tokens": 1, "output_tokens_details": {"thinking_tokens": 0}}
    assert got[0][1]["message"] == {**start, "usage": {**USAGE, **details}}

    def block(index: int, opening: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"type": "content_block_start", "index": index, "content_block": opening},
            *({"type": "content_block_delta", "index": index, "delta": d} for d in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    assert [data for _, data in got[1:-2]] == [
        {"type": "ping"},
        *block(
            0,
            {"type": "thinking", "thinking": "", "signature": ""},
            {"type": "thinking_delta", "thinking": "Think"},
            {"type": "signature_delta", "signature": signature("Think")},
        ),
        *block(1, {"type": "text", "text": "", "citations": None}, {"type": "text_delta", "text": "Hello"}),
        *block(
            2,
            {"type": "tool_use", "id": "call_1", "name": "bash", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"a" : 1.0}'},
        ),
    ]
    totals = {k: v for k, v in USAGE.items() if k not in ("cache_creation", "service_tier")}
    assert got[-2][1] == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": totals,
    }
    assert terminal == b'event: message_stop\ndata: {"type": "message_stop"}\n\n'


def test_long_texts_leave_in_few_pieces() -> None:
    said = Assistant("x" * 100_000, "y" * 100_000, (ToolCall("c", "f", f'{{"a":"{"z" * 100_000}"}}'),))
    parts, _ = DIALECT.stream(replace(REPLY, assistant=said))
    assert len(parts) == 3 + (2 + 4) + (2 + 4 + 1) + (2 + 4)
    assert max(map(len, parts)) < 40_000


def test_signatures_depend_on_the_text_alone() -> None:
    assert signature("a") == signature("a") != signature("b")
    assert signature("a").startswith("tug1") and signature("a").isascii()


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [
        ("stop", None, "end_turn"),
        ("stop", "\n\nEND", "stop_sequence"),
        ("tool_calls", None, "tool_use"),
        ("length", None, "max_tokens"),
    ],
)
def test_stop_reasons(finish: str, stop: str | None, reason: str) -> None:
    shown = json.loads(DIALECT.encode(replace(REPLY, finish=finish, stop=stop)))
    assert (shown["stop_reason"], shown["stop_sequence"]) == (reason, stop)


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ('{"a" : 1.0}', '{"a" : 1.0}'),
        (' {"a":1}\n', ' {"a":1}\n'),
        ("", "{}"),
        (" \n", "{}"),
        ("[1]", '{"__unparsedToolInput":{"raw":"[1]","len":3}}'),
        ("null", '{"__unparsedToolInput":{"raw":"null","len":4}}'),
        ('{"a": "\\ud800"}', '{"__unparsedToolInput":{"raw":"{\\"a\\": \\"\\\\ud800\\"}","len":15}}'),
        ('{"a": 1e999}', '{"__unparsedToolInput":{"raw":"{\\"a\\": 1e999}","len":12}}'),
        ("\U0001f642", '{"__unparsedToolInput":{"raw":"\U0001f642","len":2}}'),
    ],
)
def test_arguments_always_leave_as_an_object(text: str, spelled: str) -> None:
    assert input_json(text) == spelled
    assert isinstance(json.loads(spelled), dict)


def test_objects_too_deep_to_come_back_leave_as_text() -> None:
    def deep(levels: int) -> str:
        return '{"a":' * levels + "1" + "}" * levels

    assert is_object(deep(50)) and not is_object(deep(2000))
    for levels in range(500, 1100, 3):  # some of these can be read alone, but not inside a body
        said = Assistant(calls=(ToolCall("c", "f", deep(levels)),))
        body = json.dumps(
            {"role": "assistant", "content": json.loads(DIALECT.encode(replace(REPLY, assistant=said)))["content"]}
        )
        whole = f'{{"model":"m","max_tokens":1,"messages":[{body},{{"role":"user","content":"b"}}]}}'
        assert DIALECT.decode(whole.encode(), {}).items[0] == said


def test_keepalives_are_pings_whatever_their_number() -> None:
    pending = Pending("abc", "m", 1, ASKED)
    assert DIALECT.keepalive(pending, 0) == DIALECT.keepalive(pending, 9) == b'event: ping\ndata: {"type": "ping"}\n\n'
    assert DIALECT.stream(REPLY, 3) == DIALECT.stream(REPLY, 0)


@pytest.mark.parametrize(
    ("err", "kind"),
    [
        (BadRequest("bad", path="messages[3].content"), "invalid_request_error"),
        (Unsupported("no", path="n"), "invalid_request_error"),
        (ContextOverflow(70, 60), "invalid_request_error"),
        (Unauthorized("x"), "authentication_error"),
        (Forbidden("x"), "permission_error"),
        (NotFound("x"), "not_found_error"),
        (TooLarge("x"), "request_too_large"),
        (Overloaded("x", retry_after=0.2), "rate_limit_error"),
        (EngineError("x"), "api_error"),
        (StoreError("x"), "api_error"),
        (TuglineError("x"), "api_error"),
    ],
)
def test_errors(err: TuglineError, kind: str) -> None:
    status, headers, body = DIALECT.error(err)
    shown = json.loads(body)
    assert (status, shown["type"], shown["error"]["type"]) == (err.status, "error", kind)
    assert set(shown) == {"type", "error"} and set(shown["error"]) == {"type", "message"}
    assert headers.get("retry-after") == ("1" if isinstance(err, Overloaded) else None)
    ((name, data),) = events(DIALECT.stream_error(err, Pending("abc", "m", 1, ASKED), 4))
    assert (name, json.loads(data)) == ("error", shown)


def test_context_error_in_the_words_that_clients_look_for() -> None:
    _, _, body = DIALECT.error(ContextOverflow(70_123, 65_536))
    assert json.loads(body)["error"]["message"] == "prompt is too long: 70123 tokens > 65536 maximum"


def test_a_failure_that_will_repeat_tells_the_client_so() -> None:
    assert DIALECT.error(EngineError("x", retryable=False))[1]["x-should-retry"] == "false"
    assert "x-should-retry" not in DIALECT.error(EngineError("x"))[1]


def test_models() -> None:
    listed = json.loads(DIALECT.models("policy", 4096))
    (model,) = listed.pop("data")
    assert listed == {"has_more": False, "first_id": "policy", "last_id": "policy"}
    assert model == {**json.loads(DIALECT.model("other", 4096)), "id": "policy", "display_name": "policy"}
    assert (model["type"], model["max_input_tokens"], model["created_at"]) == ("model", 4096, "1970-01-01T00:00:00Z")


def test_shared_paths_are_claimed_by_the_version_header() -> None:
    assert DIALECT.claims({"anthropic-version": "2023-06-01", "authorization": "Bearer x"})
    assert not DIALECT.claims({"x-api-key": "k"})


def test_what_is_not_served_says_what_to_do() -> None:
    assert "POST /v1/messages" in DIALECT.refusal("/v1/messages/batches").message
    assert "POST /v1/messages" in DIALECT.refusal("/v1/messages/batches/msgbatch_1").message
    assert json.loads(DIALECT.error(DIALECT.refusal("/v1/files"))[2])["error"]["type"] == "not_found_error"


def test_it_is_served() -> None:
    assert dialect_named("anthropic") in DIALECTS
