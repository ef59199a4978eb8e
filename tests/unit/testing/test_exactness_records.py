"""Records of gateways, read from any JSON, and held against what the engine knows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tugline.core.columns import concat, floats, floats_array, ids, ids_list
from tugline.core.items import Assistant
from tugline.testing.exactness.fake import Made
from tugline.testing.exactness.records import Kept, call_problem, harvest, of_call, untrue


def made(prompt: list[int], sampled: list[int], number: int = 0) -> Made:
    logprobs = floats(-0.5 - n for n in range(len(sampled)))
    return Made(number, "/x", "ids", ids(prompt), ids(sampled), logprobs, "stop", Assistant("x"), planned=True)


FIRST = made([1, 2, 3], [10, 11, 99])
SECOND = made([1, 2, 3, 10, 11, 99, 4, 5], [20, 99], 1)


def row(*, mask: str = "000111" + "00" + "11", logprobs: bool = True) -> Kept:
    sampled = [*floats_array(FIRST.logprobs).tolist(), *floats_array(SECOND.logprobs).tolist()]
    spread = [float("nan")] * 3 + sampled[:3] + [float("nan")] * 2 + sampled[3:]
    column = concat([SECOND.prompt, SECOND.sampled])
    return Kept(column, bytes(map(int, mask)), floats(spread) if logprobs else None, row=True)


def test_calls_as_they_were() -> None:
    kept = [of_call(m.prompt, m.sampled, m.logprobs) for m in (FIRST, SECOND)]
    assert [call_problem(m, kept) for m in (FIRST, SECOND)] == ["", ""]
    assert untrue(kept, [FIRST, SECOND]) == ""


def test_a_row_as_it_was() -> None:
    assert [call_problem(m, [row()]) for m in (FIRST, SECOND)] == ["", ""]
    assert untrue([row()], [FIRST, SECOND]) == ""


def test_a_row_that_lost_its_stop_token_to_the_template() -> None:
    whole = row()
    column = [*ids_list(whole.ids)[:5], 98, 4, 5]
    kept = Kept(
        ids(column), b"\0\0\0\1\1\0\0\0", floats([float("nan")] * 3 + [-0.5, -1.5] + [float("nan")] * 3), row=True
    )
    assert call_problem(FIRST, [kept]) == ""
    assert untrue([kept], [FIRST]) == ""


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([], "nothing is recorded"),
        ([of_call(ids([]), ids([]), None)], "has no ids"),
        ([of_call(ids([]), FIRST.sampled, FIRST.logprobs)], "no prompt ids"),
        ([of_call(FIRST.prompt, ids([10, 12, 99]), FIRST.logprobs)], "from sampled token 1 of 3 + 3"),
        ([of_call(ids([1, 2, 7]), FIRST.sampled, FIRST.logprobs)], "from prompt token 2 of 3 + 3"),
        ([of_call(FIRST.prompt, FIRST.sampled, None)], "without log-probabilities"),
        ([of_call(FIRST.prompt, FIRST.sampled, floats([-0.5, -1.5, -2.6]))], "sampled token 2 is -2.6"),
        ([of_call(FIRST.prompt, FIRST.sampled, floats([-0.5, float("nan"), -2.5]))], "sampled token 1 is nan"),
        ([row(mask="0000000011")], "none of them as sampled"),
        ([row(), row()], "train in 2 rows"),
    ],
)
def test_calls_that_are_not(kept: list[Kept], said: str) -> None:
    assert said in call_problem(FIRST, kept)


@pytest.mark.parametrize("mask", ["0011110011", "0001111111", "0001110111"])
def test_a_mask_that_says_too_much(mask: str) -> None:
    assert "the engine did not sample tokens" in untrue([row(mask=mask)], [FIRST, SECOND])


def test_a_sample_that_another_prompt_had() -> None:
    foreign = replace(FIRST, prompt=ids([1, 2, 4]))
    assert untrue([row(mask="0001110000")], [foreign]) != ""


PROMPT, SAMPLED, VALUES = [1, 2, 3], [10, 11, 99], [-0.5, -1.5, -2.5]


@pytest.mark.parametrize(
    "value",
    [
        {"prompt_token_ids": PROMPT, "completion_token_ids": SAMPLED, "logprobs": VALUES},
        {"a": [{"b": {"prompt_ids": PROMPT, "response_ids": SAMPLED, "response_logprobs": VALUES}}]},
        {"token_ids": PROMPT + SAMPLED, "loss_mask": [0, 0, 0, 1, 1, 1], "logprobs": [None, None, None, *VALUES]},
        {"input_ids": PROMPT + SAMPLED, "completion_mask": [False] * 3 + [True] * 3, "logprobs": [0.0] * 3 + VALUES},
        {
            "request": {"input_ids": PROMPT, "messages": []},
            "response": {"choices": [{"meta_info": {"output_token_logprobs": [[v, t, None] for v, t in
                                                                              zip(VALUES, SAMPLED, strict=True)]}}]},
        },
    ],
)  # fmt: skip
def test_records_of_many_shapes(value: Any) -> None:
    kept = list(harvest([{"other": 1}, value]))
    assert len(kept) == 1 and call_problem(FIRST, kept) == ""


def test_a_record_without_ids_is_a_record() -> None:
    kept = list(harvest([{"prompt_token_ids": [], "completion_token_ids": [], "logprobs": None}]))
    assert "has no ids" in call_problem(FIRST, kept)
    assert list(harvest({"text": "x", "ids": [1, 2]})) == []


def test_lengths_that_do_not_fit() -> None:
    (kept,) = harvest({"prompt_token_ids": PROMPT, "completion_token_ids": SAMPLED, "logprobs": VALUES[:2]})
    assert kept.logprobs is None
    assert list(harvest({"token_ids": PROMPT, "loss_mask": [0, 1]})) == []
