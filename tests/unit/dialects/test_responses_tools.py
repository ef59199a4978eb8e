"""Tools of the Responses API: declared, chosen, called, repeated in a reply."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from contract.responses_kit import said
from tugline.core.items import Assistant, Request, ToolCall, UserText
from tugline.dialects.responses import ResponsesDialect
from tugline.testing.dialect_suite import reply_of

DIALECT = ResponsesDialect()
BASH = {"type": "function", "name": "bash", "description": "Runs.", "parameters": {"type": "object", "x": 1.0}}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
}
TEAM = {
    "type": "namespace",
    "name": "team",
    "description": "Helpers.",
    "tools": [{"type": "function", "name": "spawn", "parameters": {}}, {"type": "custom", "name": "note"}],
}


def decode(**body: Any) -> Request:
    return DIALECT.decode(json.dumps({"model": "m", "input": "hi", **body}).encode(), {})


def test_a_function_is_what_chat_would_have_sent() -> None:
    declared = b'{"strict":null,"parameters":{"b":1.0,"a":1e2},"name":"f","type":"function"}'
    (tool,) = DIALECT.decode(b'{"model":"m","input":"a","tools":[' + declared + b"]}", {}).head.tools
    assert tool.spec == '{"type":"function","function":{"name":"f","parameters":{"b":1.0,"a":1e2}}}'
    (tool,) = decode(tools=[{"type": "function", "name": "f", "description": "D"}]).head.tools
    assert tool.spec == '{"type":"function","function":{"name":"f","description":"D"}}'


def test_a_custom_tool_is_a_function_with_one_text() -> None:
    (tool,) = decode(tools=[PATCH]).head.tools
    function = json.loads(tool.spec)["function"]
    assert (tool.name, tool.kind, tool.namespace) == ("patch", "custom", None)
    assert function["description"] == 'Edits files.\n\nThe input must match this grammar (lark):\nstart: "a"'
    assert function["parameters"]["required"] == ["input"] == list(function["parameters"]["properties"])
    (plain,) = decode(tools=[{"type": "custom", "name": "note", "format": {"type": "text"}}]).head.tools
    assert "description" not in json.loads(plain.spec)["function"]


def test_a_namespace_is_flattened_and_server_tools_are_left_out() -> None:
    request = decode(tools=[BASH, {"type": "web_search"}, TEAM, {"type": "mcp", "server_label": "x"}])
    assert [(t.name, t.kind, t.namespace) for t in request.head.tools] == [
        ("bash", "function", None),
        ("team__spawn", "function", "team"),
        ("team__note", "custom", "team"),
    ]
    assert request.ignored == ("tools[]:web_search", "tools[]:namespace.description", "tools[]:mcp")


def test_tools_declared_in_the_conversation_are_offered() -> None:
    newer = {**BASH, "description": "Runs, newer."}
    items = [
        {"role": "user", "content": "a"},
        {"type": "additional_tools", "role": "developer", "tools": [newer, PATCH]},
        {"type": "tool_search_call", "call_id": "c", "execution": "client", "arguments": {"query": "x"}},
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": [TEAM]},
    ]
    request = decode(input=items, tools=[BASH])
    assert [t.name for t in request.head.tools] == ["bash", "patch", "team__spawn", "team__note"]
    assert "newer" in request.head.tools[0].spec
    assert request.items == (UserText("a"),)
    assert set(request.ignored) >= {
        "input[]:additional_tools",
        "input[]:tool_search_call",
        "input[]:tool_search_output",
    }


@pytest.mark.parametrize(
    ("choice", "expected", "offered"),
    [
        (None, "auto", ["bash", "patch", "team__spawn", "team__note"]),
        ("none", "none", ["bash", "patch", "team__spawn", "team__note"]),
        ("required", "required", ["bash", "patch", "team__spawn", "team__note"]),
        ({"type": "function", "name": "bash"}, "bash", ["bash", "patch", "team__spawn", "team__note"]),
        ({"type": "custom", "name": "patch"}, "patch", ["bash", "patch", "team__spawn", "team__note"]),
        (
            {"type": "function", "name": "spawn", "namespace": "team"},
            "team__spawn",
            ["bash", "patch", "team__spawn", "team__note"],
        ),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "bash"}, {"type": "x"}],
            },
            "required",
            ["bash"],
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "auto", []),
    ],
)
def test_tool_choice(choice: Any, expected: str, offered: list[str]) -> None:
    request = decode(tools=[BASH, PATCH, TEAM], tool_choice=choice)
    assert (request.options.tool_choice, [t.name for t in request.head.tools]) == (expected, offered)


@pytest.mark.parametrize(
    ("arguments", "sent", "echoed"),
    [
        ('{"input": "*** a\\n\\u00e9"}', "*** a\né", '{"input":"*** a\\né"}'),
        ('{"input": ""}', "", '{"input":""}'),
        ('{"input": 5}', '{"input": 5}', '{"input":"{\\"input\\": 5}"}'),
        ('{"input": "a", "more": 1}', '{"input": "a", "more": 1}', None),
        ("not json", "not json", '{"input":"not json"}'),
        ("", "", '{"input":""}'),
    ],
)
def test_what_a_custom_tool_is_sent_and_how_it_comes_back(arguments: str, sent: str, echoed: str | None) -> None:
    request = decode(tools=[PATCH])
    reply = replace(reply_of(Assistant(calls=(ToolCall("c", "patch", arguments),))), request=request)
    (item,) = json.loads(DIALECT.encode(reply))["output"]
    assert (item["type"], item["name"], item["call_id"], item["input"]) == ("custom_tool_call", "patch", "c", sent)
    echo = DIALECT.echo(reply)
    assert echo.calls[0].arguments == (echoed or json.dumps({"input": sent}, separators=(",", ":")))
    assert decode(input=[item]).items == (echo,)
    parts, terminal = DIALECT.stream(reply)
    assert terminal and b'"custom_tool_call_input' not in b"".join(parts)
    assert b"event: response.custom_tool_call_input.done\n" in b"".join(parts)


def test_a_namespaced_call_leaves_as_it_was_declared_and_comes_back() -> None:
    request = decode(tools=[TEAM, BASH])
    calls = (
        ToolCall("c1", "team__spawn", "{}"),
        ToolCall("c2", "team__note", '{"input":"x"}'),
        ToolCall("c3", "bash", "{}"),
        ToolCall("c4", "team__unknown", "{}"),
    )
    reply = replace(reply_of(Assistant(calls=calls)), request=request)
    output = json.loads(DIALECT.encode(reply))["output"]
    assert [(i["type"], i["name"], i.get("namespace")) for i in output] == [
        ("function_call", "spawn", "team"),
        ("custom_tool_call", "note", "team"),
        ("function_call", "bash", None),
        ("function_call", "team__unknown", None),
    ]
    assert DIALECT.echo(reply).calls == calls
    assert said(output[:1]).calls == calls[:1]


def test_a_reply_repeats_the_tools_and_the_choice() -> None:
    request = decode(
        tools=[BASH, PATCH, TEAM], tool_choice={"type": "custom", "name": "patch"}, parallel_tool_calls=False
    )
    response = json.loads(DIALECT.encode(replace(reply_of(Assistant("a")), request=request)))
    assert response["tools"][0] == {**BASH, "strict": False}
    assert [t["type"] for t in response["tools"]] == ["function", "custom", "namespace"]
    assert [t["name"] for t in response["tools"][2]["tools"]] == ["spawn", "note"]
    assert response["tool_choice"] == {"type": "custom", "name": "patch"}
    assert response["parallel_tool_calls"] is False
