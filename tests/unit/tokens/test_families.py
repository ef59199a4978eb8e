"""Facts of single reply formats; what holds for all of them is in tests/property/test_families.py."""

# ruff: noqa: RUF001  # tokens are spelled with these very letters

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tugline.core.columns import concat, count, ids, ids_list
from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, Tool, ToolCall
from tugline.tokens.families import detect, families
from tugline.tokens.families.arguments import Schemas, typed
from tugline.tokens.families.reading import Reading
from tugline.tokens.model import Parsed
from unit.tokens.family_kit import NAMES, TOOLS, chat


def parse(name: str, text: str, prompt: str = "", finish: str = "stop", tools: tuple[Tool, ...] = TOOLS) -> Parsed:
    family, model = families()[name], chat(name)
    before = model.encode(f"{family.stop[0]}{prompt or family.form.header}")
    return model.parse(before, model.encode(text), finish, tools)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------------- detection

SIGNS = {
    "qwen3": '<|im_start|><tool_call>"arguments"',
    "granite-4": "<|start_of_role|><tool_call>",
    "qwen3.5": "<|im_start|><tool_call><function=",
    "nemotron-3": "<|im_start|><tool_call><function=<think></think>\\n</think>\\n",
    "nemotron-3-ultra": "<|im_start|><tool_call><function=<think></think>",
    "minimax-m2": "<minimax:tool_call>",
    "glm-4.5": "[gMASK]'\\n<tool_call>'<arg_key>",
    "glm-5": "[gMASK]'<tool_call>'<arg_key>",
    "laguna-xs": "<assistant>\\n</assistant><arg_key>",
    "laguna-s": "<assistant></assistant><arg_key>",
    "hy3": "hy_Assistant tool_sep",
    "deepseek-v3": "<｜tool▁calls▁begin｜>```json",
    "deepseek-v3.1": "<｜tool▁calls▁begin｜>",
    "deepseek-v3.2": "｜DSML｜function_calls>",
    "deepseek-v4": "｜DSML｜tool_calls>",
    "kimi-k2": "<|tool_calls_section_begin|>",
    "gpt-oss": "<|start|><|channel|><|message|>",
    "inkling": "<|content_invoke_tool_json|>",
    "gemma4": "<|turn><tool_call|>",
    "llama3": "<|start_header_id|>ipython parameters",
    "mistral": "[TOOL_CALLS]",
    "mistral-ids": "[TOOL_CALLS][CALL_ID][ARGS]",
    "mistral-args": "[TOOL_CALLS][ARGS]",
    "cohere": "<|CHATBOT_TOKEN|><|START_RESPONSE|>",
    "cohere-text": "<|CHATBOT_TOKEN|><|START_TEXT|>",
    "lfm2": "<|tool_call_start|>",
}


def test_every_family_is_detected_by_what_its_templates_write() -> None:
    assert set(SIGNS) == set(NAMES)
    for name, template in SIGNS.items():
        assert detect(template, ()).name == name
        assert detect(f"A path or a name like deepseek or llama says nothing. {template}", ()).name == name


def test_the_reason_names_strings_and_tokens() -> None:
    found = detect(SIGNS["kimi-k2"], ["<|tool_calls_section_begin|>", "<|im_end|>"])
    assert found.why == "the template writes <|tool_calls_section_begin|> (tokens: <|tool_calls_section_begin|>)"
    assert "by their letters" in detect(SIGNS["kimi-k2"], ()).why


def test_a_template_of_two_families_is_no_family() -> None:
    with pytest.raises(ConfigError, match=r"looks like .*kimi-k2.*parser"):
        detect(SIGNS["kimi-k2"] + SIGNS["minimax-m2"], ())


def test_a_template_without_tools_is_plain_and_an_unknown_one_is_refused() -> None:
    text = "{% for m in messages %}{{ '<|user|>' + m.content }}{% endfor %}"
    assert detect(text, ()).name == "plain"
    with pytest.raises(ConfigError, match=r"it holds <tool_call>.*plain for text alone"):
        detect(text + "{{ tools }}<tool_call>", ())


def test_lfm2_is_known_by_its_token_where_the_template_does_not_write_calls() -> None:
    template = "<|im_start|>List of tools: ["
    assert detect(template, ["<|tool_call_start|>"]).name == "lfm2"
    with pytest.raises(ConfigError):
        detect(template, ())


