"""Replay of recorded traffic, on small recordings written by hand."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tugline.core.items import Assistant, Request, ToolCall
from tugline.dialects import ChatDialect
from tugline.testing import replay as replaying
from tugline.testing.replay import How, Tally, captured_bodies, main, replay, table
from tugline.testing.replay_leaves import unexplained
from tugline.testing.replay_said import said

CHAT = "/s/abc/v1/chat/completions"


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "system", "content": "Be brief."}, *messages], **more}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def call(arguments: str, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "bash", "arguments": arguments}}


def sse(*deltas: dict[str, Any]) -> str:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"


def record(folder: Path, name: str, requests: list[dict[str, Any]], replies: list[dict[str, Any]] = ()) -> None:  # type: ignore[assignment]
    path = folder / f"{name}.requests.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"kind": "request", "seq": n, "method": "POST", "path": CHAT, "headers": [["Accept", "*/*"]], **r}
        for n, r in enumerate(requests, start=1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [{"kind": "run"}, *lines]))
    answers = [{"kind": "response", "seq": n, **r} for n, r in enumerate(replies, start=1)]
    if answers:
        beside = path.with_name(f"{Path(name).name}.responses.jsonl")
        beside.write_text("".join(json.dumps(answer) + "\n" for answer in answers))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    first = chat(user("a"))
    echo = {"role": "assistant", "content": " hi\n", "tool_calls": [call('{"x":1}')]}
    result = {"role": "tool", "tool_call_id": "c1", "content": "ok"}
    second = chat(user("a"), echo, result, metadata={"who": "me"})
    other = {"role": "assistant", "content": "something else"}
    requests = [
        first, first, second,
        chat(user("a"), echo, result, {"role": "assistant", "content": "fine"}, user("b")),
        chat(user("a"), other, user("c")),
        chat(user("x")),
        chat({"role": "user", "content": 3}),
    ]  # fmt: skip
    said = {
        "what": "stream",
        "sse": sse({"content": " hi"}, {"content": "\n", "tool_calls": [{**call('{"x" :  1.0}'), "index": 0}]}),
    }
    replies = [
        said,
        {"what": "fault-status"},
        {"what": "json", "body": {"choices": [{"message": {"content": "fine"}}]}},
    ]
    extra = [
        {"body": None, "method": "HEAD", "path": "/api/hello"},
        {"body": None, "method": "GET", "path": "/v1/models"},
    ]
    record(tmp_path, "one/run", [*({"body": b} for b in requests), *extra], replies)
    record(tmp_path, "two/run", [{"body": first}])
    packed = tmp_path / "two/run.requests.jsonl"
    packed.with_name("run.requests.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return tmp_path


def test_every_request_is_placed(folder: Path) -> None:
    found = replay(folder)
    one = found["one"]
    assert (one.requests, one.decoded, one.elsewhere.total()) == (9, 6, 2)
    assert dict(one.matches) == {"root": 2, "repeat": 1, "lenient": 1, "exact": 1, "prefix": 1}
    assert dict(one.roots) == {"root_first": 1, "root_unknown": 1}
    assert dict(one.ignored) == {"metadata": 1}
    assert [text.partition(":")[0] for text in one.refused] == ["messages[1].content"]
    assert one.crashes == [] and not one.silent
    assert (found["two"].requests, found["two"].decoded) == (1, 1)


def test_the_table_and_the_exit_status(folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == list(replaying.HEADS)
    assert lines[1].split() == ["one", "9", "6", "1", "2", "20", "1", "1", "1", "1", "2"]
    assert "one  ignored  1  metadata" in lines
    assert main([str(tmp_path / "nothing")]) == 2
    assert main([str(folder), "--set", "nonsense"]) == 2


def test_masked_options_can_be_set(tmp_path: Path) -> None:
    record(tmp_path, "h/run", [{"body": chat(user("a"), tool_choice="jdod")}, {"body": chat(user("a"))}])
    assert replay(tmp_path)["h"].refused.total() == 1
    tally = replay(tmp_path, How({"tool_choice": "auto"}))["h"]
    assert tally.decoded == 2 and not tally.refused
    bodies = captured_bodies(tmp_path, next(d for d in replaying.DIALECTS if d.name == "chat"), {"tool_choice": "auto"})
    assert [b"tool_choice" in b.body for b in bodies] == [True, False]


def test_masked_replies_say_what_their_echoes_say(tmp_path: Path) -> None:
    def conversation(text: str, path: str, name: str = "bash") -> list[dict[str, Any]]:
        made = {"id": "c9", "type": "function", "function": {"name": name, "arguments": json.dumps({"path": path})}}
        result = {"role": "tool", "tool_call_id": "c9", "content": "ok"}
        return [
            {"body": chat(user("a"))},
            {"body": chat(user("a"), {"role": "assistant", "content": text, "tool_calls": [made]}, result)},
        ]

    replies = [
        {"what": "stream", "sse": sse({"content": "hello", "tool_calls": [{**call('{"path": "/tmp/x"}'), "index": 0}]})}
    ]
    record(tmp_path, "same/run", conversation("wvxyz", "/qwe/x"), replies)
    record(tmp_path, "longer/run", conversation("hello, edited", "/qwe/x"), replies)
    record(tmp_path, "other/run", conversation("wvxyz", "/qwe/x", "write"), replies)
    assert [replay(tmp_path)[name].matches["lenient"] for name in ("same", "longer", "other")] == [0, 0, 0]
    found = replay(tmp_path, How(masked=True))
    assert [found[name].matches["lenient"] for name in ("same", "longer", "other")] == [1, 0, 0]
    assert dict(found["same"].drift) == {"ids_renamed": 1}
    assert found["longer"].matches["prefix"] == found["other"].matches["prefix"] == 1


def test_a_damaged_recording_is_named(tmp_path: Path) -> None:
    record(tmp_path, "h/run", [{"body": chat(user("a"))}])
    with (tmp_path / "h/run.requests.jsonl").open("a") as out:
        out.write('{"seq": "two"')
    assert "run.requests.jsonl cannot be read" in replay(tmp_path)["h"].crashes[0]


class Crashing(ChatDialect):
    def decode(self, body, params):
        raise RuntimeError("oh")


class Trimming(ChatDialect):
    """Loses one word and says nothing."""

    def decode(self, body, params):
        return super().decode(body.replace(b"precious", b"x"), params)


def test_crashes_and_silent_losses_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    record(tmp_path, "h/run", [{"body": chat(user("a precious word"))}])
    monkeypatch.setattr(replaying, "DIALECTS", (Crashing(),))
    assert main([str(tmp_path)]) == 1
    assert "h  crashes  1  h/run.requests.jsonl request 1: RuntimeError: oh" in capsys.readouterr().out
    monkeypatch.setattr(replaying, "DIALECTS", (Trimming(),))
    assert main([str(tmp_path)]) == 1
    assert "h  silent  1  messages[].content" in capsys.readouterr().out


def test_every_string_is_in_an_item_or_under_a_name() -> None:
    def lost(body: dict[str, Any], **of: Any) -> list[str]:
        data = json.dumps(body).encode()
        request = ChatDialect().decode(data, {})
        return unexplained(
            data, Request(request.model, request.head, request.items, ignored=of.get("ignored", request.ignored))
        )

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
    body = chat(
        {"role": "user", "content": [{"type": "text", "text": 'odd "\u2028" é'}, image]},
        {"role": "assistant", "content": None, "tool_calls": [call('{"command": "a \\"b\\""}')]},
        tools=[
            {"type": "function", "function": {"name": "bash", "description": "d \n e", "parameters": {"title": "T"}}}
        ],
    )
    assert lost(body) == []
    body["messages"][1]["content"].append({"type": "text", "text": "t", "cache_control": {"ttl": "5m"}})
    assert lost(body, ignored=()) == ["messages[].content[].cache_control.ttl: '5m'"]
    assert lost(body, ignored=("messages[].content[].cache_control",)) == []
    assert lost(body, ignored=("messages[]:cache",)) == []


def anthropic_stream() -> str:
    use = {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": " a"}},
        {"type": "content_block_start", "index": 2, "content_block": use},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"x": '}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
    ]
    return "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)


TURN = Assistant(" a", "hm", (ToolCall("t1", "bash", '{"x": 1}'),))
COMPACT = Assistant(" a", "hm", (ToolCall("t1", "bash", '{"x":1}'),))
OUTPUT = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "message", "content": [{"type": "output_text", "text": " a"}]},
    {"type": "function_call", "call_id": "t1", "name": "bash", "arguments": '{"x": 1}'},
]
PARTS = [
    {"text": "hm", "thought": True},
    {"text": " a"},
    {"functionCall": {"id": "t1", "name": "bash", "args": {"x": 1}}},
]


FINAL = {"type": "response.completed", "response": {"output": OUTPUT}}
CHUNKS = [{"candidates": [{"content": {"parts": [part]}}]} for part in PARTS]


@pytest.mark.parametrize(
    ("dialect", "reply", "turn"),
    [
        ("anthropic", anthropic_stream(), TURN),
        ("anthropic", {"type": "error", "error": {"message": "no"}}, None),
        ("responses", f"data: {json.dumps(FINAL)}\n\n", TURN),
        ("responses", {"output": OUTPUT}, TURN),
        ("gemini", "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in CHUNKS), COMPACT),
        ("chat", {"error": {"message": "no"}}, None),
        ("chat", "data: {brok\n\n", None),
        ("nobodys", "data: {}\n\n", None),
    ],
)  # fmt: skip
def test_what_a_recorded_reply_said(dialect: str, reply: Any, turn: Assistant | None) -> None:
    assert said(dialect, reply) == turn


def test_an_empty_table_is_a_head() -> None:
    assert table({"h": Tally()}).count("\n") == 2


@pytest.mark.skipif("TUGLINE_CAPTURES" not in os.environ, reason="set TUGLINE_CAPTURES to a folder of recordings")
def test_real_recordings_lose_nothing() -> None:
    """Words in them may be masked."""
    found = replay(Path(os.environ["TUGLINE_CAPTURES"]), How({"tool_choice": "auto"}, masked=True))
    for name, tally in found.items():
        assert tally.crashes == [] and not tally.silent, name
        assert tally.decoded > 0.8 * (tally.requests - tally.elsewhere.total()), name
