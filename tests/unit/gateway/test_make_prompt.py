"""Prompts of a conversation under templates that would spoil it if they were run over it again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tugline.core.columns import NO_FLOATS, Ids, concat, count, take
from tugline.core.items import Assistant, Head, Item, Request, System, ToolCall, ToolResult, UserText
from tugline.core.turn import Finish, Sampling, Turn
from tugline.forest.forest import Forest
from tugline.gateway.prompt import Deps, make_prompt
from tugline.tokens.model import ChatModel
from unit.tokens.chat_kit import CHATML, HEAD, REORDERS, STRIPPING, TOOLS, model

START: tuple[Item, ...] = (System("Be brief."), UserText("go"))
THINKS = STRIPPING.replace(
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}",
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}",
).replace("{%- if loop.index0 > ns.last %}", "{%- if false %}")
"""Opens reasoning in the generation prompt and shows none in the history."""


class Talk:
    """What the gateway does with one conversation, without an engine: the test samples."""

    def __init__(self, chat: ChatModel) -> None:
        self.chat = chat
        self.forest = Forest("ses", chat.digest)
        nothing: Any = None
        self.deps = Deps(nothing, chat, nothing, nothing, nothing, nothing)

    def prompt(self, items: tuple[Item, ...], head: Head = HEAD) -> Any:
        request = Request("m", head, items)
        return make_prompt(self.forest, request, self.forest.attach(request), self.deps)

    def call(
        self,
        items: tuple[Item, ...],
        sampled: Ids,
        finish: Finish = "stop",
        head: Head = HEAD,
        echo: Assistant | None = None,
    ) -> Turn:
        """The turn that is sampled on `items`, echoed as it was parsed, or as `echo`."""
        prompt = self.prompt(items, head)
        echo = echo or self.chat.parse(prompt.ids, sampled, finish, head.tools).assistant
        exact, lenient = self.forest.keys(prompt.attached, echo)
        parent = prompt.attached.parent
        turn = Turn(
            f"turn_{len(self.forest.turns)}", "ses", len(self.forest.turns), parent.turn_id if parent else None,
            prompt.keep, prompt.bridge, sampled, NO_FLOATS, ((0, 0),), finish, count(prompt.ids), head,
            prompt.attached.tail, echo, exact, lenient, Sampling(), drift=prompt.drift,
        )  # fmt: skip
        self.forest.commit(turn)
        assert self.forest.prompt(turn.turn_id) == prompt.ids, "what is recorded is what is sent"
        return turn

    def grow(self, texts: list[str], finish: Finish = "stop", head: Head = HEAD) -> list[Turn]:
        """A turn per text, each answered by a user's words, verbatim."""
        items, turns = START, []
        for n, text in enumerate(texts):
            turns.append(self.call(items, self.chat.encode(text), finish, head))
            items = (*items, turns[-1].echo, UserText(f"more {n}"))
        return turns


def extends(talk: Talk, turns: list[Turn]) -> bool:
    """Each turn continues the one before it, token for token."""
    return all(
        b.parent == a.turn_id and talk.forest.full(b.turn_id).startswith(talk.forest.full(a.turn_id))
        for a, b in pairwise(turns)
    )


def test_line_breaks_on_both_sides_of_a_boundary_stay_two_tokens() -> None:
    talk = Talk(model(CHATML))
    one = talk.chat.encode("\n")
    assert count(one) == 1 and count(talk.chat.encode("\n\n")) == 1, "else nothing here could merge"
    begun = talk.prompt(START).ids
    assert begun.endswith(one), "the generation prompt ends with a line break"
    first = talk.call(START, concat([one, talk.chat.encode("\n"), talk.chat.encode("Hello.<|im_end|>")]))
    talk.call((*START, first.echo, UserText("more")), talk.chat.encode("Yes.<|im_end|>"))
    after = talk.forest.prompt("turn_1")
    assert take(after, 0, count(begun) + 1) == concat([begun, one])
    assert talk.chat.encode(talk.chat.decode(after)) != after


