"""Turns that come back only as far as a broken stream had shown them: the ids of that part stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tugline.core.columns import NO_IDS, Ids, concat, count, ids_list, take
from tugline.core.contracts import EditPolicy, Policy
from tugline.core.items import Assistant, Head, Item, Request, System, UserText
from tugline.core.turn import Partial, Sampling, Turn
from tugline.forest.rules import Rules, rules_of
from tugline.gateway.partial import longest
from tugline.gateway.prompt import Prompt, make_prompt
from unit.gateway.test_make_prompt import Talk
from unit.tokens.chat_kit import HEAD, model, split_up

START: tuple[Item, ...] = (System("Be brief."), UserText("go"))
WHOLE = "<think>\nI should look at é first.\n</think>\n\nHere is the answer, in many words. 漢字!"
CALLS = 'I look.\n<tool_call>\n{"name": "run", "arguments": {"cmd": "ls"}}\n</tool_call>'
ON = UserText("go on")


def rules(reasoning: str = "keep", **edits: Any) -> Rules:
    return rules_of(Policy(Sampling(), history_reasoning=reasoning, edits=EditPolicy(**edits)))  # type: ignore[arg-type]


def asked(talk: Talk, items: tuple[Item, ...], how: Rules, head: Head = HEAD) -> Prompt:
    request = Request("m", head, items)
    return make_prompt(talk.forest, request, talk.forest.attach(request, how), talk.deps)


def cut(text: str, *, deep: bool = False, seed: int = 1) -> tuple[Talk, tuple[Item, ...], Turn]:
    """A conversation whose last turn said `text` in ids of its own spelling."""
    talk, items = Talk(model()), START
    if deep:
        first = talk.call(items, talk.chat.encode("hello<|im_end|>"))
        items = (*items, first.echo, UserText("more"))
    sampled = split_up(talk.chat, talk.chat.encode(f"{text}<|im_end|>"), seed)
    return talk, items, talk.call(items, sampled)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("rest", [(), (ON,)])
def test_wherever_a_stream_was_cut_the_ids_so_far_stay(deep: bool, rest: tuple[Item, ...]) -> None:
    talk, items, turn = cut(WHOLE, deep=deep)
    kept = 0
    for k in range(1, count(turn.sampled) - 1):
        part = talk.chat.parse(talk.forest.prompt(turn.turn_id), take(turn.sampled, 0, k), "abort", ())
        echo, said = part.assistant, (part.assistant.text or part.assistant.reasoning or "")
        if echo.text == turn.echo.text or not said or "\ufffd" in said:
            continue  # no part, nothing, or half a character: harnesses show none
        made = asked(talk, (*items, echo, *rest), rules())
        assert made.partial is not None, (k, echo)
        before = concat([talk.forest.prompt(turn.turn_id), take(turn.sampled, 0, made.partial.n)])
        assert made.ids.startswith(before)
        assert made.partial == Partial(turn.turn_id, count(turn.bridge), made.partial.n)
        assert made.partial.n >= k
        again = talk.chat.parse(b"", take(turn.sampled, 0, made.partial.n), "abort", ()).assistant  # type: ignore[arg-type]
        assert ((again.text or "").strip(), again.reasoning) == ((echo.text or "").strip(), echo.reasoning)
        assert {"partial_echo", "edit_retained", "truncated_extended"} <= set(made.drift)
        assert "edit_honoured" not in made.drift
        assert made.attached.parent is (talk.forest.turns["turn_0"] if deep else None)
        closed = talk.chat.decode(take(made.ids, count(before)))
        assert closed.endswith("<|im_start|>assistant\n") and closed.count("go on") == len(rest)
        assert ("</think>" in closed) is ("</think>" not in talk.chat.decode(before))
        assert closed.startswith(("<|im_end|>", "</think>", "\n</think>"))
        kept += 1
    assert kept > 20


def test_a_cut_inside_a_token_is_rendered_from_the_words() -> None:
    talk, items, turn = cut("Here is the answer", seed=0)
    sampled = talk.chat.encode("Here is the answer<|im_end|>")
    talk, items = Talk(talk.chat), START
    turn = talk.call(items, sampled)
    inside = [n for n in range(3, 17) if not begins(talk, turn, "Here is the answer"[:n])]
    assert inside, "this tokenizer has no token of two letters"
    for n in inside:
        echo = Assistant("Here is the answer"[:n])
        made = asked(talk, (*items, echo, ON), rules())
        assert made.partial is None
        assert made.ids == talk.chat.render(HEAD, (*items, echo, ON)).ids


def begins(talk: Talk, turn: Turn, text: str) -> bool:
    parts = [talk.chat.decode(take(turn.sampled, 0, k)) for k in range(count(turn.sampled))]
    return text.strip() in (part.strip() for part in parts)


def test_a_call_that_never_arrived_is_no_part_of_what_stays() -> None:
    talk, items, turn = cut(CALLS)
    echo = Assistant("I look.")
    made = asked(talk, (*items, echo, ON), rules())
    assert made.partial is not None
    assert "<tool_call>" not in talk.chat.decode(made.ids)[len(talk.chat.decode(talk.forest.prompt(turn.turn_id))) :]
    assert "call_removed" not in made.drift
    talk.forest.mark_delivered(turn.turn_id)  # the harness had it and took it out
    made = asked(talk, (*items, echo, ON), rules())
    assert (made.partial, set(made.drift)) == (None, {"call_removed", "edit_honoured"})


def test_reasoning_that_is_left_out_is_kept_or_not_as_the_policy_has_it() -> None:
    talk, items, _ = cut(WHOLE)
    echo = Assistant("Here is the answer,")
    made = asked(talk, (*items, echo, ON), rules())
    assert made.partial is not None and "reasoning_dropped" in made.drift
    assert asked(talk, (*items, echo, ON), rules("template")).partial is None


@pytest.mark.parametrize(
    ("how", "edit"),
    [
        (rules(partial_echo="honour"), lambda a: a),
        (rules(ws_trim="honour"), lambda a: replace(a, text=(a.text or "").lstrip())),
        (rules(), lambda a: replace(a, text=f"{a.text}?")),
        (rules(), lambda a: replace(a, reasoning="I think.")),
    ],
)
def test_what_is_honoured_is_rendered(how: Rules, edit: Any) -> None:
    talk, items, turn = cut(WHOLE.replace("</think>\n\nHere", "</think>\n\n  Here"))
    echo = edit(Assistant("  Here is the answer,", turn.echo.reasoning))
    assert asked(talk, (*items, Assistant("  Here is the answer,", turn.echo.reasoning), ON), rules()).partial
    assert asked(talk, (*items, echo, ON), how).partial is None


def test_only_the_one_assistant_turn_behind_the_same_prompt_is_kept() -> None:
    talk, items, turn = cut(WHOLE)
    echo = Assistant("Here is the answer,", turn.echo.reasoning)
    for other in ((*items, echo, ON, Assistant("mine"), ON), (*items, UserText("or"), echo, ON)):
        assert asked(talk, other, rules()).partial is None
    assert asked(talk, (*items, echo, ON), rules(), Head()).partial is None


def test_the_branch_goes_on_exactly_and_a_second_cut_is_another_branch() -> None:
    talk, items, turn = cut(WHOLE)
    echo = Assistant("Here is the answer,", turn.echo.reasoning)
    made = asked(talk, (*items, echo, ON), rules(train_partial=True))
    assert made.partial is not None and made.partial.train
    sampled = talk.chat.encode("in many words.<|im_end|>")
    said = talk.chat.parse(made.ids, sampled, "stop", ()).assistant
    exact, lenient = talk.forest.keys(made.attached, said)
    branch = replace(
        turn, turn_id="turn_b", parent=None, keep=made.keep, bridge=made.bridge, sampled=sampled, echo=said,
        prompt_len=count(made.ids), items=made.attached.tail, key_exact=exact, key_lenient=lenient,
        partial=made.partial,
    )  # fmt: skip
    talk.forest.commit(branch)
    assert talk.forest.prompt("turn_b") == made.ids
    after = asked(talk, (*items, echo, ON, said, UserText("next")), rules())
    assert after.attached.parent is not None
    assert (after.attached.parent.turn_id, after.partial, after.attached.match) == ("turn_b", None, "exact")
    assert after.ids.startswith(talk.forest.full("turn_b"))
    shorter = asked(talk, (*items, replace(echo, text="Here is"), ON), rules())
    assert shorter.partial is not None and shorter.partial.turn_id == turn.turn_id
    assert ids_list(Ids(shorter.bridge))[: count(turn.bridge)] == ids_list(turn.bridge)


@pytest.mark.parametrize(("words", "near"), [("w w w ", 2), ("w", 2), ("x", 8), ("w w w w", 8)])
def test_few_beginnings_are_read_to_find_the_place(words: str, near: int) -> None:
    """Each is read from its first id on: of a long turn dozens would take seconds."""
    talk = Talk(model())
    sampled, parses = talk.chat.encode("w " * 3000), list[int]()

    def shown(k: int) -> Any:
        parses.append(k)
        return talk.chat.parse(NO_IDS, take(sampled, 0, k), "abort", ())

    found = longest(shown, count(sampled), Assistant(words))
    assert (found > 0) is words.startswith("w")
    assert len(parses) <= count(sampled).bit_length() + 1 + near
