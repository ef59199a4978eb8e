"""What each part of a Gemini request becomes, what is refused, and that the rest is named."""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from typing import Any

import pytest

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import Assistant, Item, Options, Prefill, Request, System, ToolCall, ToolResult, UserText
from tugline.core.items import UserMedia as Media
from tugline.dialects import GeminiDialect
from tugline.testing.dialect_suite import reply_of

DIALECT = GeminiDialect()
USER = {"role": "user", "parts": [{"text": "a"}]}
LAST = {"role": "user", "parts": [{"text": "z"}]}


def decode(body: dict[str, Any], **params: str) -> Request:
    return DIALECT.decode(json.dumps({"contents": [USER], **body}).encode(), {"model": "m", **params})


def items(*contents: Any) -> tuple[Item, ...]:
    return decode({"contents": list(contents)}).items


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def call(name: str, **more: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": {}, **more}}


def answer(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"functionResponse": {"name": name, "response": {"output": text}, **more}}


def answered(*contents: Any) -> list[tuple[str, str]]:
    """(text of the result, id of the call it answers)."""
    return [(i.text, i.call_id) for i in items(USER, *contents) if isinstance(i, ToolResult)]


def test_both_spellings_of_names() -> None:
    camel = {
        "systemInstruction": {"parts": [{"text": "s"}]},
        "generationConfig": {"maxOutputTokens": 5, "topP": 0.5, "stopSequences": ["x"], "candidateCount": 1},
        "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": {"type": "object"}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "contents": [
            user({"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
            model({"functionCall": {"name": "f"}, "thoughtSignature": "AAAA"}),
            user({"functionResponse": {"name": "f", "response": {}}}),
            user({"fileData": {"fileUri": "u", "mimeType": "image/png"}}),
        ],
    }

    def snake(value: Any) -> Any:
        if isinstance(value, list):
            return [snake(v) for v in value]
        if isinstance(value, dict):
            return {"".join(f"_{c.lower()}" if c.isupper() else c for c in k): snake(v) for k, v in value.items()}
        return value

    one, two = decode(camel), decode(snake(camel))
    assert (one.items, one.head, one.options) == (two.items, two.head, two.options)
    assert one.options == Options(max_tokens=5, top_p=0.5, stop=("x",), tool_choice="f")
    assert one.ignored == ("contents[].parts[].thoughtSignature",)
    assert two.ignored == ("contents[].parts[].thoughtSignature",)


@pytest.mark.parametrize(
    "system",
    [
        "s",
        {"parts": [{"text": "s"}]},
        {"parts": {"text": "s"}, "role": "system"},
        {"role": "user", "parts": [{"text": "s"}]},
    ],
)
def test_system(system: Any) -> None:
    request = decode({"systemInstruction": system})
    assert request.items == (System("s"), UserText("a")) and request.ignored == ()


def test_each_system_part_is_an_item_and_what_is_no_text_is_named() -> None:
    request = decode({"systemInstruction": {"parts": [{"text": "a\n"}, {"inlineData": {}}, {"text": ""}]}})
    assert request.items[:2] == (System("a\n"), System(""))
    assert request.ignored == ("systemInstruction.parts[].inlineData",)


def test_one_object_stands_for_a_list_of_one() -> None:
    request = decode({"contents": {"parts": {"text": "a"}}, "tools": {"functionDeclarations": {"name": "f"}}})
    assert request.items == (UserText("a"),) and [t.name for t in request.head.tools] == ["f"]


def test_roles() -> None:
    for role in ("user", "function", "tool", "", None):
        assert items({"role": role, "parts": [{"text": "a"}]}) == (UserText("a"),)
    with pytest.raises(BadRequest, match=r"contents\[1\].role") as caught:
        items(USER, {"role": "system", "parts": []})
    assert caught.value.path == "contents[1].role"


def test_user_parts() -> None:
    png = {"inlineData": {"mimeType": "image/png", "data": "AAAA", "displayName": "x"}}
    image = sha256(b"\0\0\0").hexdigest()
    assert items(user({"text": "a"}, {"text": "b"}, png, {"text": "c"}, {"text": "d"})) == (
        UserText("ab"),
        Media("image/png", image, joined=True),
        UserText("cd", joined=True),
    )
    assert items(user(png, png)) == (Media("image/png", image), Media("image/png", image, joined=True))
    assert items(user()) == items({"role": "user"}) == (UserText(""),)
    assert decode({"contents": [user(png)]}).ignored == ("contents[].parts[].inlineData.displayName",)


def test_text_behind_a_result_is_a_message_of_its_own_as_in_chat() -> None:
    got = items(USER, model(call("f", id="1")), user(answer("f", "r", id="1"), {"text": "t"}, {"text": "u"}))
    assert got[2:] == (ToolResult("1", "r", "f"), UserText("tu"))
    image = {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}
    got = items(USER, model(call("f", id="1")), user(answer("f", "r", id="1"), image, {"text": "t"}))
    assert [i.joined for i in got[3:]] == [False, True]  # type: ignore[union-attr]


def test_images_in_a_result() -> None:
    parts = [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}, {"fileData": {"fileUri": "gs://x"}}]
    (result,) = items(USER, model(call("f", id="1")), user(answer("f", "see", id="1", parts=parts)))[2:]
    assert isinstance(result, ToolResult) and result.text == "see"
    assert [m.media_type for m in result.media] == ["image/png", "application/octet-stream"]


@pytest.mark.parametrize("alphabet", [base64.b64encode, base64.urlsafe_b64encode])
def test_one_image_is_one_item_in_either_alphabet(alphabet: Any) -> None:
    data = bytes(range(256))
    (got,) = items(user({"inlineData": {"mimeType": "image/png", "data": alphabet(data).decode()}}))
    assert got == Media("image/png", sha256(data).hexdigest())


def test_a_model_content_is_one_turn() -> None:
    got = items(
        USER,
        model(
            {"text": "r1", "thought": True}, {"text": "a"}, call("f"), {"text": "b"}, {"text": "r2", "thought": True}
        ),
        LAST,
    )
    assert got[1] == Assistant("ab", "r1r2", (ToolCall("f", "f", "{}"),))


def test_model_contents_in_a_row_are_turns_of_their_own() -> None:
    got = items(USER, model({"text": "a"}), model({"text": "b"}), LAST)
    assert got[1:3] == (Assistant("a"), Assistant("b"))


def test_chunks_of_one_reply_are_one_turn_and_two_replies_are_two() -> None:
    def chunks(said: Assistant, reply_id: str) -> list[Any]:
        from dataclasses import replace

        parts, terminal = DIALECT.stream(replace(reply_of(said), id=reply_id))
        return [json.loads(part[6:])["candidates"][0]["content"] for part in (*parts, terminal)]

    said = Assistant("text", "why", (ToolCall("c", "f", "{}"),))
    one, two = chunks(said, "1"), chunks(said, "2")
    assert len(one) == 4
    assert items(USER, *one, LAST)[1:-1] == (said,)
    assert items(USER, *one, *two, LAST)[1:-1] == (said, said)
    prefilled = items(USER, model({"text": "Say: "}), *one, LAST)
    assert prefilled[1:-1] == (Assistant("Say: text", "why", said.calls),)


def test_reasoning_survives_clients_that_keep_signatures_only() -> None:
    """Gemini CLI drops thoughts; others trim them. What a client changed is as it says."""
    said = Assistant("text", " why \n", (ToolCall("c", "f", "{}"),))
    thought, *rest = json.loads(DIALECT.encode(reply_of(said)))["candidates"][0]["content"]["parts"]

    def echoed(*parts: Any) -> tuple[Any, tuple[str, ...]]:
        request = decode({"contents": [USER, model(*parts), LAST]})
        return request.items[1], request.ignored

    assert echoed(*rest) == echoed({**thought, "text": "why"}, *rest) == echoed(thought, *rest) == (said, ())
    other, named = echoed({**thought, "text": "changed"}, *rest)
    assert other.reasoning == "changed" and named == ("contents[].parts[].thoughtSignature",)
    rest[1].pop("thoughtSignature")
    assert echoed(*rest) == (Assistant("text", None, said.calls), ())


def test_empty_model_contents() -> None:
    assert items(USER, model(), LAST)[1] == Assistant()
    assert items(USER, model({"text": ""}), LAST)[1] == Assistant()
    assert items(USER, model({"text": "a"}), model({"text": ""}), LAST) == (*items(USER, model({"text": "a"}), LAST),)


def test_a_last_turn_of_plain_text_is_gone_on_with() -> None:
    assert items(USER, model({"text": "a"}, {"text": "b"}))[1:] == (Prefill("ab"),)
    own = DIALECT.encode(reply_of(Assistant("a")))
    assert items(USER, json.loads(own)["candidates"][0]["content"])[1:] == (Assistant("a"),)
    assert items(USER, model({"text": "a"}, call("f")))[1] == Assistant("a", None, (ToolCall("f", "f", "{}"),))
    assert items(USER, model({"text": ""}))[1] == Assistant()


def test_results_answer_by_id() -> None:
    calls = model(call("f", id="1"), call("g", id="2"), call("f", id="3"))
    assert answered(calls, user(answer("f", "x", id="3"), answer("g", "y", id="2"), answer("f", "z"))) == [
        ("x", "3"),
        ("y", "2"),
        ("z", "1"),
    ]


def test_results_without_ids_answer_the_next_call_of_their_name() -> None:
    calls = model(call("f"), call("g"), call("f"))
    got = items(USER, calls, LAST)[1]
    assert isinstance(got, Assistant) and [c.id for c in got.calls] == ["f", "g", "f#2"]
    assert answered(calls, user(answer("g", "x"), answer("f", "y")), user(answer("f", "z"))) == [
        ("x", "g"),
        ("y", "f"),
        ("z", "f#2"),
    ]


def test_ids_given_by_one_side_only() -> None:
    assert answered(model(call("f", id="1"), call("f", id="2")), user(answer("f", "x"), answer("f", "y"))) == [
        ("x", "1"),
        ("y", "2"),
    ]
    assert answered(model(call("f"), call("g")), user(answer("g", "x", id="7"), answer("f", "y", id="8"))) == [
        ("x", "g"),
        ("y", "f"),
    ]
    assert answered(model(call("f", id="1")), user(answer("f", "x", id="other"))) == [("x", "other")]
    assert answered(user(answer("f", "x"), answer("g", "y", id="9"))) == [("x", "f"), ("y", "9")]


def test_names_start_anew_with_each_turn() -> None:
    got = answered(model(call("f")), user(answer("f", "x")), model(call("f"), call("f")), user(answer("f", "y")))
    assert got == [("x", "f"), ("y", "f")]
    turns = items(USER, model(call("f")), user(answer("f", "x")), model(call("f"), call("f")), LAST)
    assert [c.id for t in turns if isinstance(t, Assistant) for c in t.calls] == ["f", "f", "f#2"]


@pytest.mark.parametrize(
    ("response", "text", "named"),
    [
        ({"output": "x\n"}, "x\n", False),
        ({"result": "x"}, "x", False),
        ({"error": "x"}, "x", True),
        ({"output": ""}, "", False),
        ({"output": "x", "error": "y"}, '{"output":"x","error":"y"}', False),
        ({"result": {"n": 1}}, '{"result":{"n":1}}', False),
        ({"stdout": "x"}, '{"stdout":"x"}', False),
        ({}, "{}", False),
        (None, "", False),
        ("text", "text", False),
        ([1, {"a": 2}], '[1,{"a":2}]', False),
    ],
)
def test_responses(response: Any, text: str, named: bool) -> None:
    request = decode({"contents": [USER, user({"functionResponse": {"name": "f", "response": response}})]})
    assert request.items[1] == ToolResult("f", text, "f")
    assert ("contents[].parts[].functionResponse.response:error" in request.ignored) is named


def test_numbers_stay_as_spelled() -> None:
    body = b"""{"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f",
      "args": {"a" :  1.0, "b": 1e3, "c": 12345678901234567890123, "d": "\\u00e9"}}}]},
      {"parts": [{"functionResponse": {"name": "f", "response": {"n": 2.50}}}]}]}"""
    turn, result = DIALECT.decode(body, {}).items
    assert isinstance(turn, Assistant) and isinstance(result, ToolResult)
    assert turn.calls[0].arguments == '{"a":1.0,"b":1e3,"c":12345678901234567890123,"d":"\\u00e9"}'
    assert result.text == '{"n":2.50}'


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"a": 1}, '{"a":1}'),
        ({}, "{}"),
        (None, ""),
        ('{"a": 1, }', '{"a": 1, }'),
        ({"__raw_arguments": "{broken"}, "{broken"),
        ({"__raw_arguments": 1}, '{"__raw_arguments":1}'),
        ({"__raw_arguments": "x", "y": 1}, '{"__raw_arguments":"x","y":1}'),
        ([1], "[1]"),
    ],
)
def test_arguments(args: Any, text: str) -> None:
    turn = items(USER, model({"functionCall": {"name": "f", "args": args}}), LAST)[1]
    assert isinstance(turn, Assistant) and turn.calls[0].arguments == text


