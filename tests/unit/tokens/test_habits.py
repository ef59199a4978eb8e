"""Bridges of templates with the habits of real families: nested calls, openers as stops, dates, refusals."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tugline.core.columns import Ids, concat, ids, last, take
from tugline.core.errors import Unsupported
from tugline.core.items import Assistant, Head, Item, System, ToolCall, ToolResult, UserText
from tugline.core.turn import Finish
from tugline.tokens.callids import wire_id
from tugline.tokens.model import Bridge, BridgeRefused, ChatModel
from tugline.tokens.splice import bridge, open_regions
from unit.tokens.chat_kit import CHATML, HEAD, TOOLS, model
from unit.tokens.template_kit import (
    CALLS,
    CHANNELS,
    DATED,
    ENDS,
    NEXT_OPENS,
    NINE,
    NOTATION,
    ONE_CALL,
    OUTPUTS,
    PARTS,
    RESPONSE_STOP,
    SECTIONS,
    STRICT,
    habit,
    rules_with,
)

START: list[Item] = [System("Be brief."), UserText("go")]


def _call(call_id: str = "c1", name: str = "run", arguments: str = '{"cmd": "ls"}') -> ToolCall:
    return ToolCall(call_id, name, arguments)


def _made(
    chat: ChatModel, sampled: str, echo: Assistant, tail: list[Item], finish: Finish = "stop", regions: bool = False
) -> Bridge:
    column = chat.encode(sampled)
    asked = HEAD, [*START, echo], tail
    if regions:
        return bridge(chat._renderer, rules_with(chat), asked, (last(column), finish, column))
    return chat.bridge(*asked, last_id=last(column), finish=finish, sampled=column)


def _goes_on(chat: ChatModel, history: list[Item], turn: Assistant, tail: list[Item], stop: str) -> None:
    """The turn is sampled as the template writes it, up to `stop`; the bridged prompt is the one-pass render."""
    prompt, whole = chat.render(HEAD, history).ids, chat.render(HEAD, [*history, turn, *tail]).ids
    assert whole.startswith(prompt)
    rest = Ids(whole[len(prompt) :])
    token = chat.codec.token(stop)
    assert token is not None
    end = rest.index(ids((token,))) // 4 + 1
    sampled = take(rest, 0, end)
    made = chat.bridge(HEAD, [*history, turn], tail, last_id=token, finish="stop", sampled=sampled, prompt=prompt)
    assert concat([prompt, take(sampled, 0, end - made.drop), made.ids]) == whole


# ---------------------------------------------------------------------------------------- F57: what was cut is closed


@pytest.mark.parametrize(
    ("cut", "close"),
    [
        ("I was say", "<|close|>"),
        ("<|calls|>", "<|/calls|><|close|>"),
        ('<|calls|><|call_in|>f:0<|args|>{"c', "<|call_out|><|/calls|><|close|>"),
        ("<|calls|><|call_in|>f:0<|args|>{}<|call_out|>", "<|/calls|><|close|>"),
        ("<|calls|><|call_in|>f:0<|args|>{}<|call_out|><|call_in|>f:1", "<|call_out|><|/calls|><|close|>"),
        ("<|calls|><|call_in|>f:0<|args|>{}<|call_out|><|/calls|>", "<|close|>"),
        ("<|calls|><|call_in|>f:0<|/calls|> so", "<|close|>"),  # the outer end ends what is in it
        ("<|call_in|>f:0", "<|call_out|><|close|>"),
        ("<think>I was thin", "</think><|close|>"),
        ("<think>hm<|calls|><|call_in|>f", "<|call_out|><|/calls|><|close|>"),  # a call ends the reasoning
        ("<think>hm</think>ok<|calls|>", "<|/calls|><|close|>"),
    ],
)
@pytest.mark.parametrize("finish", ["length", "abort"])
def test_open_regions_are_closed_from_the_inside(cut: str, close: str, finish: Finish) -> None:
    chat = habit(SECTIONS)
    made = _made(chat, cut, Assistant("x"), [UserText("more")], finish, regions=True)
    assert chat.decode(made.ids) == f"{close}<|role|>user<|mid|>more<|close|><|role|>assistant<|mid|>"
    assert made.synthesised == len(chat.encode(close)) // 4
    assert (made.drop, made.drift) == (0, ("truncated_extended",))


@pytest.mark.parametrize(
    ("said", "drift"),
    [
        ("<think>hm<|close|>", "stop_in_reasoning"),
        ("<|calls|><|call_in|>f:0<|close|>", "stop_in_call"),
        ("<|calls|><|close|>", "stop_in_call"),
    ],
)
def test_a_stop_inside_a_region_is_kept(said: str, drift: str) -> None:
    made = _made(habit(SECTIONS), said, Assistant("x"), [UserText("more")], regions=True)
    assert (made.drop, made.synthesised, made.drift) == (0, 0, (drift,))


def test_a_prompt_that_opened_reasoning_is_asked_only_where_the_sample_does_not_tell() -> None:
    chat = habit(SECTIONS)
    rules, asked = rules_with(chat), list[int]()

    def thinks() -> bool:
        asked.append(1)
        return True

    assert open_regions(rules, chat.encode("hm"), thinks).reasoning and asked == [1]
    for said in ("hm</think>x", "hm<|calls|>"):
        assert not open_regions(rules, chat.encode(said), thinks).reasoning
    assert asked == [1]
    assert open_regions(rules, chat.encode("<|calls|><|call_in|>"), thinks).calls == (0, 1)


# -------------------------------------------------------------------------------------------- calls without arguments


@pytest.mark.parametrize("template", [SECTIONS, OUTPUTS, NEXT_OPENS, RESPONSE_STOP, CHATML])
@pytest.mark.parametrize("arguments", ["{}", "", '{"a": {}}', '{"a": [1, {"b": "</tool_call>"}]}', "null"])
def test_the_tail_is_the_same_whatever_a_call_is_given(template: str, arguments: str) -> None:
    chat = model(template) if template is CHATML else habit(template)
    stop = chat.stop_ids[-1] if template is RESPONSE_STOP else chat.stop_ids[0]
    turn = Assistant(calls=(_call("c0"), _call("c1", "read", arguments)))
    tail: list[Item] = [ToolResult("c0", "a"), ToolResult("c1", "b")]
    made = chat.bridge(HEAD, [*START, turn], tail, last_id=stop, finish="stop", sampled=ids((stop,)))
    assert chat.render(HEAD, [*START, turn, *tail]).ids.endswith(made.ids)
    given = Assistant(calls=(_call("c0"), _call("c1", "read")))
    assert made == chat.bridge(HEAD, [*START, given], tail, last_id=stop, finish="stop", sampled=ids((stop,)))


def test_a_call_without_arguments_that_the_template_writes_in_its_own_way() -> None:
    """Here such a call is followed by a word of its own; with an argument in it the word would not be there."""
    odd = CHATML.replace(
        "{{- '<|im_end|>\\n' }}\n{%- endif %}\n{%- endfor %}",
        "{%- set bare = m.tool_calls and m.tool_calls[-1].function.arguments in ('{}', {}) %}"
        "{{- '<|im_end|>\\n' + ('bare:' + m.tool_calls[-1].function.name if bare else '') }}"
        "\n{%- endif %}\n{%- endfor %}",
    )
    chat = model(odd)
    tail: list[Item] = [ToolResult("c1", "ok")]
    bare = _made(chat, "x<|im_end|>", Assistant(calls=(_call(arguments="{}"),)), tail)
    assert chat.decode(bare.ids).startswith("\nbare:run<|im_start|>")
    assert chat.decode(_made(chat, "x<|im_end|>", Assistant(calls=(_call(),)), tail).ids).startswith("\n<|im_start|>")


# ------------------------------------------------------------------------------------------------ F06, F07, F08, F23


def test_a_turn_of_channels_goes_on() -> None:
    chat = habit(CHANNELS)
    assert chat.probe().splice
    talk = Assistant("Done.", "hm")
    made = _made(chat, "<|channel|>final<|mid|>Done.<|return|>", talk, [UserText("more")])
    assert (made.drop, made.drift) == (0, ("close_alias",))
    assert chat.decode(made.ids) == "<|role|>user<|mid|>more<|end|><|role|>assistant"
    called = Assistant(None, "hm", (_call(),))
    _goes_on(chat, START, Assistant(None, None, (_call(),)), [ToolResult("c1", "ok")], "<|call|>")
    made = _made(chat, " to=run<|channel|>commentary<|mid|>{}<|call|>", called, [ToolResult("c1", "ok")])
    assert (made.drop, made.drift) == (0, ())
    assert chat.decode(made.ids) == '<|role|>run to=assistant<|mid|>"ok"<|end|><|role|>assistant'


@pytest.mark.parametrize(
    "cut", ["<|channel|>analysis<|mid|>I was thin", "<|channel|>final<|mid|>I wa", "<|channel|>ana"]
)
def test_a_cut_inside_a_channel_is_closed(cut: str) -> None:
    chat = habit(CHANNELS)
    made = _made(chat, cut, Assistant("x"), [UserText("more")], "length")
    assert chat.decode(made.ids) == "<|end|><|role|>user<|mid|>more<|end|><|role|>assistant"
    assert (made.synthesised, made.drift) == (1, ("truncated_extended",))


@pytest.mark.parametrize(
    ("stop", "tail", "drop", "text"),
    [
        ("<|user|>", [UserText("more")], 0, "\nmore<|assistant|>\n"),
        ("<|observation|>", [ToolResult("c1", "ok")], 0, "\n<tool_response>\nok\n</tool_response><|assistant|>\n"),
        ("<|user|>", [ToolResult("c1", "a"), ToolResult("c2", "b")], 1, None),
        ("<|observation|>", [UserText("more")], 1, "<|user|>\nmore<|assistant|>\n"),
        ("<|endoftext|>", [UserText("more")], 1, "<|user|>\nmore<|assistant|>\n"),
        ("<|user|>", [System("note"), UserText("more")], 1, "<|system|>\nnote<|user|>\nmore<|assistant|>\n"),
        ("<|observation|>", [Assistant("b"), UserText("c")], 1, None),
    ],
)
def test_exactly_one_opening_stands_between_two_roles(stop: str, tail: list[Item], drop: int, text: str | None) -> None:
    chat = habit(NEXT_OPENS)
    turn = Assistant(calls=(_call("c1"), _call("c2"))) if isinstance(tail[0], ToolResult) else Assistant("Hello.")
    made = _made(chat, f"Hello.{stop}", turn, tail)
    assert (made.drop, made.synthesised) == (drop, 0)
    assert made.drift == (("stop_trim",) if drop else ())
    if text is not None:
        assert chat.decode(made.ids) == text
    # What is kept of the stop, and the bridge, are how the template's own render ends.
    kept = concat([ids((chat.codec.token(stop) or 0,)), made.ids]) if not drop else made.ids
    assert chat.render(HEAD, [*START, turn, *tail]).ids.endswith(kept)


def test_a_cut_turn_before_a_role_that_opens_itself() -> None:
    chat = habit(NEXT_OPENS)
    made = _made(chat, "Hel", Assistant("Hel"), [System("note"), UserText("more")], "length")
    assert chat.decode(made.ids) == "<|system|>\nnote<|user|>\nmore<|assistant|>\n"
    assert (made.drop, made.synthesised, made.drift) == (0, 0, ("truncated_extended",))


def test_a_stop_that_opens_the_results_stands_once() -> None:
    chat = habit(RESPONSE_STOP)
    turn = Assistant(calls=(_call("c1"), _call("c2", "read", "{}")))
    made = _made(chat, "<tool_call>run{}</tool_call><|response|>", turn, [ToolResult("c1", "a"), ToolResult("c2", "b")])
    assert (made.drop, made.drift) == (0, ())
    assert chat.decode(made.ids) == "run:a<|/response|><|response|>read:b<|/response|>"
    cut = _made(chat, "<tool_call>run{", turn, [ToolResult("c1", "a"), ToolResult("c2", "b")], "length")
    assert chat.decode(cut.ids).startswith("<|response|>run:a<|/response|>") and cut.synthesised == 1
    _goes_on(chat, START, turn, [ToolResult("c1", "a"), ToolResult("c2", "b"), UserText("more")], "<|response|>")


def test_the_second_results_of_a_conversation_are_not_opened_again() -> None:
    chat = habit(OUTPUTS)
    assert chat.probe().splice and chat.probe().independent == ()
    cycle: list[Item] = [Assistant(calls=(_call("c1"),)), ToolResult("c1", "one")]
    turn, result = Assistant(calls=(_call("c2"),)), ToolResult("c2", "two")
    for history, opened in ((START, 1), ([*START, *cycle], 0)):
        close = chat.stop_ids[0]
        made = chat.bridge(HEAD, [*history, turn], [result], last_id=close, finish="stop", sampled=ids((close,)))
        assert chat.decode(made.ids).count("<|outputs|>") == opened
        assert chat.render(HEAD, [*history, turn, result]).ids.endswith(made.ids)


def test_an_end_of_text_behind_every_render_is_no_part_of_a_bridge() -> None:
    chat = habit(ENDS)
    _goes_on(chat, START, Assistant("Hello."), [UserText("more")], "<|close|>")
    assert "<|endoftext|>" not in chat.decode(chat.render(HEAD, [*START, Assistant("a"), UserText("b")]).ids)


# --------------------------------------------------------------------------------------------------- F26, F27: ids


def test_the_model_reads_the_ids_that_it_sampled() -> None:
    chat = habit(SECTIONS)
    wire = wire_id("7abc", 0, "functions.run:3")
    assert wire == "call_7abc_0_m-functions_2erun_3a3"
    turn = Assistant(calls=(ToolCall(wire, "run", "{}"),))
    made = _made(chat, "<|calls|>...<|/calls|><|close|>", turn, [ToolResult(wire, "ok")])
    assert chat.decode(made.ids).startswith("<|role|>tool<|mid|>## Return of functions.run:3\nok<|close|>")
    whole = chat.decode(chat.render(HEAD, [*START, turn, ToolResult(wire, "ok")]).ids)
    assert "<|call_in|>functions.run:3<|args|>{}<|call_out|>" in whole and wire not in whole


def test_names_of_results_come_from_their_calls() -> None:
    chat = habit(RESPONSE_STOP)
    turn = Assistant(calls=(_call("c1"), _call("c2", "read")))
    made = _made(chat, "x<|response|>", turn, [ToolResult("c2", "b"), ToolResult("c1", "a")])
    assert chat.decode(made.ids) == "read:b<|/response|><|response|>run:a<|/response|>"


def test_ids_of_nine_letters_where_a_template_demands_them() -> None:
    chat = habit(NINE)
    turn = Assistant(calls=(_call("call_7abc_0"), _call("abcDEF123", "read")))
    results: list[Item] = [ToolResult("call_7abc_0", "a"), ToolResult("abcDEF123", "b")]
    text = chat.decode(chat.render(HEAD, [*START, turn, *results]).ids)
    shown = text.partition("<tool_call>")[2][:9]
    assert shown.isalnum() and f"tool\n{shown}=a" in text and "abcDEF123=b" in text
    _goes_on(chat, START, turn, results, "<|close|>")


# ------------------------------------------------------------------------------------------- templates that refuse


def test_a_strict_template_gets_what_it_takes_and_each_change_is_counted() -> None:
    chat = habit(STRICT)
    items = [System("Be brief."), UserText("a"), UserText("b"), Assistant("x"), System("late"), UserText("c")]
    rendered = chat.render(Head(), items)
    assert chat.decode(rendered.ids) == (
        "<|role|>user\nBe brief.\n\na\n\nb<|close|><|role|>assistant\nx<|close|>"
        "<|role|>user\nlate\n\nc<|close|><|role|>model\n"
    )
    assert set(rendered.drift) == {"system_as_user", "users_joined"}
    made = _made(chat, "x<|close|>", Assistant("x"), [UserText("b"), UserText("c")])
    assert chat.decode(made.ids) == "<|role|>user\nb\n\nc<|close|><|role|>model\n"
    assert made.drift == ("users_joined",)


@pytest.mark.parametrize(
    "items", [[Assistant("first"), UserText("a")], [UserText("a"), Assistant("x"), ToolResult("c1", "ok")]]
)
def test_what_cannot_be_said_is_refused_in_the_templates_words(items: list[Item]) -> None:
    with pytest.raises(Unsupported, match="Conversation roles must alternate") as refused:
        habit(STRICT).render(Head(), items)
    assert refused.value.status == 400


def test_one_call_at_a_time() -> None:
    chat = habit(ONE_CALL)
    turn = Assistant(None, None, (_call("c1"), _call("c2", "read")))
    items = [*START, turn, ToolResult("c2", "b"), ToolResult("c1", "a"), UserText("more")]
    rendered = chat.render(HEAD, items)
    assert rendered.drift.count("calls_split") == 1
    assert [p.split("\n")[0] for p in chat.decode(rendered.ids).split("<|role|>")[3:]] == [
        "assistant", "tool", "assistant", "tool", "user", "assistant"
    ]  # fmt: skip
    text = chat.decode(rendered.ids)
    assert text.index('"run"') < text.index("\na<|close|>") < text.index('"read"') < text.index("\nb<|close|>")
    with pytest.raises(BridgeRefused, match="parallel_calls"):
        _made(chat, "x<|close|>", turn, [ToolResult("c1", "a")])
    said = _made(chat, "x<|close|>", Assistant("On it.", None, (_call("c1"),)), [ToolResult("c1", "a")])
    assert chat.decode(said.ids).startswith("<|role|>tool\na<|close|>"), "what was said stays as it was sampled"
    _goes_on(chat, START, Assistant(calls=(_call("c1"),)), [ToolResult("c1", "a")], "<|close|>")


@pytest.mark.parametrize("arguments", ['{"path":', "[1]", '"x"', "nul", '{"a": 1}}', "{" * 200])
def test_broken_arguments_in_the_history_never_break_a_prompt(arguments: str) -> None:
    """P23: a prompt from stored ids where the turn is ours, wrapped and counted where it must be rendered."""
    chat = habit(ONE_CALL)
    assert chat._renderer.shape.arguments == "dict"
    turn, result = Assistant(calls=(_call("c1", "run", arguments),)), ToolResult("c1", "ok")
    made = _made(chat, "anything<|close|>", turn, [result])
    assert made.drift == () and chat.decode(made.ids).startswith("<|role|>tool\nok")
    rendered = chat.render(HEAD, [*START, turn, result])
    assert "args_not_object" in rendered.drift and "ok" in chat.decode(rendered.ids)


def test_a_notation_of_its_own_is_used() -> None:
    chat = habit(NOTATION)
    items = [*START, Assistant(calls=(_call(),)), ToolResult("c1", "ok")]
    assert "<tool_call>run{cmd:[ls]}</tool_call>" in chat.decode(chat.render(HEAD, items).ids)
    assert chat._renderer.shape.arguments == "dict" and model(CHATML)._renderer.shape.arguments == "string"
    python = NOTATION.replace("{%- for k, v in c.function.arguments.items() %}{{ k ~ ':[' ~ v ~ ']' }}{% endfor %}",
                              "{{ c.function.arguments }}")  # fmt: skip
    assert habit(python)._renderer.shape.arguments == "string", "what Python prints is no notation"


def test_content_in_parts() -> None:
    chat = habit(PARTS)
    _goes_on(chat, START, Assistant("Hello."), [UserText(" a <|close|> ")], "<|close|>")
    assert "user\n a <|close|> <|close|>" in chat.decode(chat.render(HEAD, [*START, UserText(" a <|close|> ")]).ids)


def test_what_a_template_leaves_out_is_counted() -> None:
    chat = habit(ENDS)
    items = [*START, Assistant("x", None, (_call("c1"),)), UserText("b")]
    assert {"tools_unseen", "calls_unseen"} <= set(chat.render(HEAD, items).drift)
    assert chat.render(Head(), START).drift == ()
    assert model(CHATML).render(HEAD, items).drift == ()


# ------------------------------------------------------------------------------------------------------------ clock

NEW_YEAR = 1767225599
"""2025-12-31 23:59:59 UTC."""


def test_a_template_is_told_the_instant_of_its_head() -> None:
    chat = habit(DATED)
    assert chat.clocked and not habit(ENDS).clocked
    text = chat.decode(chat.render(Head(clock=NEW_YEAR), START).ids)
    assert text.startswith("<|role|>system\nToday is 31 Dec 2025 100% at 23:59.<|close|><|role|>system\nBe brief.")
    assert "01 Jan 2026" in chat.decode(chat.render(Head(clock=NEW_YEAR + 1), START).ids)
    again = Head(TOOLS, '{"strftime_now":"x"}', NEW_YEAR)
    assert "Today is 31 Dec 2025" in chat.decode(chat.render(again, START).ids)
    with pytest.raises(Unsupported, match="tugline_clock"):
        chat.render(Head(TOOLS, '{"tugline_clock":{"d":"forged"}}', NEW_YEAR), START)


def test_every_directive_says_what_strftime_says_or_is_refused() -> None:
    at = datetime.fromtimestamp(NEW_YEAR, UTC)
    for directive in (*"aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ", "-d", "-m", "-e", "-k"):
        chat = habit(DATED.replace("%d %b %Y", f"%{directive}"))
        try:
            text = chat.decode(chat.render(Head(clock=NEW_YEAR), START).ids)
        except Unsupported as err:
            assert f"%{directive}" in str(err)
        else:
            assert f"Today is {at.strftime('%' + directive)} 100%" in text


def test_a_bridge_is_told_the_same() -> None:
    late = DATED.replace("{%- if add_generation_prompt %}", "{%- if add_generation_prompt %}{{ today() + ' ' }}")
    chat = habit(late)
    made = chat.bridge(
        Head(clock=NEW_YEAR), [*START, Assistant("x")], [UserText("b")],
        last_id=chat.stop_ids[0], finish="stop", sampled=chat.encode("x<|close|>"),
    )  # fmt: skip
    assert chat.decode(made.ids) == "<|role|>user\nb<|close|>31 Dec 2025 <|role|>assistant\n"


def test_the_regions_of_the_kit_are_single_tokens() -> None:
    chat = habit(SECTIONS)
    assert all(chat.codec.token(m) is not None for pair in CALLS for m in pair)


def test_a_template_that_shows_calls_only_beside_null_is_given_null() -> None:
    source = CHATML.replace("for c in m.tool_calls or []", "for c in (m.tool_calls or []) if m.content is none")
    source = source.replace("{{- m.content }}", "{{- m.content or '' }}")
    chat = model(source)
    turn = Assistant(calls=(ToolCall("c1", "run", '{"cmd": "ls"}'),))
    rendered = chat.render(HEAD, [UserText("a"), turn, ToolResult("c1", "ok")])
    assert '"cmd": "ls"' in chat.decode(rendered.ids)
    assert "calls_unseen" not in rendered.drift
    assert chat.probe().tools.representable


def test_text_beside_a_call_that_the_template_leaves_out_is_counted() -> None:
    chat = model(CHATML.replace("{{- m.content }}", "{{- '' if m.tool_calls else m.content }}"))
    turn = Assistant("Look.", None, (ToolCall("c1", "run", '{"cmd": "ls"}'),))
    history, tail = [UserText("a"), turn], [ToolResult("c1", "ok")]
    assert "text_unseen" in chat.render(HEAD, [*history, *tail]).drift
    stop = ids(chat.stop_ids[:1])
    made = chat.bridge(HEAD, history, tail, last_id=chat.stop_ids[0], finish="stop", sampled=stop)
    assert "text_kept" in made.drift
    quiet = chat.bridge(
        HEAD, [UserText("a"), Assistant(calls=turn.calls)], tail, last_id=chat.stop_ids[0], finish="stop", sampled=stop
    )
    assert "text_kept" not in quiet.drift