def test_reasoning_stays_where_the_template_would_strip_it() -> None:
    talk = Talk(model(STRIPPING))
    turns = talk.grow([f"<think>\nthought {n}\n</think>\n\nanswer {n}<|im_end|>" for n in range(3)])
    assert extends(talk, turns)
    shown = talk.chat.decode(talk.forest.prompt("turn_2"))
    assert "thought 0" in shown and "thought 1" in shown
    history = (*talk.forest.history("turn_1"), UserText("x"))
    assert "thought 0" not in talk.chat.decode(talk.chat.render(HEAD, history).ids), "the template strips it"


def test_an_empty_thought_of_the_generation_prompt_is_neither_lost_nor_doubled() -> None:
    off = Head(TOOLS, '{"enable_thinking":false}')
    talk = Talk(model(STRIPPING))
    turns = talk.grow(["One.<|im_end|>", "Two.<|im_end|>"], head=off)
    assert extends(talk, turns)
    shown = talk.chat.decode(talk.forest.full("turn_1"))
    assert shown.count("<think>\n\n</think>\n\n") == 2 and "assistant\n<think>\n\n</think>\n\nTwo." in shown


def test_a_generation_prompt_that_the_history_never_shows() -> None:
    talk = Talk(model(THINKS))
    assert any(f.startswith("P5") for f in talk.chat.probe().failures), "an author is told"
    turns = talk.grow([f"so {n}\n</think>\n\nanswer {n}<|im_end|>" for n in range(3)])
    assert extends(talk, turns)


@pytest.mark.parametrize("text", ["I was say", "<think>\nI was thin", '<tool_call>\n{"name": "ru'])
def test_a_cut_turn_is_continued(text: str) -> None:
    talk = Talk(model(CHATML))
    turns = talk.grow([text, text], finish="length")
    assert extends(talk, turns)
    assert "truncated_extended" in turns[1].drift
    closed = talk.chat.decode(talk.forest.prompt("turn_1"))
    assert closed.count("<|im_end|>") == closed.count("<|im_start|>") - 1


def test_no_bridge_means_a_root_that_says_so() -> None:
    """A conversation that cannot be bridged is rendered whole, never glued together."""
    talk = Talk(model(REORDERS, parser="plain"))
    first = talk.call(START, talk.chat.encode("Hello.<|im_end|>"))
    called = Assistant("On it.", None, (ToolCall("c1", "run", '{"cmd": "ls"}'),))
    second = talk.call((*START, first.echo, UserText("more")), talk.chat.encode("On it.<|im_end|>"), echo=called)
    assert second.parent == first.turn_id and "no_bridge:parts_moved" not in second.drift
    items = (*START, first.echo, UserText("more"), called, ToolResult("c1", "out"))
    prompt = talk.prompt(items)
    assert prompt.attached.parent is None and prompt.root_reason == "no_bridge:parts_moved"
    assert "no_bridge:parts_moved" in prompt.drift
    assert (prompt.level("L4"), prompt.level("L0"), talk.prompt(START).level("L4")) == ("L2", "L0", "L4")
    assert prompt.keep == 0 and prompt.ids == talk.chat.render(HEAD, items).ids


def test_the_familys_own_bridge_serves_where_no_tail_can_be_spliced() -> None:
    """It keeps what was sampled, and says which bridge it is and that the template writes it otherwise."""
    talk = Talk(model(REORDERS))
    called = 'On it.\n<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call><|im_end|>'
    first = talk.call(START, talk.chat.encode(called))
    prompt = talk.prompt((*START, first.echo, ToolResult(first.echo.calls[0].id, "out <|im_end|>")))
    assert prompt.attached.parent is first and prompt.level("L4") == "L4"
    assert prompt.ids.startswith(talk.forest.full(first.turn_id))
    assert set(prompt.drift) == {"renderers_bridge", "format_differs", "special_in_text"}
    assert talk.chat.decode(prompt.bridge) == (
        "\n<|im_start|>user\n<tool_response>\nout <|im_end|>\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert talk.chat.codec.controls_in(prompt.bridge) == 5
