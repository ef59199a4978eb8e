"""A prompt beside the template's text: turns may stand as sampled, and nothing else may differ."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tugline.cli.wiring import PILOT
from tugline.core.columns import Ids, floats, ids, ids_list
from tugline.core.items import Assistant, System, ToolCall, ToolResult, UserText
from tugline.testing.exactness.alignment import Alignment
from tugline.testing.exactness.fake import FakeEngine, Made
from tugline.testing.exactness.prompts import Format
from tugline.testing.exactness.talk import Ask, Echo, tool

BEFORE = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nList, twice.<|im_end|>\n<|im_start|>assistant\n"
FIRST = '<think>\nWhy not.\n</think>\n\nLook.\n<tool_call>\n{"name":  "bash", "arguments": {"n": 1}}\n</tool_call>'
BETWEEN = "<|im_end|>\n<|im_start|>user\n<tool_response>\na.txt\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
SECOND = "One  file."
BEHIND = "<|im_end|>\n<|im_start|>user\nThanks.<|im_end|>\n<|im_start|>assistant\n"


@cache
def shape() -> Format:
    return Format(FakeEngine(PILOT))


def column(text: str) -> Ids:
    return shape()._engine.model.encode(text)


def sampled(text: str, number: int, stop: bool = True) -> Made:
    """Letter by letter, as no encoder would."""
    letters = [t for c in text for t in ids_list(column(c))]
    whole = ids(letters + ids_list(column("<|im_end|>") if stop else ids([])))
    return Made(number, "/", "ids", ids([1]), whole, floats([]), "stop" if stop else "length", Assistant("x"), True)


def prompt(first: str = FIRST, second: str = SECOND, **parts: str) -> Ids:
    """As sampled, letter by letter, between texts that may be wrong."""
    between = parts.get("between", BETWEEN)
    pieces = [
        ids_list(column(parts.get("before", BEFORE))), ids_list(sampled(first, 0).sampled)[:-1],
        ids_list(column(between)), ids_list(sampled(second, 1).sampled)[:-1],
        ids_list(column(parts.get("behind", BEHIND))),
    ]  # fmt: skip
    return ids(token for piece in pieces for token in piece)


WRITTEN = 'Look.\n<tool_call>\n{"name": "bash", "arguments": {"n": 1}}\n</tool_call>'
WANT = BEFORE + WRITTEN + BETWEEN + "One file." + BEHIND


def problem(have: Ids, origins: list[Made | None] | None = None, want: str = WANT) -> str:
    known = [sampled(FIRST, 0), sampled(SECOND, 1)] if origins is None else origins
    return Alignment(shape(), column(want), have, known).problem()[1]


def test_what_may_be() -> None:
    assert shape().known
    assert problem(column(WANT)) == "", "all as the template writes it"
    assert problem(prompt()) == "", "all as sampled"
    mixed = (
        ids_list(column(BEFORE + WRITTEN + BETWEEN))
        + ids_list(sampled(SECOND, 1).sampled)
        + ids_list(column(BEHIND))[1:]
    )
    assert problem(ids(mixed)) == "", "one as sampled"


@pytest.mark.parametrize(
    "parts",
    [
        {"between": BETWEEN.replace("<|im_end|>\n", "\n", 1)},
        {"between": BETWEEN.replace("<|im_end|>\n", "", 1)},
        {"between": "<|im_end|>\n<|im_start|>assistant\n"},
        {"between": BETWEEN.replace("a.txt", "b.txt")},
        {"between": BETWEEN.replace("\na.txt", "a.txt")},
        {"between": BETWEEN + "\n"},
        {"between": BETWEEN + BETWEEN},
        {"before": BEFORE.replace("Be brief.", "")},
        {"before": "\n" + BEFORE},
        {"behind": "<|im_end|>\n<|im_start|>assistant\n"},
        {"behind": BEHIND.replace("<|im_end|>", "<|endoftext|>", 1)},
        {"behind": BEHIND.removesuffix("<|im_start|>assistant\n")},
        {"behind": BEHIND + "<think>"},
        {"behind": ""},
        {"second": "One file, no: two."},
        {"first": FIRST.replace("Why not", "Because")},
        {"first": ""},
    ],
    ids=str,
)
def test_what_may_not_be(parts: dict[str, str]) -> None:
    assert problem(prompt(**parts)) != ""


def test_a_turn_that_nobody_sampled_is_as_the_template_writes_it() -> None:
    assert problem(prompt(), [None, sampled(SECOND, 1)]) != ""
    text = ids_list(column(BEFORE + WRITTEN + BETWEEN)) + ids_list(sampled(SECOND, 1).sampled)
    have = ids(text + ids_list(column(BEHIND))[1:])
    assert problem(have, [None, sampled(SECOND, 1)]) == ""


def test_turns_in_another_order() -> None:
    assert problem(prompt(SECOND, FIRST)) != ""


def test_a_turn_that_was_cut_may_be_closed() -> None:
    cut = sampled("<think>\nWhy", 0, stop=False)
    have = [ids_list(column(BEFORE)), ids_list(cut.sampled), ids_list(column("\n</think>\n\n" + BETWEEN))]
    rest = [ids_list(sampled(SECOND, 1).sampled), ids_list(column(BEHIND))[1:]]
    whole = ids(token for piece in (*have, *rest) for token in piece)
    assert problem(whole, [cut, sampled(SECOND, 1)]) == ""
    have[2] = ids_list(column("\n</think>\n\nmore words" + BETWEEN))
    more = ids(token for piece in (*have, *rest) for token in piece)
    assert problem(more, [cut, sampled(SECOND, 1)]) != ""


@pytest.mark.parametrize(
    ("have", "said"),
    [
        (prompt(before=BEFORE.replace("brief", "short")), "before the first assistant turn, at token"),
        (prompt(between=BETWEEN.replace("a.txt", "b.txt")), "behind assistant turn 1, at token"),
        (prompt(behind=BEHIND.replace("Thanks", "No")), "behind assistant turn 2, at token"),
        (prompt(second="Two."), "assistant turn 2 is neither as sampled nor as the template writes it"),
        (prompt(first="Two."), "assistant turn 1 is neither as sampled nor as the template writes it"),
    ],
)
def test_where_it_differs_is_said(have: Ids, said: str) -> None:
    assert problem(have).startswith(said), problem(have)


def test_the_template_of_the_pilot() -> None:
    """The texts above are what the template writes."""
    call = ToolCall("c", "bash", '{"n": 1}')
    talk = (
        System("Be brief."), UserText("List, twice."), Echo(Assistant("Look.", None, (call,)), 0),
        ToolResult("c", "a.txt", "bash"), Echo(Assistant("One file."), 1), UserText("Thanks."),
    )  # fmt: skip
    (first, *_) = shape().expected(Ask(talk, ()))
    assert shape().decode(first) == WANT
    assert shape().expected(replace(Ask(talk), tools=(tool("bash"),)))[0] != first
