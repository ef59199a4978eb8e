"""Where requests attach: by echo, by meaning, at an ancestor, or nowhere with a reason."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tugline.core.items import (
    Assistant,
    Head,
    Options,
    Request,
    System,
    Tool,
    ToolCall,
    ToolResult,
    UserMedia,
    UserText,
)
from tugline.forest.edits import explained
from tugline.forest.rules import Rules
from unit.forest.driver import TOOLS, Session, respell, results, say, user

START = (System("be brief"), user("task"))


def grown(session: Session, turns: int) -> tuple[list[object], list[Assistant]]:
    """A conversation of tool turns, echoed verbatim: (items, what was said)."""
    items: list[object] = list(START)
    said = []
    for i in range(turns):
        answer = say(f"step {i}", f'{{"n": {i}}}', reasoning=f"think {i}", stem=f"call{i}")
        session.call(items, answer)
        items += [answer, *results(answer)]
        said.append(answer)
    return items, said


def test_first_request_is_a_root() -> None:
    at = Session().forest.attach(Request("m", TOOLS, START))
    assert (at.parent, at.match, at.root_reason, at.tail) == (None, "root", "root_first", START)


def test_verbatim_echo_attaches_exactly_at_full_depth() -> None:
    session = Session()
    items, _ = grown(session, 5)
    at = session.forest.attach(session.request(items))
    assert at.parent is not None
    assert (at.parent.turn_id, at.match, at.drift) == ("turn_4", "exact", ())
    assert at.tail == tuple(items[-1:])
    assert len(session.forest.leaves()) == 1


def test_attach_and_keys_change_nothing() -> None:
    session = Session()
    items, said = grown(session, 2)
    request = session.request(items)
    first = session.forest.attach(request)
    session.forest.keys(first, said[0])
    assert session.forest.attach(request) == first
    assert len(session.forest.turns) == 2


@pytest.mark.parametrize(
    ("edit", "drift"),
    [
        (lambda a: replace(a, reasoning=None), "reasoning_dropped"),
        (lambda a: replace(a, reasoning="think"), "reasoning_trimmed"),
        (lambda a: replace(a, text=a.text.strip()), "ws_trim"),
        (lambda a: respell(a, lambda s: '{"n": 1.0, "s": "é\\u00e9"}'), "unicode_respell"),
        (lambda a: respell(a, lambda s: '{"n":1,"s":"éé"}'), "number_respell"),
        (lambda a: respell(a, lambda s: '{"s": "éé", "n": 1.0}'), "key_order"),
        (lambda a: respell(a, lambda s: '{"n":1.0,"s":"éé"}'), "json_respell"),
        (lambda a: replace(a, calls=(replace(a.calls[0], id="other_9"),)), "ids_renamed"),
    ],
)
def test_edit_that_keeps_the_meaning_attaches_and_is_named(edit, drift: str) -> None:
    session = Session()
    answer = say(" hello\n", '{"n": 1.0, "s": "éé"}', reasoning=" think ")
    session.call(START, answer)
    echoed = edit(answer)
    at = session.forest.attach(session.request([*START, echoed, *results(echoed)]))
    assert at.parent is not None
    assert at.match == "lenient"
    assert at.drift == (drift,)


def test_invalid_arguments_replaced_by_an_empty_object_attach() -> None:
    session = Session()
    answer = say(None, '{"command": "echo hi", }')
    session.call(START, answer)
    echoed = respell(answer, lambda s: "{}")
    at = session.forest.attach(session.request([*START, echoed, *results(echoed)]))
    assert (at.match, at.drift) == ("lenient", ("args_lossy_known",))


def test_an_empty_object_replaced_by_a_real_call_does_not_attach() -> None:
    session = Session()
    answer = say(None, '{"command": "echo hi", }')
    session.call(START, answer)
    echoed = respell(answer, lambda s: '{"command": "echo hi"}')
    at = session.forest.attach(session.request([*START, echoed, *results(echoed)]))
    assert at.parent is None
    assert "edit_honoured" in at.drift
    assert "args_repaired" in at.drift


def test_an_edit_that_the_harness_keeps_is_exact_from_then_on() -> None:
    session = Session()
    first = say("one", '{"a": 1.0}', stem="a")
    session.call(START, first)
    dropped = respell(first, lambda s: '{"a":1}')
    second = say("two", stem="b")
    turn = session.call([*START, dropped, *results(dropped)], second)
    at = session.forest.attach(session.request([*START, dropped, *results(dropped), second, user("go on")]))
    assert (at.parent, at.match, at.drift) == (turn, "exact", ())


def test_an_edit_of_an_older_turn_is_named_too() -> None:
    session = Session()
    items, said = grown(session, 3)
    items[2] = replace(said[0], reasoning=None)
    at = session.forest.attach(session.request(items))
    assert at.parent is not None
    assert (at.parent.turn_id, at.match, at.drift) == ("turn_2", "lenient", ("reasoning_dropped",))


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda a: replace(a, text="rewritten"), "text_changed"),
        (lambda a: replace(a, calls=a.calls[:1]), "call_removed"),
        (lambda a: replace(a, calls=(*a.calls, ToolCall("x", "bash", "{}"))), "call_added"),
        (lambda a: respell(a, lambda s: '{"k": 2}'), "args_changed"),
        (lambda a: replace(a, calls=tuple(replace(c, name="other") for c in a.calls)), "call_renamed"),
    ],
)
def test_changed_meaning_branches_at_the_deepest_ancestor(edit, named: str) -> None:
    session = Session()
    first = say("first", stem="a")
    session.call(START, first)
    second = say("second", '{"k": 1}', '{"k": 3}', stem="b")
    session.call([*START, first, user("more")], second)
    changed = edit(second)
    tail = (user("more"), changed, user("and on"))
    at = session.forest.attach(session.request([*START, first, *tail]))
    assert at.parent is not None
    assert at.parent.turn_id == "turn_0"
    assert at.tail == tail
    assert set(at.drift) >= {"edit_honoured", named}
    assert "foreign_assistant" not in at.drift


def test_a_rewritten_first_turn_is_an_honoured_edit_of_a_root() -> None:
    session = Session()
    session.call(START, say("the first answer"))
    at = session.forest.attach(session.request([*START, say("the first word"), user("go on")]))
    assert (at.parent, at.match, at.drift) == (None, "root", ("edit_honoured", "text_changed"))
    cut = session.forest.attach(session.request([*START, say("the first"), user("go on")]))
    assert cut.drift == ("edit_honoured", "partial_echo")
    fake = session.forest.attach(session.request([*START, say("[Tool execution completed.]"), user("go on")]))
    assert fake.drift == ("foreign_assistant",)


def test_a_turn_deleted_by_the_harness_branches_at_its_parent() -> None:
    session = Session()
    first = say("first", stem="a")
    session.call(START, first)
    session.call([*START, first, user("more")], say(None, "not json"))
    at = session.forest.attach(session.request([*START, first, user("more"), user("your call was malformed")]))
    assert at.parent is not None
    assert at.parent.turn_id == "turn_0"
    assert at.drift == ("turn_deleted",)


def test_turns_that_nobody_sampled_are_context() -> None:
    session = Session()
    first = say("first")
    session.call(START, first)
    fake = Assistant("[Tool execution completed.]")
    at = session.forest.attach(session.request([*START, first, user("hm"), fake, user("go on")]))
    assert at.parent is not None
    assert at.parent.turn_id == "turn_0"
    assert at.drift == ("foreign_assistant",)
    after = session.call([*START, first, user("hm"), fake, user("go on")], say("second"))
    gone = session.forest.attach(session.request([*START, first, user("other")]))
    assert gone.parent is not None
    assert gone.parent.turn_id == "turn_0"  # the inserted pair is gone again: nothing is lost
    assert after.parent == "turn_0"


def test_the_last_user_message_may_grow_in_place() -> None:
    session = Session()
    items, _ = grown(session, 2)
    at = session.forest.attach(session.request([*items, UserText("<reminder>", joined=True)]))
    assert at.parent is not None
    assert (at.parent.turn_id, at.match) == ("turn_1", "exact")
    assert at.tail == (items[-1], UserText("<reminder>", joined=True))


def test_results_out_of_call_order_keep_the_harness_order() -> None:
    session = Session()
    answer = say(None, '{"a":1}', '{"a":2}', '{"a":3}')
    session.call(START, answer)
    ok = results(answer)
    shuffled = (ok[0], ok[2], ok[1])
    second = session.call([*START, answer, *shuffled], say("done", stem="z"))
    assert second.items == shuffled
    at = session.forest.attach(session.request([*START, answer, *shuffled, say("done"), user("next")]))
    assert at.parent is not None
    assert at.parent.turn_id == second.turn_id


def test_renamed_call_ids_attach_by_position_and_stay_resolvable() -> None:
    session = Session()
    answer = say(None, '{"a":1}', '{"a":2}', stem="ours")
    session.call(START, answer)
    renamed = replace(answer, calls=tuple(replace(c, id=f"bash_17_{i}") for i, c in enumerate(answer.calls)))
    items = [*START, renamed, *results(renamed)]
    second = session.call(items, say("done", stem="z"))
    assert second.parent == "turn_0"
    known = {call.id for item in session.forest.history("turn_1") if isinstance(item, Assistant) for call in item.calls}
    answered = {item.call_id for item in session.forest.history("turn_1") if isinstance(item, ToolResult)}
    assert answered <= known  # a template that looks names up by id finds them
    at = session.forest.attach(session.request([*items, say("done", stem="z"), user("next")]))
    assert at.parent is not None
    assert (at.parent.turn_id, at.match) == ("turn_1", "exact")


def test_missing_call_ids_are_resolved_by_order() -> None:
    session = Session()
    answer = say(None, '{"a":1}', '{"a":2}', stem="ours")
    session.call(START, answer)
    bare = replace(answer, calls=tuple(replace(c, id="") for c in answer.calls))
    second = session.call([*START, answer, *results(answer)], say("done", stem="z"))
    blank = [ToolResult("", r.text) for r in results(answer)]
    at = session.forest.attach(session.request([*START, bare, *blank, say("done", stem="z"), user("next")]))
    assert at.parent is not None
    assert (at.parent.turn_id, at.match) == (second.turn_id, "lenient")
    assert "ids_renamed" in at.drift


def test_of_equal_replies_the_one_with_the_echoed_ids_is_meant() -> None:
    session = Session()
    for i in range(3):
        session.call(START, say(None, '{"a": 1}', stem=f"s{i}"))
    echoed = respell(say(None, '{"a": 1}', stem="s1"), lambda s: '{"a":1}')
    at = session.forest.attach(session.request([*START, echoed, *results(echoed)]))
    assert at.parent is not None
    assert at.parent.turn_id == "turn_1"


def test_of_equal_texts_the_delivered_one_is_meant_then_the_newest() -> None:
    session = Session()
    for _ in range(3):
        session.call(START, say("same"))
    request = session.request([*START, say("same"), user("go on")])
    newest = session.forest.attach(request)
    assert newest.parent is not None
    assert newest.parent.turn_id == "turn_2"
    session.forest.mark_delivered("turn_1")
    delivered = session.forest.attach(request)
    assert delivered.parent is not None
    assert delivered.parent.turn_id == "turn_1"


def test_a_changed_head_is_a_new_root_with_its_reason() -> None:
    session = Session()
    items, _ = grown(session, 2)
    at = session.forest.attach(session.request(items, Head()))
    assert (at.parent, at.root_reason) == (None, "root_head_changed")
    more = Head((*TOOLS.tools, Tool("read", "{}")))
    assert session.forest.attach(session.request(items, more)).root_reason == "root_head_changed"
    kwargs = Head(TOOLS.tools, '{"enable_thinking":false}')
    assert session.forest.attach(session.request(items, kwargs)).root_reason == "root_head_changed"


def test_other_roots_say_why() -> None:
    session = Session()
    items, _ = grown(session, 2)
    attach = session.forest.attach
    assert attach(session.request(START)).root_reason == "root_repeated"
    assert attach(session.request([System("summarise"), user("a title please")], Head())).root_reason == "root_aux"
    assert attach(session.request([user("summary of before"), say("x"), user("go")])).root_reason == (
        "root_history_changed"
    )
    assert attach(session.request([System("you are a helper"), user("subtask")])).root_reason == "root_unknown"
    assert attach(session.request(items)).parent is not None


def test_null_and_empty_are_the_same() -> None:
    session = Session()
    session.call(START, say(None, '{"a": 1}'))
    at = session.forest.attach(session.request([*START, replace(say(None, '{"a": 1}'), text="", reasoning="")]))
    assert at.match == "exact"


def test_fingerprints_tell_requests_apart_by_what_is_asked_for() -> None:
    session = Session()
    items, said = grown(session, 2)

    def fingerprint(options: Options = Options(), items: object = tuple(items)) -> bytes:
        return session.forest.attach(Request("m", TOOLS, items, options)).fingerprint  # type: ignore[arg-type]

    assert fingerprint() == fingerprint()
    assert fingerprint() == fingerprint(Options(stream=True, include_usage=True))  # how it is sent changes no sample
    assert fingerprint() != fingerprint(Options(max_tokens=5))
    assert fingerprint() != fingerprint(Options(tool_choice="none"))
    assert fingerprint() != fingerprint(items=(*items, user("more")))
    edited = (*items[:2], replace(said[0], reasoning=None), *items[3:])
    assert fingerprint() != fingerprint(items=edited)


def test_javascript_integers_beyond_the_doubles_attach() -> None:
    session = Session()
    answer = say(None, '{"id": 9007199254740993, "x": 1e3, "y": 1.0}')
    session.call(START, answer)
    echoed = respell(answer, lambda s: '{"id":9007199254740992,"x":1000,"y":1}')
    at = session.forest.attach(session.request([*START, echoed, *results(echoed)]))
    assert (at.match, at.drift) == ("lenient", ("number_respell",))


def test_an_echo_that_ends_the_request_attaches_with_an_empty_tail() -> None:
    session = Session()
    session.call(START, say("one"))
    at = session.forest.attach(session.request([*START, say("one")]))
    assert (at.match, at.tail) == ("exact", ())


def test_parallel_extensions_of_one_turn_do_not_disturb_each_other() -> None:
    session = Session()
    items, _ = grown(session, 2)
    attached = [session.forest.attach(session.request([*items, user(f"part {i}")])) for i in range(32)]
    for i, at in enumerate(attached):
        turn = session.make(at, say(f"answer {i}", stem=f"p{i}"))
        session.forest.commit(turn)
        assert turn.parent == "turn_1"
    for i in range(32):
        at = session.forest.attach(session.request([*items, user(f"part {i}"), say(f"answer {i}"), user("on")]))
        assert at.parent is not None
        assert at.parent.turn_id == f"turn_{2 + i}"
        full = session.forest.full(at.parent.turn_id)
        assert full.startswith(session.forest.full("turn_1"))


def test_deeply_nested_arguments_are_compared_as_text() -> None:
    deep = "[" * 3000 + "]" * 3000
    session = Session()
    answer = say(None, json.dumps({"a": 1}), deep)
    session.call(START, answer)
    assert session.forest.attach(session.request([*START, answer, user("x")])).match == "exact"
    other = replace(answer, calls=(answer.calls[0], replace(answer.calls[1], arguments="[" * 2999 + "]" * 2999)))
    assert session.forest.attach(session.request([*START, other, user("x")])).parent is None


OPAQUE = (
    "{}",
    "rm -rf (",
    '{"command": "ls',
    '"{}"',
    '"quoted"',
    "null",
    "",
    "NaN",
    '{"n": NaN}',
    "\ud800",
    "[[" * 70 + "]]" * 70,
)
"""Arguments that have one lenient key, but for none of which any other stands: an object, no object, no JSON at all."""


@pytest.mark.parametrize("ours", OPAQUE)
@pytest.mark.parametrize("theirs", OPAQUE)
def test_arguments_of_one_key_attach_only_as_what_harnesses_make_of_them(ours: str, theirs: str) -> None:
    session = Session()
    first = session.call((UserText("go"),), Assistant("", None, (ToolCall("c1", "bash", ours),)))
    echoed = replace(first.echo, calls=(ToolCall("c1", "bash", theirs),))
    at = session.forest.attach(session.request((UserText("go"), echoed, ToolResult("c1", "done"))))
    assert (at.parent is first) == explained(ours, theirs), at.drift
    if at.parent is None:
        assert "edit_honoured" in at.drift


@pytest.mark.parametrize("first", ["whole", "joined"])
@pytest.mark.parametrize("delivered", ["both", "whole", "joined", "neither"])
def test_a_turn_that_says_it_alone_goes_before_one_that_says_it_with_what_stood_before(
    first: str, delivered: str
) -> None:
    """An agent that puts half of a reply into the model's mouth and gets the other half has both joined on some APIs:
    that must not take the place of the turn that said all of it, unless only the joined one was read."""
    session = Session()

    def play(which: str) -> str:
        asked = (*START, say("Here ")) if which == "joined" else START
        return session.call(asked, say("is it." if which == "joined" else "Here is it.")).turn_id

    other = "joined" if first == "whole" else "whole"
    turns = {which: play(which) for which in (first, other)}
    for which in ("whole", "joined"):
        if delivered in (which, "both"):
            session.forest.mark_delivered(turns[which])
    at = session.forest.attach(session.request([*START, say("Here is it."), user("on")]))
    assert at.parent is not None and at.match == "exact"
    assert at.parent.turn_id == turns["joined" if delivered == "joined" else "whole"]


def test_results_that_differ_are_another_prompt() -> None:
    """The same texts as results of other calls, or beside other pictures: what was sampled on them does not stay."""
    session, first = Session(), say("I look.", "{}", "{}", stem="c")
    session.call(START, first)
    png, jpg = UserMedia("image/png", "1"), UserMedia("image/jpeg", "2")
    asked = ToolResult("c_0", "ok", media=(png,)), ToolResult("c_1", "no")
    whole = session.call([*START, first, *asked], say("Here is the answer."))
    rules = Rules(partial=True)
    at = session.forest.attach(session.request([*START, first, *asked, say("Here is the"), user("on")]), rules)
    assert at.cut is not None and at.cut.origin is session.forest.turns[whole.turn_id]
    swapped = replace(asked[0], call_id="c_1"), replace(asked[1], call_id="c_0")
    for other in ((replace(asked[0], media=(jpg,)), asked[1]), (replace(asked[0], media=()), asked[1]), swapped):
        at = session.forest.attach(session.request([*START, first, *other, say("Here is the"), user("on")]), rules)
        assert at.cut is None
