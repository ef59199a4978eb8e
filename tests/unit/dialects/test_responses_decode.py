"""Responses requests: items to turns, what is named, what is refused."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from typing import Any

import pytest

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import Assistant, Request, System, ToolCall, ToolResult, UserMedia, UserText
from tugline.dialects.responses import ResponsesDialect
from tugline.dialects.responses_wire import seal

DIALECT = ResponsesDialect()
PNG = base64.b64encode(b"\x89PNG").decode()
IMAGE = UserMedia("image/png", sha256(b"\x89PNG").hexdigest())

RS = {"type": "reasoning", "id": "rs_x", "summary": [{"type": "summary_text", "text": "Hm. "}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"a" : 1.0}'}
OUT = {"type": "function_call_output", "call_id": "c1", "output": "ok"}
CALLED = (ToolCall("c1", "bash", '{"a" : 1.0}'),)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def decode(*items: dict[str, Any], **body: Any) -> Request:
    return DIALECT.decode(json.dumps({"model": "m", "input": list(items), **body}).encode(), {})


def refused(*items: dict[str, Any], **body: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decode(*items, **body)
    return caught.value


# ------------------------------------------------------------------------------------------------ turns


def test_reasoning_messages_and_calls_are_one_turn() -> None:
    request = decode(user("a"), RS, says("One, "), says("two."), CALL, {**CALL, "call_id": "c2"}, OUT)
    calls = (ToolCall("c1", "bash", '{"a" : 1.0}'), ToolCall("c2", "bash", '{"a" : 1.0}'))
    assert request.items == (UserText("a"), Assistant("One, two.", "Hm. ", calls), ToolResult("c1", "ok"))
    assert request.ignored == ()


@pytest.mark.parametrize(
    ("wire", "turns"),
    [
        ([RS, says("a"), RS, says("b")], [Assistant("a", "Hm. "), Assistant("b", "Hm. ")]),
        (
            [says("a"), CALL, says("b")],
            [Assistant("a", None, (ToolCall("c1", "bash", '{"a" : 1.0}'),)), Assistant("b")],
        ),
        ([CALL, RS], [Assistant(calls=(ToolCall("c1", "bash", '{"a" : 1.0}'),)), Assistant(None, "Hm. ")]),
        ([RS, RS, says("b")], [Assistant(None, "Hm. "), Assistant("b", "Hm. ")]),
        ([RS], [Assistant(None, "Hm. ")]),
        ([says("")], [Assistant()]),
        ([{"role": "assistant", "content": None}], [Assistant()]),
    ],
)
def test_order_decides_where_a_turn_ends(wire: list[dict[str, Any]], turns: list[Assistant]) -> None:
    assert list(decode(*wire).items) == turns


def test_ids_of_ours_part_what_order_would_join_and_join_what_it_would_part() -> None:
    """A message whose stream was cut is kept by the client, and the next reply's message follows it."""
    cut, again = says("half", id="msg_tug_aaa"), says("whole", id="msg_tug_bbb")
    assert decode(cut, again).items == (Assistant("half"), Assistant("whole"))
    assert decode(says("a"), says("b")).items == (Assistant("ab"),)
    assert decode(says("a", id="msg_1"), says("b", id="msg_2")).items == (Assistant("ab"),), "not our ids"
    call = {**CALL, "id": "fc_tug_aaa_0"}
    swapped = decode(call, cut, {**RS, "id": "rs_tug_aaa"}).items
    assert swapped == decode(RS, says("half"), CALL).items


@pytest.mark.parametrize("strip", ["rs", "msg", "fc", "all"])
def test_a_turn_whose_ids_were_stripped_is_the_same_turn(strip: str) -> None:
    turn = [{**RS, "id": "rs_tug_aaa"}, says("a", id="msg_tug_aaa"), {**CALL, "id": "fc_tug_aaa_0"}]
    following = [OUT, {**RS, "id": "rs_tug_bbb"}, says("b", id="msg_tug_bbb")]
    whole = [*turn, *following]
    bare = [{k: v for k, v in i.items() if k != "id" or not (strip == "all" or v.startswith(strip))} for i in whole]
    assert decode(*bare).items == decode(*whole).items


