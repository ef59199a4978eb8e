"""Responses replies: frames, keep-alives, failures, and what the strictest agent makes of them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pytest

from contract.responses_kit import events
from tugline.core.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    Forbidden,
    NotFound,
    Overloaded,
    StoreError,
    TuglineError,
)
from tugline.core.items import Assistant, Options, Reply, ToolCall
from tugline.dialects.responses import ResponsesDialect
from tugline.testing.dialect_suite import pending_of, reply_of

DIALECT = ResponsesDialect()
SAID = Assistant("Done. ", "Think. ", (ToolCall("c1", "bash", '{"a" : 1}'), ToolCall("c2", "bash", "{")))


@dataclass
class Turn:
    """What Codex keeps of a stream: items that are done, usage, and how it ended."""

    items: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] | None = None
    ended: str = "cut"
    delay: float | None = None
    heard: int = 0
    """Events: each starts its idle timer again, a comment does not."""


RETRY_AFTER = re.compile(r"(?i)try again in\s*(\d+(?:\.\d+)?)\s*(s|ms|seconds?)")


def codex(stream: bytes) -> Turn:
    """Rules read in its public source: items count when done, reasoning needs `summary`, codes decide on a retry."""
    turn = Turn()
    for event in events(stream):
        turn.heard += 1
        kind = event["type"]
        if kind == "response.output_item.done":
            item = event["item"]
            needed = {
                "reasoning": ("summary",),
                "message": ("role", "content"),
                "function_call": ("name", "arguments", "call_id"),
                "custom_tool_call": ("name", "input", "call_id"),
            }[item["type"]]
            assert all(key in item for key in needed)
            turn.items.append(item)
        elif kind == "response.completed":
            turn.usage, turn.ended = event["response"]["usage"], "completed"
        elif kind == "response.incomplete":
            turn.ended = event["response"]["incomplete_details"]["reason"]
        elif kind == "response.failed":
            error = event["response"]["error"]
            fatal = error["code"] in ("context_length_exceeded", "insufficient_quota", "invalid_prompt")
            turn.ended = "fatal" if fatal else "retry"
            found = RETRY_AFTER.search(error["message"])
            if found and error["code"] == "rate_limit_exceeded":
                turn.delay = float(found.group(1))
    return turn


def streamed(reply: Reply, beats: int = 0) -> bytes:
    parts, terminal = DIALECT.stream(reply, beats)
    return b"".join([*[DIALECT.keepalive(pending_of(reply), n) for n in range(beats)], *parts, terminal])


@pytest.mark.parametrize("beats", [0, 1, 5])
def test_an_agent_keeps_the_whole_turn(beats: int) -> None:
    turn = codex(streamed(reply_of(SAID), beats))
    assert [i["type"] for i in turn.items] == ["reasoning", "message", "function_call", "function_call"]
    assert turn.ended == "completed" and turn.usage is not None
    assert turn.usage["input_tokens_details"]["cached_tokens"] == 900
    assert turn.items[0]["encrypted_content"] and turn.items[0]["summary"][0]["text"] == "Think. "


def test_every_keepalive_is_an_event() -> None:
    reply = reply_of(SAID)
    for beats in (1, 2, 9):
        assert codex(streamed(reply, beats)).heard == codex(streamed(reply)).heard + beats - 1
    first, second = (DIALECT.keepalive(pending_of(reply), n) for n in (0, 1))
    assert [e["type"] for e in events(first)] == ["response.created", "response.in_progress"]
    assert [(e["type"], e["sequence_number"]) for e in events(second)] == [("response.in_progress", 2)]


def test_a_stream_cut_before_its_end_keeps_items_that_were_done() -> None:
    """Such remains stand in the next request, in front of the turn sampled again: two turns, not one."""
    parts, _ = DIALECT.stream(reply_of(SAID))
    kept = codex(b"".join(parts[: len(parts) // 3])).items
    assert [i["type"] for i in kept] == ["reasoning"]
    again = json.loads(DIALECT.encode(Reply(**{**_fields(reply_of(SAID)), "id": "other"})))["output"]
    body = json.dumps({"model": "m", "input": [*kept, *again]}).encode()
    assert DIALECT.decode(body, {}).items == (Assistant(reasoning="Think. "), SAID)


def _fields(reply: Reply) -> dict[str, Any]:
    return {name: getattr(reply, name) for name in Reply.__dataclass_fields__}


@pytest.mark.parametrize("beats", [0, 2])
@pytest.mark.parametrize(
    ("err", "ended", "delay"),
    [
        (ContextOverflow(9, 8), "fatal", None),
        (BadRequest("no", path="x"), "fatal", None),
        (NotFound("no"), "fatal", None),
        (Forbidden("the budget is used up", code="budget_turns"), "fatal", None),
        (EngineError("nonsense", retryable=False), "fatal", None),
        (EngineError("gone"), "retry", None),
        (StoreError("full"), "retry", None),
        (Overloaded("busy", retry_after=2.5), "retry", 2.5),
        (Overloaded("busy", retry_after=0.1), "retry", 1.0),
    ],
)
def test_failures_stop_an_agent_or_make_it_try_again(
    err: TuglineError, ended: str, delay: float | None, beats: int
) -> None:
    pending = pending_of(reply_of(SAID))
    stream = b"".join([DIALECT.keepalive(pending, n) for n in range(beats)]) + DIALECT.stream_error(err, pending, beats)
    turn = codex(stream)
    assert (turn.ended, turn.delay) == (ended, delay)
    found = events(stream)
    assert found[0]["type"] == "response.created"
    assert [e["sequence_number"] for e in found] == list(range(len(found)))
    assert found[-1]["response"]["status"] == "failed" and err.message[:2] in found[-1]["response"]["error"]["message"]


def test_cut_by_length() -> None:
    reply = reply_of(SAID, finish="length")
    assert codex(streamed(reply)).ended == "max_output_tokens"
    response = json.loads(DIALECT.encode(reply))
    assert response["status"] == "incomplete" and response["completed_at"] is None
    assert [i.get("status") for i in response["output"]] == [None, "completed", "completed", "incomplete"]
    alone = json.loads(DIALECT.encode(reply_of(Assistant(reasoning="a"), finish="length")))
    assert [i["status"] for i in alone["output"]] == ["incomplete"]


def test_ids_name_the_reply() -> None:
    response = json.loads(DIALECT.encode(reply_of(SAID)))
    assert response["id"] == "resp_0123abc"
    ids = [i["id"] for i in response["output"]]
    assert ids == ["rs_tug_0123abc", "msg_tug_0123abc", "fc_tug_0123abc_0", "fc_tug_0123abc_1"]
    assert all(len(i) <= 64 for i in ids), "some clients replace longer ids"
    assert DIALECT.encode(reply_of(SAID)) == DIALECT.encode(reply_of(SAID)), "the same reply gives the same bytes"


def test_a_reply_repeats_what_was_asked() -> None:
    request = DIALECT.decode(
        b'{"model": "m", "instructions": "I", "input": "a", "previous_response_id": "resp_1", "temperature": 0.5,'
        b' "top_p": 0.25, "max_output_tokens": 7, "text": {"format": {"type": "json_object"}}}',
        {},
    )
    reply = Reply(**{**_fields(reply_of(Assistant("a"))), "request": request})
    response = json.loads(DIALECT.encode(reply))
    expected = {
        "instructions": "I",
        "previous_response_id": "resp_1",
        "temperature": 0.5,
        "top_p": 0.25,
        "max_output_tokens": 7,
        "text": {"format": {"type": "json_object"}},
        "tools": [],
        "tool_choice": "auto",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
    }
    assert {key: response[key] for key in expected} == expected


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/responses/resp_1", "/v1/conversations"])
def test_refusals_say_what_to_do(path: str) -> None:
    err = DIALECT.refusal(path)
    assert isinstance(err, NotFound) and re.search("previous_response_id|summary", err.message)


def test_no_path_is_claimed_from_chat() -> None:
    assert not DIALECT.claims({"openai-beta": "responses=v1"})
    assert not any("models" in route.path for route in DIALECT.routes)
    assert DIALECT.echo(reply_of(SAID, Options(stream=True))) == SAID