def test_what_the_apis_own_tools_left_is_text_and_named() -> None:
    code, output = {"code": "1+1", "language": "PYTHON"}, {"outcome": "OUTCOME_OK", "output": "2\n"}
    request = decode({"contents": [USER, model({"executableCode": code}, {"codeExecutionResult": output}), LAST]})
    assert request.items[1] == Assistant("1+12\n")
    assert request.ignored == (
        "contents[].parts[]:executableCode",
        "contents[].parts[]:codeExecutionResult",
    )


def test_content_without_effect_is_named() -> None:
    request = decode(
        {
            "contents": [
                {**user({"text": "a", "videoMetadata": {"fps": 1}, "x": None}), "extra": 1},
                model({"inlineData": {"data": ""}}, {"text": "b", "partMetadata": {}}),
                user({"functionResponse": {"name": "f", "scheduling": "SILENT", "willContinue": True}}, {}),
            ]
        }
    )
    assert request.ignored == (
        "contents[].extra",
        "contents[].parts[].videoMetadata",
        "contents[].parts[].inlineData",
        "contents[].parts[].partMetadata",
        "contents[].parts[].functionResponse.scheduling",
        "contents[].parts[].functionResponse.willContinue",
    )


def test_names_are_bounded() -> None:
    request = decode({f"k{'x' * 200}{i}": 1 for i in range(1000)})
    assert len(request.ignored) <= 64 and all(len(name) <= 64 for name in request.ignored)


