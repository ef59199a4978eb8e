"""Habits of real harnesses, each with the name it gets. Hand-written conversations of the recorded shapes."""

from __future__ import annotations

from dataclasses import replace

from tugline.core.items import Assistant, System, ToolCall, ToolResult, UserText
from unit.forest.driver import Session, results, say, user

START = (System("be brief"), user("task"))


def test_only_the_reasoning_of_a_cut_stream_comes_back() -> None:
    session = Session()
    whole = say("Here is the answer.", '{"k": 1}', reasoning="think it over")
    session.call(START, whole)
    cut = Assistant(reasoning="think it over")
    at = session.forest.attach(session.request([*START, cut, user("continue")]))
    assert (at.parent, at.drift) == (None, ("edit_honoured", "partial_echo"))
    other = session.forest.attach(session.request([*START, replace(cut, text="There is"), user("continue")]))
    assert other.drift == ("call_removed", "edit_honoured", "text_changed")


def test_only_the_reasoning_of_a_cut_text_comes_back() -> None:
    session = Session()
    session.call(START, say("Here is the answer.", reasoning="think it over"))
    at = session.forest.attach(session.request([*START, Assistant(reasoning="think it over"), user("continue")]))
    assert at.drift == ("edit_honoured", "partial_echo")


def test_a_cut_text_comes_back_as_far_as_it_was_seen_and_the_branch_goes_on() -> None:
    session = Session()
    session.call(START, say("Here is the answer."))
    items = (*START, say("Here is"), user("go on"))
    second = session.call(items, say("the answer."))
    assert (second.parent, second.drift) == (None, ("edit_honoured", "partial_echo"))
    at = session.forest.attach(session.request([*items, say("the answer."), user("next")]))
    assert (at.parent, at.match, at.drift) == (second, "exact", ())


def test_a_request_again_after_a_cut_stream_is_a_sibling_that_keeps_both() -> None:
    session = Session()
    first = session.call(START, say("cut off"))
    again = session.call(START, say("whole"))
    assert session.last is not None
    assert (session.last.root_reason, again.parent) == ("root_repeated", None)
    assert session.forest.children(None) == (first.turn_id, again.turn_id)


def test_a_tool_renamed_to_invalid_is_an_honoured_rename() -> None:
    session = Session()
    said = Assistant(None, None, (ToolCall("c_0", "nosuch", '{"k": 1}'),))
    session.call(START, said)
    echoed = replace(said, calls=(ToolCall("c_0", "invalid", '{"tool": "nosuch", "error": "unknown"}'),))
    at = session.forest.attach(session.request([*START, echoed, ToolResult("c_0", "no such tool")]))
    assert (at.parent, at.drift) == (None, ("call_renamed", "edit_honoured"))


def test_one_of_several_calls_renamed_to_invalid() -> None:
    session = Session()
    first = say("first")
    session.call(START, first)
    said = say(None, '{"k": 1}', '{"k": 2}', stem="b")
    session.call([*START, first, user("more")], said)
    echoed = replace(said, calls=(said.calls[0], replace(said.calls[1], name="invalid")))
    at = session.forest.attach(session.request([*START, first, user("more"), echoed, *results(echoed)]))
    assert at.parent is not None
    assert (at.parent.turn_id, at.drift) == ("turn_0", ("call_renamed", "edit_honoured"))


def test_system_text_in_the_middle_of_the_list_is_an_item_like_others() -> None:
    session = Session()
    first, second = say(None, "{}", stem="a"), say("two", stem="b")
    session.call(START, first)
    items = (*START, first, *results(first), System("tools have changed"))
    turn = session.call(items, second)
    assert turn.parent == "turn_0"
    assert turn.items[-1] == System("tools have changed")
    at = session.forest.attach(session.request([*items, second, user("next")]))
    assert (at.parent, at.match, at.drift) == (turn, "exact", ())
    without = session.forest.attach(session.request([*START, first, *results(first), second, user("next")]))
    assert without.parent is not None
    assert without.parent.turn_id == "turn_0"
    assert "foreign_assistant" in without.drift


def test_developer_and_system_are_one_role_in_another_api() -> None:
    session = Session()
    first = say("one")
    session.call(START, first)
    late = (*START, first, System("note", "developer"))
    second = session.call(late, say("two"))
    at = session.forest.attach(session.request([*START, first, System("note"), say("two"), user("next")]))
    assert (at.parent, at.match, at.drift) == (second, "lenient", ("shape",))


def test_the_last_user_block_grows_under_an_answer_and_both_answers_stay() -> None:
    session = Session()
    first = say(None, "{}", stem="a")
    session.call(START, first)
    short = (*START, first, *results(first))
    second = session.call(short, say("two", stem="b"))
    long = (*short, UserText("<reminder>be quick</reminder>", joined=True))
    third = session.call(long, say("three", stem="c"))
    assert (second.parent, third.parent) == ("turn_0", "turn_0")
    assert third.drift == ("turn_deleted",)  # the answer to the shorter list is left out


def test_an_inserted_pair_and_its_removal_leave_one_conversation() -> None:
    session = Session()
    first = say("thoughts only")
    session.call(START, first)
    pair = (Assistant("[Tool execution completed.]"), user("Please continue."))
    inserted = session.call([*START, first, user("more"), *pair], say("two", stem="b"))
    assert inserted.drift == ("foreign_assistant",)
    removed = session.call([*START, first, user("more")], say("three", stem="c"))
    assert (inserted.parent, removed.parent, removed.drift) == ("turn_0", "turn_0", ())
    at = session.forest.attach(session.request([*START, first, user("more"), say("three", stem="c"), user("on")]))
    assert (at.parent, at.match) == (removed, "exact")


def test_results_in_another_order_than_before_are_another_prompt() -> None:
    session = Session()
    said = say(None, '{"a": 1}', '{"a": 2}', stem="a")
    session.call(START, said)
    ordered, second = results(said), say("done", stem="z")
    session.call([*START, said, *ordered], second)
    at = session.forest.attach(session.request([*START, said, *reversed(ordered), second, user("next")]))
    assert at.parent is not None
    assert at.parent.turn_id == "turn_0"
    assert "foreign_assistant" in at.drift


def test_a_turn_behind_an_assistant_turn_may_come_back_as_one_with_it() -> None:
    session = Session()
    first = say("one", stem="a")
    session.call(START, first)
    for before in ((), (first, user("more"))):
        cut = say("Here", reasoning="think")
        turn = session.call([*START, *before, cut], say(" it is.", '{"k": 1}', reasoning=" on", stem="z"))
        whole = say("Here it is.", '{"k": 1}', reasoning="think on", stem="z")
        for echoed in ((cut, turn.echo), (whole,)):
            at = session.forest.attach(session.request([*START, *before, *echoed, *results(whole)]))
            assert (at.parent, at.match, at.tail) == (turn, "exact", results(whole))
        again = session.call([*START, *before, whole, *results(whole)], say("done", stem="y"))
        at = session.forest.attach(
            session.request([*START, *before, whole, *results(whole), say("done", stem="y"), user("on")])
        )
        assert (at.parent, at.match) == (again, "exact")
