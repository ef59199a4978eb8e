from dataclasses import replace
from pathlib import Path

import pytest

from tugline.core.contracts import EngineInfo, Policy
from tugline.core.errors import ContextOverflow, Forbidden, Unsupported
from tugline.core.items import Assistant, Head, Item, Options, Request, Tool, ToolCall, ToolResult, UserMedia, UserText
from tugline.core.turn import Sampling
from tugline.gateway.admission import Spent, admit, check_budget, check_length, check_request

INFO = EngineInfo("x", "m", Path(), context=100, vocab=10, stop_ids=(1,))
POLICY = Policy(Sampling(temperature=0.7, max_tokens=50))


def request(**options: object) -> Request:
    return Request("m", Head(), (UserText("hi"),), Options(**options))  # type: ignore[arg-type]


def test_sampling_is_the_operators_whatever_the_harness_asks() -> None:
    used = admit(POLICY, request(temperature=0.0, top_p=0.1), INFO, 10, Spent())
    assert (used.temperature, used.top_p) == (0.7, 1.0)


@pytest.mark.parametrize(("asked", "prompt", "expected"), [(None, 10, 50), (20, 10, 20), (4096, 60, 40), (1, 99, 1)])
def test_max_tokens_is_the_least_of_asked_policy_and_room(asked: int | None, prompt: int, expected: int) -> None:
    assert admit(POLICY, request(max_tokens=asked), INFO, prompt, Spent()).max_tokens == expected


def test_a_prompt_that_fills_the_window_is_a_context_error_with_both_numbers() -> None:
    with pytest.raises(ContextOverflow) as caught:
        admit(POLICY, request(), INFO, 100, Spent())
    assert (caught.value.prompt_tokens, caught.value.limit) == (100, 100)


def test_session_budgets_end_a_session_cleanly() -> None:
    policy = Policy(Sampling(max_tokens=50), max_turns=2, max_session_tokens=30)
    check_budget(policy, Spent(1, 29))
    assert admit(policy, request(), INFO, 10, Spent(1, 25)).max_tokens == 5
    with pytest.raises(Forbidden, match="2 turns"):
        check_budget(policy, Spent(2, 0))
    with pytest.raises(Forbidden, match="30 sampled"):
        check_budget(policy, Spent(1, 30))


def test_items_calls_and_tools_have_a_token_each() -> None:
    turn = Assistant("x", None, (ToolCall("1", "a", "{}"), ToolCall("2", "b", "{}")))
    asked = Request("m", Head((Tool("a", "{}"),)), (UserText("hi"), turn))
    check_length(asked, 5)
    with pytest.raises(ContextOverflow) as caught:
        check_length(asked, 4)
    assert (caught.value.prompt_tokens, caught.value.limit) == (5, 4)


IMAGE = UserMedia("image/png", "d")


@pytest.mark.parametrize("item", [IMAGE, ToolResult("c", "", None, (IMAGE,))])
def test_images_are_refused_where_the_operator_wants_it(item: Item) -> None:
    asked = Request("m", Head(), (item,))
    assert check_request(POLICY, asked) == ()
    with pytest.raises(Unsupported, match="cannot see image/png"):
        check_request(replace(POLICY, media="refuse"), asked)


@pytest.mark.parametrize(
    ("options", "name"), [({"tool_choice": "required"}, "tool_choice"), ({"output": "json_object"}, "output")]
)
def test_what_needs_constrained_sampling_is_refused_or_named(options: dict[str, str], name: str) -> None:
    with pytest.raises(Unsupported, match="constrained sampling"):
        check_request(POLICY, request(**options))
    free = replace(POLICY, constraints="ignore")
    assert check_request(free, request(**options)) == (f"unconstrained_{name}",)