# ---------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("123", {"type": "string"}, "123"),
        ("123", {"type": "integer"}, 123),
        ("1.50", {"type": "number"}, 1.5),
        ("true", {"type": "boolean"}, True),
        ("True", {"type": "boolean"}, True),
        ("None", {"type": ["string", "null"]}, None),
        ("null", {"type": "string"}, "null"),
        ("12", {"type": ["string", "null"]}, "12"),
        ("12", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, 12),
        ("x", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "x"),
        ("[1, 2]", {"type": "array"}, [1, 2]),
        ("not json", {"type": "object"}, "not json"),
        ("a", {"enum": ["a", "b"]}, "a"),
        ("1", {"enum": ["1", "2"]}, "1"),
        ('{"a": 1}', None, {"a": 1}),
        ("  spaced  ", None, "  spaced  "),
        ("NaN", {"type": "number"}, "NaN"),
        ("", {"type": "integer"}, ""),
    ],
)
def test_values_without_quotes_are_typed_by_the_schema(text: str, schema: object, value: object) -> None:
    assert msgspec.json.decode(typed(text, schema)) == value


def test_numbers_keep_their_characters() -> None:
    assert typed("1.0", {"type": "number"}) == "1.0"
    assert typed("9" * 400, {"type": "integer"}) == "9" * 400


def test_schemas_that_are_none() -> None:
    tools = (Tool("a", "{"), Tool("b", '{"function":{"parameters":[]}}'), Tool("c", '{"function":{}}'))
    assert [dict(Schemas(tools).of(n)) for n in "abcd"] == [{}, {}, {}, {}]


def test_arguments_in_tags_keep_blanks_and_line_breaks() -> None:
    code = "\n    def f():\n        return '</parameter>'\n"
    call = ToolCall("", "run", msgspec.json.encode({"cmd": code}).decode())
    for name in ("qwen3.5", "nemotron-3", "minimax-m2", "glm-4.5", "glm-5", "hy3", "deepseek-v4", "gemma4"):
        found = parse(name, families()[name].spell(Assistant(None, None, (call,))))
        assert msgspec.json.decode(found.assistant.calls[0].arguments) == {"cmd": code}, name


def test_anything_between_arguments_makes_it_no_call() -> None:
    block = "<tool_call>\n<function=run>\nby the way\n<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>"
    found = parse("qwen3.5", block)
    assert (found.assistant, found.drift) == (Assistant(block), ("tool_parse_failed",))
    twice = "<tool_call>run<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>a</arg_key><arg_value>2</arg_value>"
    assert parse("glm-5", f"{twice}</tool_call>").drift == ("tool_parse_failed",)


# -------------------------------------------------------------------------------------------------- single formats


def test_kimi_ids_are_what_was_sampled() -> None:
    text = (
        "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.run:12<|tool_call_argument_begin|>{ }"
        "<|tool_call_end|><|tool_call_begin|>functions.read_file:13<|tool_call_argument_begin|>{\"path\" : 1}"
        "<|tool_call_end|><|tool_calls_section_end|>"
    )  # fmt: skip
    calls = (
        ToolCall("functions.run:12", "run", "{ }"),
        ToolCall("functions.read_file:13", "read_file", '{"path" : 1}'),
    )
    assert parse("kimi-k2", text).assistant == Assistant("Hm.", None, calls)


