"""What the Chat dialect makes of requests, and what it refuses, by name and path."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import (
    Assistant,
    Options,
    Prefill,
    Request,
    System,
    ToolCall,
    ToolResult,
    UserMedia,
    UserText,
)
from tugline.dialects import ChatDialect

HI: dict[str, Any] = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}


def decode(messages: list[dict[str, Any]] | None = None, **keys: Any) -> Request:
    body = {"model": "m", "messages": [HI] if messages is None else messages, **keys}
    return ChatDialect().decode(json.dumps(body).encode(), {})


def call(arguments: Any, **keys: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}, **keys}]}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": t} for t in texts]


@pytest.mark.parametrize(
    ("message", "items"),
    [
        ({"role": "system", "content": " s "}, (System(" s "),)),
        ({"role": "developer", "content": parts("a", "b")}, (System("ab", "developer"),)),
        ({"role": "system"}, (System(""),)),
        ({"role": "user", "content": ""}, (UserText(""),)),
        ({"role": "user", "content": parts("a ", " b"), "name": "x"}, (UserText("a  b"),)),
        ({"role": "user", "content": []}, (UserText(""),)),
        ({"role": "tool", "tool_call_id": "c", "content": parts("x", "y")}, (ToolResult("c", "xy"),)),
        ({"role": "tool", "tool_call_id": "c", "content": None, "name": "ls"}, (ToolResult("c", "", "ls"),)),
        ({"role": "assistant"}, (Assistant(),)),
        ({"role": "assistant", "content": None, "tool_calls": []}, (Assistant(),)),
        ({"role": "assistant", "content": "", "tool_calls": None, "audio": None, "annotations": []}, (Assistant(),)),
        ({"role": "assistant", "content": parts(" a", "b ")}, (Assistant(" ab "),)),
        ({"role": "assistant", "content": [], "reasoning": "r"}, (Assistant(reasoning="r"),)),
        ({"role": "assistant", "content": "a", "reasoning_content": "r", "reasoning": "other"}, (Assistant("a", "r"),)),
        ({"role": "assistant", "content": "a", "reasoning_text": " r "}, (Assistant("a", " r "),)),
        ({"role": "assistant", "refusal": "no"}, (Assistant("no"),)),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, (Assistant("no"),)),
        (call('{"a" :  1}', type="function", index=0), (Assistant(calls=(ToolCall("c", "f", '{"a" :  1}'),)),)),
        (call('{"a": 1, }'), (Assistant(calls=(ToolCall("c", "f", '{"a": 1, }'),)),)),
        (call(""), (Assistant(calls=(ToolCall("c", "f", ""),)),)),
        (call(None), (Assistant(calls=(ToolCall("c", "f", ""),)),)),
    ],
)
def test_messages(message: dict[str, Any], items: tuple[object, ...]) -> None:
    assert decode([message]).items == items


def test_arguments_sent_as_an_object_keep_their_numbers_and_are_named() -> None:
    body = b'{"model":"m","messages":[{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f",'
    body += b'"arguments": {"x" :  1.0, "y": [1e3,\n 123456789012345678901234567890]} }}]}]}'
    request = ChatDialect().decode(body, {})
    said = request.items[0]
    assert isinstance(said, Assistant)
    assert said.calls[0].arguments == '{"x":1.0,"y":[1e3,123456789012345678901234567890]}'
    assert request.ignored == ("messages[].tool_calls[].function.arguments:object",)


def test_consecutive_assistant_messages_stay_apart() -> None:
    request = decode([HI, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert request.items[1:] == (Assistant("a"), Assistant("b"))


def test_media_are_digests_between_joined_texts() -> None:
    url = "data:image/png;base64,AAAA"
    image = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    audio = {"type": "input_audio", "input_audio": {"data": "x"}}
    items = decode([{"role": "user", "content": [*parts("a", "b"), image, *parts("c"), audio]}]).items
    assert items[0] == UserText("ab")
    assert items[1] == UserMedia("image/png", sha256(b"\0\0\0").hexdigest(), joined=True)
    assert items[2] == UserText("c", joined=True)
    assert isinstance(items[3], UserMedia) and items[3].joined
    only = decode([{"role": "user", "content": [{"type": "image_url", "image_url": "http://x/y.png"}]}]).items
    assert isinstance(only[0], UserMedia) and not only[0].joined


def test_images_of_a_tool_result_stay_with_it() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "tool", "tool_call_id": "c", "content": [*parts("a"), image, *parts("b")]}
    (result,) = decode([message]).items
    assert result == ToolResult("c", "ab", None, (UserMedia("image/png", sha256(b"\0\0\0").hexdigest(), joined=True),))


@pytest.mark.parametrize("data", ["_-8=", "/+8", "_-8"])
def test_one_image_is_one_item_however_its_base64_is_spelled(data: str) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
    (item,) = decode([{"role": "user", "content": [image]}]).items
    assert isinstance(item, UserMedia) and item.digest == sha256(b"\xff\xef").hexdigest()


def test_structured_output_is_an_option() -> None:
    assert decode(response_format={"type": "json_object"}).options.output == "json_object"
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "a": 1}}}
    assert decode(response_format=schema).options.output == '{"a":1,"type":"object"}'


def test_a_trailing_assistant_message_is_history_unless_it_is_to_be_continued() -> None:
    messages = [HI, {"role": "assistant", "content": "I th"}]
    assert decode(messages).items[1] == Assistant("I th")
    assert decode(messages, continue_final_message=True, add_generation_prompt=False).items[1] == Prefill("I th")
    with pytest.raises(BadRequest, match=r"messages\[0\]"):
        decode([HI], continue_final_message=True)


def test_tools_keep_their_exact_text_and_order() -> None:
    one = '{"type": "function",  "function": {"name": "b", "strict": true, "parameters": {"z": 1.0, "a": "\\u00e9"}}}'
    two = '{"function":{"name":"a"},"type":"function","cache_control":{"type":"ephemeral"}}'
    body = f'{{"model":"m","tools":[ {one} , {two} ],"messages":[{{"role":"user","content":"x"}}]}}'
    tools = ChatDialect().decode(body.encode(), {}).head.tools
    assert [(t.name, t.spec) for t in tools] == [("b", one), ("a", two)]
    assert decode(tools=None).head.tools == decode(tools=[]).head.tools == ()


def test_template_arguments_are_canonical() -> None:
    a = decode(chat_template_kwargs={"enable_thinking": False, "a": {"z": 1, "b": "é"}}).head
    b = decode(chat_template_kwargs={"a": {"b": "é", "z": 1}, "enable_thinking": False}).head
    assert a == b
    assert a.template_kwargs == '{"a":{"b":"é","z":1},"enable_thinking":false}'
    assert decode(chat_template_kwargs=None).head.template_kwargs == "{}"


def test_options() -> None:
    asked = decode(
        max_tokens=5, temperature=0, top_p=0.5, stop="x", seed=-1, stream=True, stream_options={"include_usage": True},
        tool_choice="none", parallel_tool_calls=False,
    ).options  # fmt: skip
    assert asked == Options(5, 0.0, 0.5, ("x",), -1, "none", False, True, True)
    assert decode().options == Options()
    assert decode(max_tokens=5, max_completion_tokens=7).options.max_tokens == 7
    assert decode(stop=["a", "", "b"]).options.stop == ("a", "b")
    assert decode(tool_choice={"type": "function", "function": {"name": "bash"}}).options.tool_choice == "bash"
    nulls = dict.fromkeys(("max_tokens", "temperature", "top_p", "stop", "seed", "stream", "stream_options", "n"))
    assert decode(**nulls, response_format={"type": "text"}).options == Options()


def test_keys_without_effect_are_named_in_wire_order() -> None:
    request = decode(store=False, reasoning_effort="high", user=None, rollout="7", logprobs=True, n=1)
    assert request.ignored == ("store", "reasoning_effort", "rollout", "logprobs")
    many = decode(**{f"k{i}": i for i in range(1000)}).ignored
    assert len(many) == 64


@pytest.mark.parametrize(
    ("keys", "kind", "path"),
    [
        ({"messages": []}, BadRequest, "messages"),
        ({"messages": None}, BadRequest, "messages"),
        ({"messages": {}}, BadRequest, "messages"),
        ({"messages": [HI, 3]}, BadRequest, "messages[1]"),
        ({"messages": [HI, {"content": "x"}]}, BadRequest, "messages[1]"),
        ({"messages": [{"role": "robot"}]}, BadRequest, "messages[0].role"),
        ({"messages": [{"role": "function", "name": "f", "content": ""}]}, BadRequest, "messages[0].role"),
        ({"messages": [HI, {"role": "user", "content": 3}]}, BadRequest, "messages[1].content"),
        ({"messages": [{"role": "user"}]}, BadRequest, "messages[0].content"),
        ({"messages": [HI, HI, {"role": "user", "content": [{"type": 3}]}]}, BadRequest, "messages[2].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, BadRequest, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, BadRequest, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "system", "content": [{"type": "image_url"}]}]},
            Unsupported,
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, BadRequest, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, Unsupported, "messages[0].function_call"),
        ({"messages": [call(3)]}, BadRequest, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [call("{}", type="custom")]}, Unsupported, "messages[0].tool_calls[0].type"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]},
            BadRequest,
            "messages[0].tool_calls[0].function",
        ),
        ({"model": 3}, BadRequest, "model"),
        ({"n": 2}, Unsupported, "n"),
        ({"functions": []}, Unsupported, "functions"),
        ({"function_call": "auto"}, Unsupported, "function_call"),
        ({"response_format": {"type": "grammar"}}, Unsupported, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, BadRequest, "response_format.json_schema"),
        ({"tools": [TOOL, {"type": "web_search"}]}, Unsupported, "tools[1].type"),
        ({"tools": [{"type": "function", "function": {"name": 1}}]}, BadRequest, "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, BadRequest, "tools[0].function"),
        ({"tools": [3]}, BadRequest, "tools[0]"),
        ({"tool_choice": "sometimes"}, BadRequest, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, Unsupported, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, BadRequest, "tool_choice.function"),
        ({"max_tokens": 0}, BadRequest, "max_tokens"),
        ({"max_completion_tokens": 10**30}, BadRequest, "max_completion_tokens"),
        ({"temperature": -1}, BadRequest, "temperature"),
        ({"top_p": 1.5}, BadRequest, "top_p"),
        ({"seed": 2**63}, BadRequest, "seed"),
        ({"stop": [str(i) for i in range(17)]}, BadRequest, "stop"),
        ({"stop": [1]}, BadRequest, "stop[0]"),
        ({"chat_template_kwargs": []}, BadRequest, "chat_template_kwargs"),
    ],
)
def test_refusals_name_their_field(keys: dict[str, Any], kind: type[BadRequest], path: str) -> None:
    body = json.dumps({"model": "m", "messages": [HI], **keys}).encode()
    with pytest.raises(BadRequest) as caught:
        ChatDialect().decode(body, {})
    assert (type(caught.value), caught.value.path) == (kind, path)


def test_legacy_function_role_says_what_to_use() -> None:
    with pytest.raises(BadRequest, match="use 'tool'"):
        decode([{"role": "function", "name": "f", "content": "x"}])


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"\\ud83d"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\xed\xa0\xbd"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"a","parameters":{"\xff":1}}}]}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":' + b"[" * 10**5 + b"]" * 10**5 + b"}",
    ],
)
def test_bytes_that_are_no_json(body: bytes) -> None:
    with pytest.raises(BadRequest):
        ChatDialect().decode(body, {})


def test_half_a_surrogate_pair_is_explained() -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        ChatDialect().decode(b'{"model":"m","messages":[{"role":"user","content":"cut \\ud83d"}]}', {})


def test_of_a_repeated_key_the_last_counts() -> None:
    body = b'{"model":"a","model":"b","messages":[{"role":"user","content":"x","content":"y"}]}'
    request = ChatDialect().decode(body, {})
    assert (request.model, request.items) == ("b", (UserText("y"),))
