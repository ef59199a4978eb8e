"""A turn that is cut anywhere goes on: all that was sampled stays, and what was open is closed exactly once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tugline.core.columns import concat, count, ids_list, last, take
from tugline.core.items import Assistant, Item, System, ToolCall, ToolResult, UserText
from tugline.tokens.splice import bridge
from unit.tokens.chat_kit import HEAD, split_up
from unit.tokens.template_kit import CALLS, CHANNELS, NEXT_OPENS, OUTPUTS, SECTIONS, habit, rules_with

START: list[Item] = [System("Be brief."), UserText("go")]
SAID = (
    "<think>", "so <|im_end|> it is", "</think>", "Text.", "<|calls|>", "<|call_in|>", "f:0<|args|>{}", "<|call_out|>",
    "<|call_in|>", 'g:1<|args|>{"a": 1}', "<|call_out|>", "<|/calls|>",
)  # fmt: skip
PAIRS = (("<think>", "</think>"), *CALLS)


@pytest.mark.parametrize("template", [SECTIONS, OUTPUTS], ids=["sections", "outputs"])
@settings(max_examples=120, deadline=None)
@given(cut=st.integers(0, 10_000), seed=st.integers(0, 99), ours=st.booleans())
def test_every_region_is_closed_once(template: str, cut: int, seed: int, ours: bool) -> None:
    chat = habit(template)
    markers = [m for pair in PAIRS for m in pair]
    whole = concat([chat.encode(s) if s in markers else split_up(chat, chat.encode(s), seed) for s in SAID])
    sampled = take(whole, 0, cut % (count(whole) + 1))
    turn = Assistant(None, None, (ToolCall("c1", "f", "{}"),)) if ours else Assistant("x")
    tail: list[Item] = [ToolResult("c1", "out"), UserText("more")] if ours else [UserText("more")]
    asked = HEAD, [*START, turn], tail
    made = bridge(chat._renderer, rules_with(chat), asked, (last(sampled), "length", sampled))
    assert made.drop == 0 and made.drift == ("truncated_extended",)
    values = [*ids_list(sampled), *ids_list(take(made.ids, 0, made.synthesised))]
    called = chat.codec.token("<|calls|>") in values
    for begin, end in PAIRS:
        opened, closed = values.count(chat.codec.token(begin) or -1), values.count(chat.codec.token(end) or -1)
        # A call ends reasoning that was never closed.
        assert opened == closed or (begin == "<think>" and called), (begin, chat.decode(values))
    assert values[-1] == chat.stop_ids[0]
    assert chat.render(HEAD, [*START, turn, *tail]).ids.endswith(take(made.ids, made.synthesised))


@pytest.mark.parametrize("template", [CHANNELS, NEXT_OPENS, SECTIONS, OUTPUTS])
@settings(max_examples=60, deadline=None)
@given(words=st.lists(st.sampled_from(["a ", "\n", "<think>", "</think>", "{", "<tool_call>", "\u65e5"]), max_size=8))
def test_whatever_was_sampled_the_tail_is_the_templates(template: str, words: list[str]) -> None:
    chat = habit(template)
    sampled = chat.encode("".join(words))
    tail: list[Item] = [UserText("more")]
    made = chat.bridge(HEAD, [*START, Assistant("x")], tail, last_id=last(sampled), finish="length", sampled=sampled)
    assert made.drop == 0
    assert chat.render(HEAD, [*START, Assistant("x"), *tail]).ids.endswith(take(made.ids, made.synthesised))