# ----------------------------------------------------------------------------------------------------- tools


def specs(tools: Any) -> list[dict[str, Any]]:
    return [json.loads(tool.spec) for tool in decode({"tools": tools}).head.tools]


def test_declarations_become_what_chat_sends() -> None:
    schema = {"type": "OBJECT", "properties": {"type": {"type": "STRING", "enum": ["STRING"]}}, "required": ["type"]}
    lowered = {"type": "object", "properties": {"type": {"type": "string", "enum": ["STRING"]}}, "required": ["type"]}
    for field in ("parameters", "parametersJsonSchema"):
        got = decode({"tools": [{"functionDeclarations": [{field: schema, "description": "d", "name": "f"}]}]})
        expected = {"type": "function", "function": {"name": "f", "description": "d", "parameters": lowered}}
        assert got.head.tools[0].spec == json.dumps(expected, separators=(",", ":")) and got.ignored == ()
    assert specs([{"functionDeclarations": [{"name": "f"}]}]) == [{"type": "function", "function": {"name": "f"}}]


def test_a_schema_in_json_schemas_own_words_is_sent_on_as_it_is_spelled() -> None:
    body = b'{"contents":[{"parts":[{"text":"a"}]}],"tools":[{"functionDeclarations":[{"name":"f","parameters":%s}]}]}'
    schema = b'{"type":"object","properties":{"n":{"type":"number","default":1.0,"maximum":1e3}}}'
    assert schema.decode() in DIALECT.decode(body % schema, {}).head.tools[0].spec