def test_a_call_is_named_with_its_namespace_and_custom_input_is_an_object() -> None:
    namespaced = {**CALL, "namespace": "team", "name": "spawn"}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": '*** a\n"é"'}
    result = {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done"}
    said, answer = decode(namespaced, custom, result).items
    assert said == Assistant(
        calls=(ToolCall("c1", "team__spawn", '{"a" : 1.0}'), ToolCall("c2", "patch", '{"input":"*** a\\n\\"é\\""}'))
    )
    assert answer == ToolResult("c2", "Done")


def test_arguments_as_an_object_keep_the_spelling_of_numbers() -> None:
    body = b'{"model":"m","input":[{"type":"function_call","call_id":"c","name":"f","arguments":{"n": 1.0, "e": 1e3}}]}'
    request = DIALECT.decode(body, {})
    assert request.items == (Assistant(calls=(ToolCall("c", "f", '{"n":1.0,"e":1e3}'),)),)
    assert request.ignored == ("input[].arguments:object",)


# -------------------------------------------------------------------------------------------- reasoning


@pytest.mark.parametrize(
    ("item", "text", "ignored"),
    [
        ({"summary": [], "encrypted_content": seal("Hm. \n")}, "Hm. \n", ()),
        ({"summary": [{"type": "summary_text", "text": "Hm."}], "encrypted_content": seal("Hm. \n")}, "Hm. \n", ()),
        (
            {"summary": [{"type": "summary_text", "text": "Edited"}], "encrypted_content": seal("Hm.")},
            "Edited",
            ("input[].encrypted_content",),
        ),
        ({"summary": [], "encrypted_content": "gAAAAforeign"}, None, ("input[].encrypted_content",)),
        ({"summary": [], "encrypted_content": seal("Hm.")[:-4]}, None, ("input[].encrypted_content",)),
        ({"summary": [], "encrypted_content": seal("Hm.") + "AAAA"}, None, ("input[].encrypted_content",)),
        ({"content": [{"type": "reasoning_text", "text": "Raw"}], "summary": []}, "Raw", ()),
        (
            {
                "content": [{"type": "reasoning_text", "text": "Raw"}],
                "summary": [{"type": "summary_text", "text": "S"}],
            },
            "Raw",
            ("input[].summary",),
        ),
        ({"summary": [{"type": "summary_text", "text": t} for t in ("a", "b")], "content": None}, "ab", ()),
        ({"summary": []}, None, ()),
    ],
)
def test_reasoning(item: dict[str, Any], text: str | None, ignored: tuple[str, ...]) -> None:
    request = decode({"type": "reasoning", "id": "rs_1", **item})
    assert request.items == ((Assistant(reasoning=text),) if text else ()), "a turn without anything to show is none"
    assert request.ignored == ignored
    whole = decode({"type": "reasoning", "id": "rs_1", **item}, says("a")).items
    assert whole == (Assistant("a", text),)


def test_a_token_that_unpacks_without_end_is_not_ours() -> None:
    import zlib

    bomb = "tug1." + base64.urlsafe_b64encode(zlib.compress(b"a" * (20 << 20))).decode()
    assert decode({"type": "reasoning", "summary": [], "encrypted_content": bomb}).items == ()


# ------------------------------------------------------------------------------------------------ users


def test_instructions_stand_first_and_system_text_where_it_stands() -> None:
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": t} for t in "ab"]}
    request = decode(developer, user("u"), {"role": "system", "content": "s"}, instructions="Be brief.")
    assert request.items == (
        System("Be brief.", "instructions"),
        System("ab", "developer"),
        UserText("u"),
        System("s", "system"),
    )
    assert decode(user("u"), instructions="").items == decode(user("u"), instructions=None).items == (UserText("u"),)


def test_a_string_is_one_user_text() -> None:
    assert DIALECT.decode(b'{"model": "m", "input": " hi\\n"}', {}).items == (UserText(" hi\n"),)


def test_text_parts_of_a_message_are_one_item_and_media_keep_their_place() -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "high"}
    content = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}, image]
    content.append({"type": "input_text", "text": "c"})
    request = decode({"role": "user", "content": content})
    assert request.items == (UserText("ab"), UserMedia("image/png", IMAGE.digest, True), UserText("c", True))
    assert request.ignored == ("input[].content[].detail",)
    assert decode({"role": "user", "content": []}).items == (UserText(""),)


