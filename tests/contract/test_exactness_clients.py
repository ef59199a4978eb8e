"""The suite's clients read what the four APIs write, whole and streamed, and their echoes come back as they were."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tugline.core.errors import EngineError
from tugline.core.items import Assistant, System, ToolCall, ToolResult, UserText
from tugline.dialects import DIALECTS
from tugline.testing.dialect_suite import reply_of
from tugline.testing.exactness.clients import CLIENTS
from tugline.testing.exactness.talk import Ask, Echo, tool

DIALECT = {d.name: d for d in DIALECTS}
NAMES = tuple(CLIENTS)
ODD = '{"command" :  "ls \\u00e9",  "n": 1.0, "big": 12345678901234567890}'
TURNS = [
    Assistant(text="Done."),
    Assistant(text=" two \n\n lines ", reasoning="why\nso"),
    Assistant(reasoning="why", calls=(ToolCall("call_1", "bash", ODD),)),
    Assistant("Both.", None, (ToolCall("a", "x", "{}"), ToolCall("b", "y", '{"q":"\u6f22"}'))),
]


def called(turn: Assistant) -> list[tuple[str, Any]]:
    return [(call.name, msgspec.json.decode(call.arguments or "{}")) for call in turn.calls]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("turn", TURNS, ids=range(len(TURNS)))
@pytest.mark.parametrize("name", NAMES)
def test_what_is_read_and_echoed(name: str, turn: Assistant, stream: bool) -> None:
    dialect, client = DIALECT[name], CLIENTS[name]
    reply = reply_of(turn)
    data = b"".join((*dialect.stream(reply)[0], dialect.stream(reply)[1])) if stream else dialect.encode(reply)
    heard = client.read(data, stream=stream)
    assert (heard.said.text, heard.said.reasoning) == (turn.text, turn.reasoning)
    assert called(heard.said) == called(turn)
    assert heard.finish == ("tool_calls" if turn.calls else "stop")
    for echo in (Echo(heard.said, 0, raw=heard.raw), Echo(heard.said, 0)):
        ask = Ask((System("s"), UserText("u"), echo, UserText("v")), (tool("bash"),), stream)
        out = client.write(ask)
        params = {"model": "policy"} | ({"stream": "1"} if stream else {})
        request = dialect.decode(out.body, params if name == "gemini" else {})
        (back,) = [item for item in request.items if isinstance(item, Assistant)]
        assert (back.text, back.reasoning) == (turn.text, turn.reasoning)
        assert called(back) == called(turn)
        assert [t.name for t in request.head.tools] == ["bash"]


@pytest.mark.parametrize("name", NAMES)
def test_whole_conversations(name: str) -> None:
    calls = (ToolCall("a", "bash", '{"command": "one"}'), ToolCall("b", "bash", '{"command": "two"}'))
    talk = (
        System("Be careful."), UserText("Go."), Echo(Assistant(None, None, calls), 0),
        ToolResult("b", "second", "bash"), ToolResult("a", "first", "bash"), UserText("And on."),
    )  # fmt: skip
    request = DIALECT[name].decode(CLIENTS[name].write(Ask(talk, (tool("bash"),))).body, {"model": "policy"})
    words = [getattr(item, "text", None) for item in request.items if not isinstance(item, Assistant)]
    assert words == ["Be careful.", "Go.", "second", "first", "And on."]
    assert [i.call_id for i in request.items if isinstance(i, ToolResult)] == ["b", "a"]


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_turn_is_told(name: str) -> None:
    dialect, client = DIALECT[name], CLIENTS[name]
    reply = reply_of(Assistant(text="Once upon"), finish="length")
    events, end = dialect.stream(reply)
    assert client.read(dialect.encode(reply), stream=False).finish == "length"
    assert client.read(b"".join((*events, end)), stream=True).finish == "length"


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_without_an_end(name: str) -> None:
    events, _ = DIALECT[name].stream(reply_of(Assistant(text="x")))
    with pytest.raises(EngineError):
        CLIENTS[name].read(b"".join(events), stream=True)


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b'{"error": {"message": "x"}}'])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_reply(name: str, data: bytes) -> None:
    with pytest.raises(EngineError):
        CLIENTS[name].read(data, stream=False)