def test_the_python_sdks_keywords() -> None:
    schema = {"any_of": [{"type": "STRING", "min_length": "2"}], "properties": {"any_of": {"type": "BOOLEAN"}}}
    (spec,) = specs([{"functionDeclarations": [{"name": "f", "parameters": schema}]}])
    assert spec["function"]["parameters"] == {
        "anyOf": [{"type": "string", "minLength": "2"}],
        "properties": {"any_of": {"type": "boolean"}},
    }


def test_tools_in_order_and_the_providers_own_are_named() -> None:
    request = decode(
        {
            "tools": [
                {"functionDeclarations": [{"name": "a", "behavior": "BLOCKING"}, {"name": "b"}]},
                {"googleSearch": {}},
                {"codeExecution": {}, "functionDeclarations": [{"name": "c"}]},
                {"url_context": {}},
            ]
        }
    )
    assert [t.name for t in request.head.tools] == ["a", "b", "c"]
    assert request.ignored == (
        "tools[].functionDeclarations[].behavior",
        "tools[]:googleSearch",
        "tools[]:codeExecution",
        "tools[]:url_context",
    )


@pytest.mark.parametrize(
    ("calling", "choice", "ignored"),
    [
        (None, "auto", ()),
        ({}, "auto", ()),
        ({"mode": "AUTO"}, "auto", ()),
        ({"mode": "MODE_UNSPECIFIED"}, "auto", ()),
        ({"mode": "none"}, "none", ()),
        ({"mode": "ANY"}, "required", ()),
        ({"mode": "ANY", "allowedFunctionNames": ["f"]}, "f", ()),
        (
            {"mode": "ANY", "allowedFunctionNames": ["f", "g"]},
            "required",
            ("toolConfig.functionCallingConfig.allowedFunctionNames",),
        ),
        ({"mode": "VALIDATED"}, "auto", ("toolConfig.functionCallingConfig.mode:VALIDATED",)),
    ],
)
def test_tool_choice(calling: Any, choice: str, ignored: tuple[str, ...]) -> None:
    tools = [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}]
    request = decode({"tools": tools, "toolConfig": {"functionCallingConfig": calling}})
    assert (request.options.tool_choice, request.ignored) == (choice, ignored)