def test_a_broken_call_in_a_section_beside_a_good_one() -> None:
    good = "<|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    bad = "<|tool_call_begin|>functions.run:1<|tool_call_argument_begin|>{oops<|tool_call_end|>"
    found = parse("kimi-k2", f"<|tool_calls_section_begin|>{good}{bad}<|tool_calls_section_end|>")
    assert [c.id for c in found.assistant.calls] == ["functions.run:0"]
    assert (found.assistant.text, found.drift) == (bad, ("tool_parse_failed",))


def test_a_section_without_a_call_stays_text() -> None:
    text = "So:<|tool_calls_section_begin|>nothing<|tool_calls_section_end|>"
    assert parse("kimi-k2", text) == Parsed(Assistant(text), "stop", ("tool_parse_failed",), 0)
    cut = "So:<|tool_calls_section_begin|><|tool_call_begin|>functions.r"
    assert parse("kimi-k2", cut, finish="length") == Parsed(Assistant(cut), "length", ("tool_call_cut",), 0)


def test_a_complete_call_of_a_cut_section_counts() -> None:
    call = "<|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    found = parse("kimi-k2", f"<|tool_calls_section_begin|>{call}<|tool_call_begin|>func", finish="length")
    assert [c.id for c in found.assistant.calls] == ["functions.run:0"]
    assert (found.assistant.text, found.finish, found.drift) == (
        "<|tool_call_begin|>func",
        "length",
        ("tool_call_cut",),
    )


HARMONY_CALL = (
    " to=functions.run<|channel|>commentary json<|message|>",
    "<|channel|>commentary to=functions.run <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.run<|message|>",
    " to=functions.run<|channel|>analysis<|message|>",
)


@pytest.mark.parametrize("header", HARMONY_CALL)
def test_harmony_calls_wherever_the_recipient_stands(header: str) -> None:
    found = parse("gpt-oss", f'{header}{{ "cmd":1 }}<|call|>')
    assert found.assistant == Assistant(None, None, (ToolCall("", "run", '{ "cmd":1 }'),))
    assert (found.finish, found.drift) == ("tool_calls", ())


def test_harmony_channels() -> None:
    text = (
        "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>commentary<|message|>Now:<|end|>"
        "<|start|>assistant to=functions.run<|channel|>commentary json<|message|>{}<|call|>"
    )
    found = parse("gpt-oss", text)
    assert found.assistant == Assistant("Now:", "I think.", (ToolCall("", "run", "{}"),))
    assert found.reasoning_tokens == count(chat("gpt-oss").encode("I think."))


def test_harmony_ends_a_message_not_the_turn_with_end() -> None:
    model = chat("gpt-oss")
    assert model.codec.token("<|end|>") not in model.stop_ids
    found = parse("gpt-oss", "<|channel|>final<|message|>Yes.<|end|>", finish="length")
    assert found == Parsed(Assistant("Yes."), "length", (), 0)


def test_harmony_without_its_format_is_text() -> None:
    assert parse("gpt-oss", "just words") == Parsed(Assistant("just words"), "stop", ("markup_unparsed",), 0)
    odd = "<|channel|>secret<|message|>hm<|end|>"
    assert parse("gpt-oss", odd) == Parsed(Assistant(odd), "stop", ("markup_unparsed",), 0)


def test_harmony_cut_in_a_header_and_in_a_call() -> None:
    for text in (
        " to=functions.run<|channel|>comm",
        ' to=functions.run<|channel|>commentary json<|message|>{"cmd": 1}',
    ):
        found = parse("gpt-oss", text, finish="length")
        assert found == Parsed(Assistant(text), "length", ("tool_call_cut",), 0)


def test_harmony_goes_on_where_the_prompt_has_begun_a_message() -> None:
    found = parse("gpt-oss", "so.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>",
                  prompt="<|start|>assistant<|channel|>analysis<|message|>")  # fmt: skip
    assert found.assistant == Assistant("Yes.", "so.")


def test_harmony_gives_a_builtin_tool_only_where_it_is_offered() -> None:
    call = "<|channel|>commentary to=run <|constrain|>json<|message|>{}<|call|>"
    assert [c.name for c in parse("gpt-oss", call).assistant.calls] == ["run"]
    assert parse("gpt-oss", call, tools=()).drift == ("tool_parse_failed",)


def test_llama_reads_json_as_a_call_only_where_tools_were_offered() -> None:
    text = '{"name": "run", "parameters": {"cmd": "x"}}'
    assert parse("llama3", text).assistant == Assistant(None, None, (ToolCall("", "run", '{"cmd": "x"}'),))
    assert parse("llama3", text, tools=()) == Parsed(Assistant(text), "stop", (), 0)
    assert parse("llama3", f"Sure: {text}").assistant == Assistant(f"Sure: {text}")
    assert parse("llama3", text[:-3]).drift == ("tool_parse_failed",)
    assert parse("llama3", '{"answer": 1}') == Parsed(Assistant('{"answer": 1}'), "stop", (), 0)


def test_llama_builtin_calls() -> None:
    found = parse("llama3", '<|python_tag|>brave_search.call(query="a \\"b\\" c")<|eom_id|>')
    assert found.assistant.calls == (ToolCall("", "brave_search", '{"query": "a \\"b\\" c"}'),)
    code = "<|python_tag|>print(1)"
    assert parse("llama3", code) == Parsed(Assistant(code), "stop", ("tool_parse_failed",), 0)


def test_mistral_forms() -> None:
    listed = '[TOOL_CALLS][{"name": "run", "arguments": {"cmd" : 1}, "id": "abcdefgh1"}, {"name": "run"}]'
    calls = (ToolCall("abcdefgh1", "run", '{"cmd" : 1}'), ToolCall("", "run", "{}"))
    assert parse("mistral", listed).assistant == Assistant(None, None, calls)
    named = "Hm.[TOOL_CALLS]run[CALL_ID]abcdefgh1[ARGS]{}[TOOL_CALLS]run[ARGS]{}"
    for name in ("mistral", "mistral-ids", "mistral-args"):
        found = parse(name, named).assistant
        assert [(c.id, c.name) for c in found.calls] == [("abcdefgh1", "run"), ("", "run")]
    cut = '[TOOL_CALLS]run[ARGS]{"cmd": '
    assert parse("mistral-args", cut, finish="length").drift == ("tool_call_cut",)


def test_gemma_notation() -> None:
    text = '<|tool_call>call:run{cmd:<|"|>a, {b}<|"|>,many:[1,<|"|>x<|"|>,{k:null}],on:true,x:-1.50}<tool_call|>'
    call = parse("gemma4", text).assistant.calls[0]
    assert call.arguments == '{"cmd": "a, {b}", "many": [1, "x", {"k": null}], "on": true, "x": -1.50}'


def test_inkling_reads_the_name_inside_and_the_one_in_front_must_be_the_same() -> None:
    text = "<|content_text|>Hi<|end_message|><|message_model|>"
    for front, calls in (("run", 1), ("", 1), ("ru", 0)):
        call = f'{front}<|content_invoke_tool_json|>{{"name":"run","args":{{}}}}<|end_message|>'
        found = parse("inkling", text + call)
        assert len(found.assistant.calls) == calls
        assert found.assistant.text == ("Hi" if calls else f"Hi<|message_model|>{call}")


def test_lfm2_reads_what_python_would_write_and_runs_nothing() -> None:
    text = "<|tool_call_start|>[run(cmd='it\\'s', n=1, on=True, many=[1, \"a\"]), run()]<|tool_call_end|>"
    found = parse("lfm2", text).assistant
    assert [c.arguments for c in found.calls] == ['{"cmd": "it\'s", "n": 1, "on": true, "many": [1, "a"]}', "{}"]
    for code in ("__import__('os')", "run(1)", "run(cmd=f())", "run(cmd='a'+'b')"):
        assert parse("lfm2", f"<|tool_call_start|>[{code}]<|tool_call_end|>").drift == ("tool_parse_failed",)


def test_a_turn_that_a_format_cannot_hold_is_refused() -> None:
    two = (ToolCall("", "run", "{}"),) * 2
    with pytest.raises(ConfigError, match="first call"):
        families()["gpt-oss"].spell(Assistant(None, None, two))
    with pytest.raises(ConfigError, match="text or calls"):
        families()["llama3"].spell(Assistant("a", None, two))


# ---------------------------------------------------------------------------------------------------------- reading


def test_markers_that_are_no_token_are_found_by_their_letters() -> None:
    model = chat("laguna-xs")
    assert model.codec.token("<arg_key>") is None
    text = "<tool_call>run\n<arg_key>cmd</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>"
    assert parse("laguna-xs", text).assistant.calls[0].arguments == '{"cmd": "ls"}'


def test_private_characters_in_a_reply_stay() -> None:
    odd = "a\U000f0000b\U000f0001"
    found = parse("qwen3", f"<think>\n{odd}\n</think>\n\n{odd}")
    assert (found.assistant.text, found.assistant.reasoning) == (odd, odd)


def test_reading_counts_tokens_between_markers() -> None:
    model = chat("qwen3")
    think, unthink = (model.codec.token(m) for m in ("<think>", "</think>"))
    assert think is not None and unthink is not None
    inside = ids_list(model.encode("some thoughts here"))
    body = [think, *inside, unthink, *ids_list(model.encode("x"))]
    reading = Reading(model.codec, body, ("<think>", "</think>"))
    assert reading.tokens(1, reading.text.index(reading.char("</think>"))) == len(inside)
    assert reading.plain(reading.text) == model.decode(concat([ids(body)]))


# ---------------------------------------------------------------------------------------------------------- the page


def test_every_family_is_on_the_page_of_reply_formats() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/reply-formats.md").read_text("utf-8")
    table = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {word.strip(" `") for cell in table for word in cell.split(",")} == set(families())
    live = {
        word.strip(" `"): line.rstrip("| ").rpartition("|")[2].strip()
        for line in page.splitlines()
        if line.startswith("| `")
        for word in line.split("|")[1].split(",")
    }
    assert live == {name: "yes" if family.live else "no" for name, family in families().items()}