@pytest.mark.parametrize(
    ("part", "media_type"),
    [
        ({"type": "input_image", "image_url": "https://x/y.png"}, "image/*"),
        ({"type": "input_image", "file_id": "file_1"}, "image/*"),
        ({"type": "input_file", "file_id": "file_1"}, "application/octet-stream"),
        ({"type": "input_file", "file_url": "https://x/y.pdf"}, "application/octet-stream"),
        (
            {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PNG}"},
            "application/pdf",
        ),
        ({"type": "input_file", "file_data": PNG}, "application/octet-stream"),
        ({"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}, "audio/*"),
    ],
)
def test_media(part: dict[str, Any], media_type: str) -> None:
    (item,) = decode({"role": "user", "content": [part]}).items
    assert isinstance(item, UserMedia) and item.media_type == media_type
    if "file_data" in part:
        assert item.digest == IMAGE.digest, "the digest is that of the bytes"


def test_bare_parts_are_items_of_one_message_that_may_still_grow() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}]
    parts.append({"type": "input_text", "text": "b"})
    whole = decode(*parts, says("k"), parts[0]).items
    assert whole[:3] == (UserText("a"), UserMedia("image/png", IMAGE.digest, True), UserText("b", True))
    assert whole[3:] == (Assistant("k"), UserText("a"))
    for n in range(1, 4):
        assert decode(*parts[:n]).items == whole[:n]


def test_what_tools_answer() -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
    parts = [{"type": "input_text", "text": "a"}, image, {"type": "output_text", "text": "b"}]
    request = decode(
        {"type": "function_call_output", "call_id": "c", "name": "f", "namespace": "n", "output": parts},
        {"type": "function_call_output", "id": "fco_1", "call_id": "d", "output": ""},
        {"type": "function_call_output", "call_id": "e", "output": [], "status": "incomplete"},
        {"type": "function_call_output", "call_id": "f", "output": {"content": "bad", "success": True}},
    )
    media = (UserMedia("image/png", IMAGE.digest, True),)
    empty = (ToolResult("d", ""), ToolResult("e", ""))
    assert request.items == (ToolResult("c", "ab", "n__f", media), *empty, ToolResult("f", "bad"))
    assert request.ignored == ("input[].status", "input[].output.success")


def test_calls_of_tools_that_the_api_defines_keep_their_meaning() -> None:
    action = {"type": "exec", "command": ["ls"], "env": {}}
    request = decode(
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1", "action": action, "status": "completed"},
        {"type": "local_shell_call_output", "id": "c1", "output": '{"stdout":"a"}'},
        {"type": "shell_call", "call_id": "c2", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c2", "output": [{"stdout": "a", "stderr": "", "outcome": None}]},
        {"type": "apply_patch_call", "call_id": "c3", "operation": {"type": "delete_file", "path": "p"}},
        {"type": "apply_patch_call_output", "call_id": "c3", "status": "failed"},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "git", "name": "log", "arguments": "{}", "output": "x"},
    )
    calls = [item.calls[0] for item in request.items if isinstance(item, Assistant)]
    assert calls == [
        ToolCall("c1", "local_shell", '{"type":"exec","command":["ls"],"env":{}}'),
        ToolCall("c2", "shell", '{"commands":["ls"]}'),
        ToolCall("c3", "apply_patch", '{"type":"delete_file","path":"p"}'),
        ToolCall("mcp_1", "git__log", "{}"),
    ]
    results = [item.text for item in request.items if isinstance(item, ToolResult)]
    assert results == ['{"stdout":"a"}', '[{"stdout":"a","stderr":"","outcome":null}]', "failed", "x"]


# ------------------------------------------------------------------------------- what is named, what refused


def test_what_has_no_effect_is_named_once() -> None:
    request = decode(
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
        {"type": "web_search_call", "id": "ws_2"},
        {"type": "image_generation_call", "id": "ig_1", "result": "AAAA", "status": "completed"},
        {"type": "mcp_list_tools", "id": "l", "server_label": "s", "tools": []},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "of_next_year", "content": 5},
        says("a", phase="final_answer", status="incomplete"),
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "u", "cache_control": {"type": "x"}}, {"type": "odd"}],
        },
        {"role": "developer", "content": [{"type": "input_image", "image_url": "https://x"}], "metadata": {"a": 1}},
        store=False,
        metadata={"a": "b"},
        user=None,
        text={"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}},
        tools=[{"type": "web_search"}, {"type": "function", "name": "f", "strict": True, "defer_loading": True}],
    )
    assert request.ignored == (
        "store",
        "metadata",
        "text.format.strict",
        "text.verbosity",
        "input[]:web_search_call",
        "input[]:image_generation_call",
        "input[]:mcp_list_tools",
        "input[]:configuration_update",
        "input[]:of_next_year",
        "input[].phase",
        "input[].status",
        "input[].content[].cache_control",
        "input[].content[]:odd",
        "input[].content[]:input_image",
        "input[].metadata",
        "tools[]:web_search",
        "tools[].strict",
        "tools[].defer_loading",
    )


def test_names_are_bounded() -> None:
    names = decode(user("a"), **{f"{'k' * 500}{i}": 1 for i in range(300)}).ignored
    assert len(names) <= 64 and max(map(len, names)) <= 100


def test_ordinary_traffic_names_nothing_of_its_items() -> None:
    items = [
        {**RS, "encrypted_content": seal("Hm. ")},
        says("a", status="completed"),
        {**CALL, "status": "completed"},
        OUT,
    ]
    tool = {"type": "function", "name": "bash", "parameters": {"type": "object"}, "strict": False}
    assert decode(user("u"), *items, tools=[tool], tool_choice="auto", stream=True).ignored == ()


@pytest.mark.parametrize(
    "kind",
    ["item_reference", "compaction", "compaction_summary", "compaction_trigger", "mcp_approval_response"],
)
def test_items_whose_meaning_would_be_lost(kind: str) -> None:
    err = refused(user("a"), {"type": kind, "id": "x", "encrypted_content": "y"})
    assert isinstance(err, Unsupported) and err.path == "input[1].type"


def test_a_reference_may_lack_its_type() -> None:
    assert isinstance(refused({"id": "msg_1"}), Unsupported)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"conversation": {"id": "conv_1"}}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice.type"),
    ],
)
def test_what_cannot_be_done(body: dict[str, Any], path: str) -> None:
    err = refused(user("a"), **body)
    assert isinstance(err, Unsupported) and err.path == path


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({}, "input[0].type"),
        ({"type": 5}, "input[0].type"),
        ({"role": "tool", "content": "a"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "user", "content": [5]}, "input[0].content[0]"),
        ({"role": "user", "content": [{"text": "a"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": {"url": "u"}}]},
            "input[0].content[0].image_url",
        ),
        ({"role": "user", "content": [{"type": "input_file"}]}, "input[0].content[0].file_data"),
        ({"type": "function_call", "call_id": "c"}, "input[0].name"),
        ({"type": "function_call", "call_id": "c", "name": "f", "arguments": 5}, "input[0].arguments"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "f", "input": {}}, "input[0].input"),
        ({"type": "function_call_output", "output": "a"}, "input[0].call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": {"content": 5}}, "input[0].output.content"),
        ({"type": "reasoning", "summary": "text?", "encrypted_content": 5}, "input[0].encrypted_content"),
    ],
)
def test_malformed_items_name_their_field(item: dict[str, Any], path: str) -> None:
    assert refused(item).path == path


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"input": "a"}', "model"),
        (b'{"model": "m"}', "input"),
        (b'{"model": "m", "input": []}', "input"),
        (b'{"model": "m", "input": 5}', "input"),
        (b'{"model": "m", "input": "a", "max_output_tokens": 0}', "max_output_tokens"),
        (b'{"model": "m", "input": "a", "temperature": -1}', "temperature"),
        (b'{"model": "m", "input": "a", "top_p": 2}', "top_p"),
        (b'{"model": "m", "input": "a", "instructions": ["a"]}', "instructions"),
        (b'{"model": "m", "input": "a", "tools": [{"type": "function"}]}', "tools[0].name"),
        (
            b'{"model": "m", "input": "a", "tools": [{"type": "function", "name": "f", "parameters": []}]}',
            "tools[0].parameters",
        ),
        (
            b'{"model": "m", "input": "a", "tools": [{"type": "namespace", "name": "n", "tools": [{}]}]}',
            "tools[0].tools[0].name",
        ),
        (b'{"model": "m", "input": "a", "tools": [5]}', "tools[0]"),
        (b'{"model": "m", "input": "a", "tool_choice": "any"}', "tool_choice"),
        (b'{"model": "m", "input": "a", "tool_choice": {"type": "function"}}', "tool_choice.name"),
        (b'{"model": "m", "input": "a", "tool_choice": {"type": "allowed_tools", "mode": "none"}}', "tool_choice.mode"),
        (b'{"model": "m", "input": "a", "text": {"format": {"type": "json_schema"}}}', "text.format.schema"),
        (b'{"model": "m", "input": [{"role": "user", "content": "\\ud800"}]}', ""),
        (b'{"model": "m", "input": "' + b"\xff" + b'"}', "input"),
    ],
)
def test_malformed_bodies_name_their_field(body: bytes, path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        DIALECT.decode(body, {})
    assert caught.value.path == path


def test_a_count_needs_neither_model_nor_input() -> None:
    count = next(route for route in DIALECT.routes if route.kind == "count")
    request = DIALECT.decode(b'{"instructions": "a"}', dict(count.params))
    assert request.items == (System("a", "instructions"),)
    assert DIALECT.decode(b"{}", dict(count.params)).items == ()


def test_previous_response() -> None:
    assert decode(user("a"), previous_response_id="resp_0abc").previous == "0abc"
    assert decode(user("a"), previous_response_id="other-1").previous == "other-1"
    assert decode(user("a"), previous_response_id=None).previous is None
    assert DIALECT.decode(b'{"model": "m", "previous_response_id": "resp_1"}', {}).items == ()


def test_many_items_take_time_in_proportion() -> None:
    """Hostile lists: no step looks at all that came before."""
    import time

    def cost(n: int) -> float:
        items = [says(str(i)) if i % 2 else CALL for i in range(n)]
        tools = [{"type": "function", "name": f"f{i}"} for i in range(n // 10)]
        data = json.dumps({"model": "m", "input": [*items, {"type": "additional_tools", "tools": tools}]}).encode()
        best = []
        for _ in range(3):
            began = time.process_time()
            DIALECT.decode(data, {})
            best.append(time.process_time() - began)
        return min(best)

    small = cost(2_000)
    assert cost(20_000) < 40 * small
