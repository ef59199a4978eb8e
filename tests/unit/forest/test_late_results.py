"""Results that come one by one: what a turn was sampled on decides whether a conversation continues it."""

from __future__ import annotations

from tugline.core.items import Head
from unit.forest.driver import TOOLS, Session, results, say, user

START = (user("task"),)


def test_a_result_behind_the_next_turn_continues_it() -> None:
    session = Session()
    called = say(None, '{"a":1}', '{"a":2}', stem="c")
    session.call(START, called)
    first, late = results(called)
    second = session.call([*START, called, first], say("waiting", stem="d"))
    at = session.forest.attach(session.request([*START, called, first, say("waiting"), late]))
    assert at.parent == second and at.tail == (late,)


def test_a_result_put_in_front_of_the_next_turn_is_another_conversation() -> None:
    session = Session()
    called = say(None, '{"a":1}', '{"a":2}', stem="c")
    root = session.call(START, called)
    first, late = results(called)
    session.call([*START, called, first], say("waiting", stem="d"))
    at = session.forest.attach(session.request([*START, called, first, late, say("waiting"), user("on")]))
    assert at.parent == root, "the turn behind it never saw the second result"
    assert at.tail == (first, late, say("waiting"), user("on"))
    assert "foreign_assistant" in at.drift


def test_an_older_result_that_was_shortened_is_another_conversation() -> None:
    session = Session()
    called = say(None, '{"a":1}', stem="c")
    root = session.call(START, called)
    whole = results(called, "long output")
    session.call([*START, called, *whole], say("done", stem="d"))
    at = session.forest.attach(session.request([*START, called, *results(called, "cut"), say("done"), user("on")]))
    assert at.parent == root


def test_after_a_rewind_of_two_turns_the_older_turn_goes_on() -> None:
    session = Session()
    said = [say(f"step {i}", stem=f"s{i}") for i in range(3)]
    items: list[object] = list(START)
    turns = []
    for i, answer in enumerate(said):
        turns.append(session.call(items, answer))
        items += [answer, user(f"more {i}")]
    back = session.call([*START, said[0], user("instead")], say("other", stem="o"))
    assert back.parent == turns[0].turn_id
    forth = session.forest.attach(session.request(items))
    assert forth.parent == turns[2], "and what was rewound can be taken up again"


def test_tools_taken_away_and_given_back() -> None:
    session = Session()
    first = session.call(START, say("one"))
    bare = session.call([*START, say("one"), user("title?")], say("two"), head=Head())
    assert bare.parent is None
    again = session.forest.attach(session.request([*START, say("one"), user("on")], TOOLS))
    assert again.parent == first
