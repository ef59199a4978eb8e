"""Replies come out as they were sampled: verbatim, never repaired, never half a call."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tugline.core.columns import NO_IDS, Ids, concat, count, ids, ids_list, take
from tugline.core.items import Assistant, ToolCall, ToolResult, UserText
from tugline.tokens.codec import positions
from tugline.tokens.model import Parsed
from unit.tokens.chat_kit import CHATML, HEAD, PARSED_ARGS, STRUCTURE, TOOLS, model, split_up


def _parse(text: str, finish: str = "stop", prompt: str = "<|im_start|>assistant\n") -> Parsed:
    chat = model(CHATML)
    return chat.parse(chat.encode("<|im_end|>\n" + prompt), chat.encode(text), finish, TOOLS)  # type: ignore[arg-type]


def test_text_alone_is_verbatim() -> None:
    found = _parse("\n  two lines \n\n<|im_end|>")
    assert found == Parsed(Assistant("\n  two lines \n\n"), "stop", (), 0)


def test_reasoning_text_and_calls() -> None:
    arguments = '{"cmd" :  "ls", "n": 1.0}'
    found = _parse(
        "<think>\n first\n\n</think>\n\nI look.\n<tool_call>\n"
        f'{{"name": "run", "arguments": {arguments}}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {}, "name": "read"}\n</tool_call><|im_end|>'
    )
    calls = (ToolCall("", "run", arguments), ToolCall("", "read", "{}"))
    assert found.assistant == Assistant("I look.", " first\n", calls)
    assert (found.finish, found.drift) == ("tool_calls", ())
    assert found.reasoning_tokens == count(model(CHATML).encode("\n first\n\n"))


@pytest.mark.parametrize("seed", range(5))
def test_a_reply_written_by_the_template_comes_back_unchanged(seed: int) -> None:
    chat = model(CHATML)
    turn = Assistant(
        "Text.\n", "why\n\nso", (ToolCall("a", "run", '{"cmd":"x"}'), ToolCall("b", "read", '{ "p" : "é" }'))
    )
    history = [UserText("go")]
    prompt = chat.render(HEAD, history).ids
    whole = chat.render(HEAD, [*history, turn, ToolResult("a", ""), ToolResult("b", "")]).ids
    rest = take(Ids(whole[len(prompt) :]), 0)
    sampled = take(rest, 0, ids_list(rest).index(chat.stop_ids[0]) + 1)
    found = chat.parse(prompt, split_up(chat, sampled, seed), "stop", TOOLS).assistant
    assert (found.text, found.reasoning) == (turn.text, turn.reasoning)
    assert [(c.name, c.arguments) for c in found.calls] == [(c.name, c.arguments) for c in turn.calls]


def test_the_prompt_opened_the_reasoning() -> None:
    found = _parse("hm\n</think>\n\nYes.<|im_end|>", prompt="<|im_start|>assistant\n<think>\n")
    assert found.assistant == Assistant("Yes.", "hm")
    chat = model(PARSED_ARGS)
    rendered = chat.render(HEAD, [UserText("go")]).ids
    assert chat.parse(rendered, chat.encode("hm\n</think>\n\nYes."), "length", ()).assistant == Assistant("Yes.", "hm")


def test_a_prompt_that_closed_reasoning_leaves_text() -> None:
    found = _parse("Yes.<|im_end|>", prompt="<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert found.assistant == Assistant("Yes.")


@pytest.mark.parametrize(
    "block",
    [
        '<tool_call>\n{"name": "run", "arguments": {"cmd": }}\n</tool_call>',
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        "<tool_call>\nrun ls\n</tool_call>",
        '<tool_call>\n{"name": "run", "arguments": {"n": NaN}}\n</tool_call>',
        '<tool_call>\n["run"]\n</tool_call>',
        '<tool_call>\n{"name": "run", "arguments": {}}',
    ],
)
def test_a_broken_call_reaches_the_harness_as_text(block: str) -> None:
    found = _parse(f"Now:\n{block}<|im_end|>")
    assert found.assistant == Assistant(f"Now:\n{block}")
    assert (found.finish, found.drift) == ("stop", ("tool_parse_failed",))


def test_a_broken_call_beside_a_good_one() -> None:
    good = '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>'
    found = _parse(f"{good}\n<tool_call>\n{{oops\n</tool_call><|im_end|>")
    assert found.assistant.calls == (ToolCall("", "run", "{}"),)
    assert found.assistant.text == "\n<tool_call>\n{oops\n</tool_call>"
    assert found.drift == ("tool_parse_failed",)


def test_a_call_cut_by_length_is_no_call() -> None:
    text = 'So.\n<tool_call>\n{"name": "run", "arguments": {"cmd": "rm -rf /tmp/x'
    found = _parse(text, "length")
    assert found == Parsed(Assistant(text), "length", ("tool_call_cut",), 0)


def test_length_is_not_hidden_by_a_complete_call() -> None:
    found = _parse('<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>\n<tool_call>\n{"na', "length")
    assert found.finish == "length"
    assert [c.name for c in found.assistant.calls] == ["run"]


@pytest.mark.parametrize("finish", ["length", "abort"])
def test_cut_inside_reasoning(finish: str) -> None:
    found = _parse("<think>\nI was about", finish)
    assert found.assistant == Assistant(None, "I was about")
    assert (found.finish, found.drift) == ("length", ("reasoning_unclosed",))


def test_a_call_ends_reasoning_that_nobody_closed() -> None:
    found = _parse('<think>\nhm\n<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call><|im_end|>')
    assert found.assistant == Assistant(None, "hm\n", (ToolCall("", "run", "{}"),))


def test_calls_inside_reasoning_are_thoughts() -> None:
    draft = '<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call>'
    found = _parse(f"<think>\n{draft}\n</think>\n\nNo.<|im_end|>")
    assert found.assistant == Assistant("No.", draft)


def test_unknown_tools_are_passed_on() -> None:
    found = _parse('<tool_call>\n{"name": "fly", "arguments": {}}\n</tool_call><|im_end|>')
    assert found.assistant.calls[0].name == "fly"
    assert found.drift == ("unknown_tool",)


def test_bytes_that_are_no_utf8() -> None:
    chat = model(CHATML)
    lone = chat.codec.token("Ã")
    assert lone is not None
    broken = chat.parse(NO_IDS, concat([chat.encode("a"), ids([lone]), chat.encode("b")]), "stop", ())
    assert broken.assistant.text == "a\ufffdb"
    assert broken.drift == ("invalid_utf8",)
    assert chat.parse(NO_IDS, chat.encode("a\ufffdb"), "stop", ()).drift == ()


def test_spelled_markers_are_text() -> None:
    """A model that writes the letters of a marker, not the token, has made no call."""
    chat = model(CHATML)
    spelled = chat.codec.encode_marked(
        'TOOL{"name": "run", "arguments": {}}', lambda t: t.replace("TOOL", "<tool_call>")
    )
    assert chat.parse(NO_IDS, spelled, "stop", TOOLS).assistant == Assistant(
        '<tool_call>{"name": "run", "arguments": {}}'
    )


@pytest.mark.parametrize("nest", ["[", '{"a":'])
def test_bottomless_json(nest: str) -> None:
    block = f'<tool_call>\n{{"name": "run", "arguments": {nest * 5000}\n</tool_call>'
    assert _parse(f"{block}<|im_end|>").assistant == Assistant(block)
    deep = f'{{"x": {"[" * 900}{"]" * 900}}}'
    turn = Assistant(None, None, (ToolCall("c", "run", deep),))
    for template in (CHATML, PARSED_ARGS):
        assert count(model(template).render(HEAD, [UserText("u"), turn, ToolResult("c", "ok")]).ids)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_nothing_sampled_raises_or_is_lost(data: st.DataObject) -> None:
    """Any ids at all: no error, and every visible character arrives somewhere."""
    chat = model(CHATML)
    markers = [chat.codec.control[m] for m in (*STRUCTURE, "<|im_start|>")]
    one = st.sampled_from(markers) | st.integers(0, chat.vocab - 1)
    fragments = st.sampled_from(
        [ids_list(chat.encode(t)) for t in ('{"name": "run", "arguments": {}}', "\n", " ", "é")]
    )
    parts = data.draw(st.lists(one.map(lambda i: [i]) | fragments, max_size=25))
    sampled = ids(i for part in parts for i in part)
    found = chat.parse(
        chat.encode("<|im_start|>assistant\n"), sampled, data.draw(st.sampled_from(["stop", "length"])), TOOLS
    )
    stops = positions(sampled, chat.stop_ids)
    body = take(sampled, 0, int(stops[0]) if len(stops) else None)
    if not found.assistant.calls:
        shown = _bare((found.assistant.text or "") + (found.assistant.reasoning or ""))
        assert sorted(shown) == sorted(_bare(chat.decode(body)))


def _bare(text: str) -> str:
    return "".join(text.replace("<think>", "").replace("</think>", "").split())


def test_empty_samples() -> None:
    assert _parse("<|im_end|>") == Parsed(Assistant(), "stop", (), 0)
    assert _parse("", "length") == Parsed(Assistant(), "length", (), 0)
    assert model(CHATML).parse(NO_IDS, NO_IDS, "abort", ()).assistant == Assistant()


def test_plain_models_say_only_text() -> None:
    chat = model(CHATML, parser="plain")
    found = chat.parse(NO_IDS, chat.encode("<think>x</think><|im_end|>"), "stop", ())
    assert found.assistant == Assistant("<think>x</think>")