# --------------------------------------------------------------------------------------------------- options


def test_options() -> None:
    config = {
        "maxOutputTokens": "5",
        "temperature": 1,
        "topP": 0.5,
        "stopSequences": ["x", ""],
        "seed": 2**62 + 1,
        "candidateCount": 1.0,
        "topK": 64,
        "thinkingConfig": {"includeThoughts": True},
        "responseModalities": ["TEXT"],
        "responseMimeType": "text/plain",
    }
    request = decode({"generationConfig": config, "safetySettings": []})
    assert request.options == Options(5, 1.0, 0.5, ("x",), 2**62 + 1)
    assert request.ignored == (
        "generationConfig.topK",
        "generationConfig.thinkingConfig",
        "generationConfig.responseModalities",
        "safetySettings",
    )


@pytest.mark.parametrize(
    ("config", "output"),
    [
        ({"responseMimeType": "application/json"}, "json_object"),
        ({"responseSchema": {"type": "STRING", "minLength": "3"}}, '{"minLength":3,"type":"string"}'),
        ({"responseMimeType": "application/json", "responseJsonSchema": {"type": "OBJECT"}}, '{"type":"object"}'),
        ({"_responseJsonSchema": {"type": "object"}}, '{"type":"object"}'),
        ({"responseFormat": {"text": {"mimeType": "APPLICATION_JSON"}}}, "json_object"),
        ({"responseFormat": [{"text": {"schema": {"type": "object"}}}]}, '{"type":"object"}'),
        ({}, None),
    ],
)
def test_output(config: dict[str, Any], output: str | None) -> None:
    assert decode({"generationConfig": config}).options.output == output


