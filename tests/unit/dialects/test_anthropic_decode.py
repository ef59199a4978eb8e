"""What the Anthropic dialect makes of requests, block by block."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from typing import Any

import pytest

from contract.anthropic_kit import anthropic_kit
from contract.chat_kit import chat_kit
from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import (
    Assistant,
    Head,
    Item,
    Options,
    Prefill,
    Request,
    System,
    ToolCall,
    ToolResult,
    UserMedia,
    UserText,
)
from tugline.dialects import AnthropicDialect
from tugline.dialects.anthropic_blocks import signature
from tugline.forest.canon import tool_view

PNG = b"\x89PNG\r\n"
DATA = base64.b64encode(PNG).decode()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
DIGEST = sha256(PNG).hexdigest()
HI = {"role": "user", "content": "hi"}


def decode(*messages: Any, call: str = "", **fields: Any) -> Request:
    body = {"model": "m", "max_tokens": 5, "messages": list(messages) or [HI], **fields}
    data = json.dumps({k: v for k, v in body.items() if v != "absent"}, ensure_ascii=False).encode()
    return AnthropicDialect().decode(data, {"call": call} if call else {})


def user(*blocks: Any) -> tuple[Item, ...]:
    return decode({"role": "user", "content": list(blocks)}).items


def turn(*blocks: Any) -> Assistant:
    item = decode(HI, {"role": "assistant", "content": list(blocks)}, HI).items[1]
    assert isinstance(item, Assistant)
    return item


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "c1", "content": content, **more}


def use(arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": "c1", "name": "f", "input": arguments}


# ---------------------------------------------------------------------------------------------------- system


def test_system_text_is_one_item_per_block_where_it_stands() -> None:
    later = {"role": "system", "content": [text("c"), text("")]}
    items = decode(HI, later, {"role": "system", "content": "d"}, HI, system=[text("a"), text(" b\n")]).items
    assert items == (
        System("a"),
        System(" b\n"),
        UserText("hi"),
        System("c"),
        System(""),
        System("d"),
        UserText("hi"),
    )


def test_a_system_message_is_the_same_as_text_and_as_a_list() -> None:
    """Claude Code flips between the two from one turn to the next."""
    as_list = decode(HI, {"role": "system", "content": [text("now")]})
    assert as_list == decode(HI, {"role": "system", "content": "now"})


@pytest.mark.parametrize("system", ["", [], None])
def test_no_system_text_is_no_item(system: Any) -> None:
    assert decode(system=system).items == (UserText("hi"),)


def test_a_system_message_may_carry_options_only() -> None:
    request = decode(HI, {"role": "system", "content": None, "output_config": {"effort": "low"}})
    assert request.items == (UserText("hi"),)
    assert request.ignored == ("messages[].output_config",)


# ------------------------------------------------------------------------------------------------------ user


def test_text_of_one_message_is_one_item() -> None:
    assert user(text("a"), text(""), text(" b")) == (UserText("a b"),)
    assert user() == user(text("")) == (UserText(""),)


def test_media_stand_where_they_stood() -> None:
    joined = (UserText("a"), UserMedia("image/png", DIGEST, True), UserText("b", True))
    assert user(text("a"), IMAGE, text("b")) == joined
    assert user(IMAGE, IMAGE) == (UserMedia("image/png", DIGEST), UserMedia("image/png", DIGEST, True))


def test_words_behind_results_begin_a_message_of_their_own() -> None:
    """As in Chat, where a result is a message."""
    assert user(result("r"), text("a"), IMAGE) == (
        ToolResult("c1", "r"),
        UserText("a"),
        UserMedia("image/png", DIGEST, True),
    )
    assert user(result("r"), IMAGE, text("")) == (ToolResult("c1", "r"), UserMedia("image/png", DIGEST))


def test_an_image_is_the_same_item_however_it_is_sent() -> None:
    (chat,) = (
        chat_kit()
        .dialect.decode(
            json.dumps(
                {
                    "model": "m",
                    "messages": [
                        {
                            "role": "user",
                            "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}],
                        }
                    ],
                }
            ).encode(),
            {},
        )
        .items
    )
    assert user(IMAGE) == (chat,)
    linked = user({"type": "image", "source": {"type": "url", "url": "http://x/a.png"}})
    assert linked == (UserMedia("image/*", sha256(b"http://x/a.png").hexdigest()),)
    filed = user({"type": "image", "source": {"type": "file", "file_id": "file_1"}})
    assert filed == (UserMedia("image/*", sha256(b"file_1").hexdigest()),)


def document(source: Any, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


def test_documents_show_their_text_and_what_is_said_about_them() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "body"}
    assert user(document(plain)) == (UserText("body"),)
    assert user(text("see "), document(plain, title="T", context=None)) == (UserText("see T\nbody"),)
    blocks = {"type": "content", "content": [text("x"), IMAGE, text("y")]}
    assert user(document(blocks, context="C")) == (
        UserText("C\nx"),
        UserMedia("image/png", DIGEST, True),
        UserText("y", True),
    )
    assert user(document({"type": "content", "content": "z"})) == (UserText("z"),)
    pdf = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    assert user(document(pdf)) == (UserMedia("application/pdf", DIGEST),)


def test_documents_in_documents_end_somewhere() -> None:
    inner: Any = document({"type": "text", "data": "deep"})
    for _ in range(60):
        inner = document({"type": "content", "content": [inner]})
    request = decode({"role": "user", "content": [inner]})
    assert request.items == (UserText(""),)
    assert request.ignored == ("messages[].content[]:document",)


# --------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("r", "r"),
        ("", ""),
        (None, ""),
        ([], ""),
        ([text("a"), text("b")], "ab"),
        ([{"type": "tool_reference", "tool_name": "WebFetch"}], "[tool_reference: WebFetch]"),
        ([{"type": "search_result", "source": "S", "title": "T", "content": [text("x"), text("y")]}], "T\nS\nxy"),
        ([document({"type": "text", "data": "d"}), text("!")], "d!"),
        ([{"type": "from_the_future", "text": "words"}], "words"),
    ],
)
def test_results(content: Any, shown: str) -> None:
    assert user(result(content)) == (ToolResult("c1", shown),)


def test_media_of_a_result_stay_with_it() -> None:
    media = UserMedia("image/png", DIGEST, True)
    assert user(result([text("a"), IMAGE, text("b"), IMAGE])) == (ToolResult("c1", "ab", None, (media, media)),)


def test_that_a_result_is_an_error_is_named() -> None:
    request = decode({"role": "user", "content": [result("r", is_error=True)]})
    assert (request.items, request.ignored) == ((ToolResult("c1", "r"),), ("messages[].content[].is_error",))
    assert not decode({"role": "user", "content": [result("r", is_error=False)]}).ignored


# ----------------------------------------------------------------------------------------------------- turns


def thinking(words: str, sign: str | None = None) -> dict[str, Any]:
    return {"type": "thinking", "thinking": words, "signature": signature(words) if sign is None else sign}


def test_all_parts_of_a_message_are_one_turn() -> None:
    said = turn(thinking("a "), text("b "), use({}), thinking("c"), text("d"), {**use({}), "id": "c2"})
    assert said == Assistant("b d", "a c", (ToolCall("c1", "f", "{}"), ToolCall("c2", "f", "{}")))


def test_two_messages_are_two_turns() -> None:
    a, b = ({"role": "assistant", "content": t} for t in "ab")
    assert decode(HI, a, b, HI).items[1:3] == (Assistant("a"), Assistant("b"))


@pytest.mark.parametrize("content", ["", None, [], [text("")]])
def test_nothing_said_is_one_value(content: Any) -> None:
    assert decode(HI, {"role": "assistant", "content": content}, HI).items[1] == Assistant()


@pytest.mark.parametrize(
    ("sign", "named"), [(None, False), ("", False), ("from elsewhere", True), (signature("other"), True)]
)
def test_signatures_are_ours_or_named(sign: str | None, named: bool) -> None:
    request = decode(HI, {"role": "assistant", "content": [thinking("a", sign), text("b")]}, HI)
    assert request.items[1] == Assistant("b", "a")
    assert request.ignored == (("messages[].content[].signature",) if named else ())


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ('{"n" : 1.0, "e":1e3, "u": "\\u00e9", "big": 12345678901234567890}', None),
        ("{}", "{}"),
        ("null", "{}"),
        ('"{\\"a\\": 1, }"', '{"a": 1, }'),
        ('{"__unparsedToolInput":{"raw":"{\\"a\\": 1, }","len":10}}', '{"a": 1, }'),
        ('{"__unparsedToolInput":{"raw":"x","len":9000,"why":"w"}}', "x"),
        ('{"__unparsedToolInput":{"raw":" ","len":1}}', "{}"),
        ('{"__unparsedToolInput":{"raw":"{}","len":2}}', '{"__unparsedToolInput":{"raw":"{}","len":2}}'),
        ('{"__unparsedToolInput":{"raw":"x","len":1},"b":2}', '{"__unparsedToolInput":{"raw":"x","len":1},"b":2}'),
        ('{"__unparsedToolInput":"x"}', '{"__unparsedToolInput":"x"}'),
    ],
)
def test_inputs(raw: str, kept: str | None) -> None:
    block = json.dumps(use("@")).replace('"@"', raw)
    body = f'{{"model":"m","max_tokens":1,"messages":[{{"role":"assistant","content":[{block}]}}]}}'
    (said,) = AnthropicDialect().decode(body.encode(), {}).items
    assert isinstance(said, Assistant)
    assert said.calls[0].arguments == (
        raw.replace('" :', '":').replace(", ", ",").replace(": ", ":") if kept is None else kept
    )


@pytest.mark.parametrize(
    "block",
    [
        {"type": "redacted_thinking", "data": "x"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"type": "web_search_result", "url": "u"}]},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "error", "error_code": "e"}},
        {"type": "mcp_tool_use", "id": "s", "name": "n", "server_name": "x", "input": {}},
        {"type": "container_upload", "file_id": "f"},
        {"type": "image", "source": {"type": "url", "url": "u"}},
    ],
)
def test_blocks_that_show_nothing_are_named(block: dict[str, Any]) -> None:
    request = decode(HI, {"role": "assistant", "content": [block, text("a")]}, HI)
    assert request.items[1] == Assistant("a")
    assert request.ignored == (f"messages[].content[]:{block['type']}",)


def test_a_dropped_block_may_hold_anything() -> None:
    request = decode(HI, {"role": "system", "content": [{"type": "tool_result", "content": [None]}, text("a")]})
    assert (request.items[1:], request.ignored) == ((System("a"),), ("messages[].content[]:tool_result",))


def test_a_compaction_is_text() -> None:
    assert turn({"type": "compaction", "content": "so far", "encrypted_content": "x"}) == Assistant("so far")


# ------------------------------------------------------------------------------------------- the last message


@pytest.mark.parametrize("content", ["The answer is ", [text("The "), text("answer is ")]])
def test_a_last_assistant_message_is_continued(content: Any) -> None:
    assert decode(HI, {"role": "assistant", "content": content}).items[-1] == Prefill("The answer is ")


def test_a_last_message_that_cannot_be_continued_is_history() -> None:
    for blocks in ([thinking("a"), text("b")], [use({})], [text("a"), use({})]):
        assert isinstance(decode(HI, {"role": "assistant", "content": blocks}).items[-1], Assistant)


@pytest.mark.parametrize("content", ["", [], [text("")]])
def test_an_empty_last_message_is_none(content: Any) -> None:
    request = decode(HI, {"role": "assistant", "content": content})
    assert (request.items, request.ignored) == ((UserText("hi"),), ("messages[]:empty_prefill",))
    with pytest.raises(BadRequest, match="messages"):
        decode({"role": "assistant", "content": content})


# ----------------------------------------------------------------------------------------------------- tools

TOOL = {"name": "bash", "description": "Run.", "input_schema": {"type": "object", "b": 1.50, "a": "é"}}


def test_tools_are_spelled_as_chat_has_them() -> None:
    tool, again = decode(tools=[TOOL, {**TOOL, "type": "custom", "description": None}]).head.tools
    assert (tool.name, tool.kind) == ("bash", "function")
    schema = '{"type": "object", "b": 1.5, "a": "é"}'
    head = '{"type":"function","function":{"name":"bash",'
    assert tool.spec == f'{head}"description":"Run.","parameters":{schema}}}}}'
    assert again.spec == f'{head}"parameters":{schema}}}}}'
    chats = {
        "type": "function",
        "function": {"parameters": TOOL["input_schema"], "name": "bash", "description": "Run."},
    }
    assert tool_view(tool.spec) == tool_view(json.dumps(chats))


def test_heads_agree_with_chat() -> None:
    ours, chats = anthropic_kit(), chat_kit()
    mine = decode(tools=[{"name": "bash", "input_schema": {"type": "object"}}]).head
    assert tool_view(mine.tools[0].spec) == tool_view(chats.decode((UserText("a"),)).head.tools[0].spec)
    assert ours.decode((UserText("a"),)).head.template_kwargs == Head().template_kwargs


def test_tools_without_a_schema_of_their_own_are_dropped_by_name() -> None:
    types = ["web_search_20250305", "bash_20250124", "text_editor_20250728", "computer_20250124", "mcp_toolset"]
    request = decode(tools=[{"type": t, "name": t, "cache_control": {}} for t in types] + [TOOL])
    assert [t.name for t in request.head.tools] == ["bash"]
    assert request.ignored == tuple(sorted(f"tools[]:{t}" for t in types))


@pytest.mark.parametrize(
    ("choice", "asked", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "bash", "disable_parallel_tool_use": False}, "bash", True),
    ],
)
def test_tool_choice(choice: Any, asked: str, parallel: bool) -> None:
    options = decode(tools=[TOOL], tool_choice=choice).options
    assert (options.tool_choice, options.parallel_calls) == (asked, parallel)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(Unsupported) as caught:
        decode(**fields)
    assert caught.value.path == path


# --------------------------------------------------------------------------------------------------- options


def test_options() -> None:
    asked = decode(temperature=0.5, top_p=0.9, stop_sequences=["END", "", "\n"], stream=True).options
    assert asked == Options(max_tokens=5, temperature=0.5, top_p=0.9, stop=("END", "\n"), stream=True)


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_structured_output(field: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "a": 1}}
    request = decode(**{field: {"format": form} if field == "output_config" else form})
    assert request.options.output == '{"a":1,"type":"object"}'
    assert not request.ignored


def test_a_count_needs_no_max_tokens_and_a_reply_does() -> None:
    assert decode(call="count", max_tokens="absent").items == (UserText("hi"),)
    for missing in ("absent", None):
        with pytest.raises(BadRequest, match="max_tokens: Field required"):
            decode(max_tokens=missing)


def test_everything_without_effect_is_named_once() -> None:
    marked = {"cache_control": {"type": "ephemeral"}}
    request = decode(
        {"role": "user", "content": [text("a", **marked, citations=None), text("b", **marked)], "id": "x"},
        {"role": "assistant", "content": [{**use({}), "caller": {"type": "direct"}}]},
        {"role": "user", "content": [result([text("a", **marked)], toolset_name="t")]},
        {"role": "system", "content": "s", "clear_at": "never"},
        system=[text("s", **marked)],
        tools=[{**TOOL, **marked, "defer_loading": True, "eager_input_streaming": True, "strict": None}],
        tool_choice={"type": "auto", "x": 1},
        output_config={"effort": "high"},
        thinking={"type": "adaptive"},
        metadata={"user_id": "u"},
        context_management={"edits": []},
        mcp_servers=[],
        container=None,
        top_k=5,
        betas=["b"],
    )
    assert request.ignored == tuple(
        sorted(
            [
                *("betas", "context_management", "mcp_servers", "metadata", "thinking", "top_k"),
                *("messages[].id", "messages[].clear_at", "messages[].content[].cache_control"),
                *("messages[].content[].caller", "messages[].content[].toolset_name"),
                *("messages[].content[].content[].cache_control", "output_config.effort", "system[].cache_control"),
                *("tool_choice.x", "tools[].cache_control", "tools[].defer_loading", "tools[].eager_input_streaming"),
            ]
        )
    )


def test_names_are_few_and_short() -> None:
    ignored = decode(**{f"k{n}" * 50: n for n in range(1000)}).ignored
    assert len(ignored) == 64 and max(map(len, ignored)) <= 64


def test_moving_a_cache_mark_changes_nothing() -> None:
    marked = decode({"role": "user", "content": [text("a", cache_control={"type": "ephemeral"})]}, HI)
    assert marked.items == decode({"role": "user", "content": "a"}, HI).items


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model": "absent"}, ""),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [HI, {"role": "user", "content": [{"type": 3}]}]}, "messages[1].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [use({})]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [result("a")]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [use(5)]}]}, "messages[0].content[0].input"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0].tool_use_id"),
        (
            {"messages": [{"role": "user", "content": [result([{"type": "text"}])]}]},
            "messages[0].content[0].content[0].text",
        ),
        ({"messages": [{"role": "user", "content": [result({"a": 1})]}]}, "messages[0].content[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].source"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "input_schema": []}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
    ],
)
def test_errors_name_the_field(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    assert caught.value.path == path