def test_how_the_reply_is_asked_for() -> None:
    assert decode({}).options == Options()
    assert decode({}, stream="1", **{"?alt": "sse"}).options == Options(stream=True)
    assert decode({}, stream="1").options == Options(form="array")
    assert decode({}, stream="1", **{"?alt": "json"}).options == Options(form="array")
    assert decode({}, **{"?alt": "sse"}).options == Options()


def test_the_model_is_in_the_path() -> None:
    for name in ("m", "models/m"):
        assert DIALECT.decode(b'{"contents":[{"parts":[{"text":"a"}]}]}', {"model": name}).model == "m"


def test_a_count_may_hold_the_whole_request() -> None:
    inner = {"model": "models/m", "contents": [USER], "systemInstruction": {"parts": [{"text": "s"}]}}
    request = DIALECT.decode(json.dumps({"generateContentRequest": inner}).encode(), {"model": "m"})
    assert request.items == (System("s"), UserText("a")) and request.ignored == ("generateContentRequest.model",)
    with pytest.raises(BadRequest) as caught:
        DIALECT.decode(b'{"generateContentRequest": {"contents": [{"role": "x"}]}}', {})
    assert caught.value.path == "generateContentRequest.contents[0].role"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"contents": []}, "contents"),
        ({"contents": None}, "contents"),
        ({"contents": [1]}, "contents[0]"),
        ({"contents": [{"parts": [{"text": 1}]}]}, "contents[0].parts[0].text"),
        ({"contents": [model({"functionCall": {"args": {}}})]}, "contents[0].parts[0].functionCall.name"),
        ({"contents": [user({"functionResponse": {}})]}, "contents[0].parts[0].functionResponse.name"),
        ({"contents": [user({"fileData": {}})]}, "contents[0].parts[0].fileData.fileUri"),
        ({"contents": [user(call("f"))]}, "contents[0].parts[0].functionCall"),
        ({"contents": [model(answer("f", "x"))]}, "contents[0].parts[0].functionResponse"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        (
            {"tools": [{"functionDeclarations": [{"name": "f", "parameters": 1}]}]},
            "tools[0].functionDeclarations[0].parameters",
        ),
        ({"toolConfig": {"functionCallingConfig": {"mode": "X"}}}, "toolConfig.functionCallingConfig.mode"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"maxOutputTokens": 1.5}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"temperature": "nan"}}, "generationConfig.temperature"),
        ({"generationConfig": {"temperature": -1}}, "generationConfig.temperature"),
        ({"generationConfig": {"topP": 2}}, "generationConfig.topP"),
        ({"generationConfig": {"seed": 10**30}}, "generationConfig.seed"),
        ({"generationConfig": {"stopSequences": ["x"] * 17}}, "generationConfig.stopSequences"),
        ({"generationConfig": {"responseSchema": []}}, "generationConfig.responseSchema"),
        ({"system_instruction": {"parts": [{"text": 1}]}}, "systemInstruction.parts[0].text"),
    ],
)
def test_wrong_fields_are_named(body: dict[str, Any], path: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode(body)
    assert caught.value.path == path and not isinstance(caught.value, Unsupported)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"cachedContent": "cachedContents/1"}, "cachedContent"),
        ({"continuationToken": "x"}, "continuationToken"),
        ({"generationConfig": {"candidateCount": 2}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "generationConfig.responseMimeType"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig.mode"),
    ],
)
def test_what_cannot_be_done_is_unsupported(body: dict[str, Any], path: str) -> None:
    with pytest.raises(Unsupported) as caught:
        decode(body)
    assert caught.value.path == path


def test_a_hostile_history_takes_linear_time() -> None:
    import time

    def seconds(n: int) -> float:
        signed = json.loads(DIALECT.encode(reply_of(Assistant("x" * 50))))["candidates"][0]["content"]
        contents = [signed] * n + [model(*[call("f")] * n), user(*[answer("f", "x")] * n)]
        body = json.dumps({"contents": contents}).encode()
        start = time.perf_counter()
        DIALECT.decode(body, {})
        return time.perf_counter() - start

    small = min(seconds(2000) for _ in range(3))
    assert seconds(16_000) < 40 * small + 0.5
