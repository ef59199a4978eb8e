"""What the operator chooses for each class of edit, and text that counts for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tugline.core.contracts import EditPolicy, Policy, TextFilter
from tugline.core.items import Assistant, Head, Item, System, Tool, ToolResult, UserText
from tugline.core.turn import Sampling
from tugline.forest.attach import Attachment
from tugline.forest.forest import Forest
from tugline.forest.rules import Rules, rules_of
from unit.forest.driver import DIGEST, TOOLS, Session, respell, results, say, user

START = (System("be brief"), user("task"))
BILLING = TextFilter("billing", r"\Ax-bill:[^\n]*\n?", "first_system")
LEFT = TextFilter("left", r"\s*<left>[^<]*</left>")


def rules(*filters: TextFilter, reasoning: str = "keep", **edits: Any) -> Rules:
    return rules_of(Policy(Sampling(), history_reasoning=reasoning, edits=EditPolicy(**edits), filters=filters))  # type: ignore[arg-type]


def grown(answer: Assistant) -> tuple[Session, tuple[Item, ...]]:
    """Two turns, the second saying `answer`; and the conversation up to it."""
    session = Session()
    first = say("first", stem="a")
    session.call(START, first)
    before = (*START, first, user("more"))
    session.call(before, answer)
    return session, before


SILENT = say(" hi ", '{"k": 1}', stem="b")
ANSWER = say(" hi ", '{"k": 1}', reasoning=" think ", stem="b")
OPAQUE = say(" hi ", '{"k": 1, }', reasoning=" think ", stem="b")

SPELLED: list[tuple[dict[str, Any], Assistant, Callable[[Assistant], Assistant], str]] = [
    ({"ws_trim": "honour"}, ANSWER, lambda a: replace(a, text="hi"), "ws_trim"),
    ({"ws_trim": "honour"}, ANSWER, lambda a: replace(a, reasoning="think"), "reasoning_trimmed"),
    ({"reasoning_changed": "honour"}, ANSWER, lambda a: replace(a, reasoning="other"), "reasoning_changed"),
    ({"reasoning_changed": "honour"}, SILENT, lambda a: replace(a, reasoning="x"), "reasoning_added"),
    ({"reasoning": "template"}, ANSWER, lambda a: replace(a, reasoning=None), "reasoning_dropped"),
    ({"args_lossy_known": "honour"}, OPAQUE, lambda a: respell(a, lambda _: "{}"), "args_lossy_known"),
]


@pytest.mark.parametrize(("asked", "answer", "edit", "named"), SPELLED)
def test_an_edit_that_keeps_the_meaning_is_retained_by_default_and_honoured_if_asked(
    asked: dict[str, Any], answer: Assistant, edit: Callable[[Assistant], Assistant], named: str
) -> None:
    session, before = grown(answer)
    echoed = edit(answer)
    items = (*before, echoed, *results(echoed))
    kept = session.forest.attach(session.request(items), rules())
    assert kept.parent is not None
    assert (kept.parent.turn_id, kept.drift) == ("turn_1", (named,))
    obeyed = session.forest.attach(session.request(items), rules(**asked))
    assert obeyed.parent is not None
    assert obeyed.parent.turn_id == "turn_0"
    assert obeyed.tail == items[3:]  # the harness's own words stand in the branch
    assert obeyed.drift == tuple(sorted(("edit_honoured", named)))


MEANT: list[tuple[str, Assistant, Callable[[Assistant], Assistant]]] = [
    ("args_changed", ANSWER, lambda a: respell(a, lambda _: '{"k": 2}')),
    ("args_repaired", OPAQUE, lambda a: respell(a, lambda _: '{"k": 1}')),
    ("text_changed", ANSWER, lambda a: replace(a, text="hello")),
]


@pytest.mark.parametrize(("named", "answer", "edit"), MEANT)
def test_an_edit_that_changes_the_meaning_is_honoured_by_default_and_retained_if_asked(
    named: str, answer: Assistant, edit: Callable[[Assistant], Assistant]
) -> None:
    session, before = grown(answer)
    session.call(before, say("a sibling", '{"other": true}', stem="s"))  # a resample of the same prompt
    echoed = edit(answer)
    items = (*before, echoed, *results(echoed))
    obeyed = session.forest.attach(session.request(items), rules())
    assert obeyed.parent is not None
    assert (obeyed.parent.turn_id, obeyed.drift) == ("turn_0", tuple(sorted(("edit_honoured", named))))
    kept = session.forest.attach(session.request(items), rules(**{named: "retain"}))
    assert kept.parent is not None
    assert (kept.parent.turn_id, kept.match) == ("turn_1", "lenient")
    assert kept.tail == tuple(results(echoed))
    assert kept.drift == tuple(sorted(("edit_retained", named)))


@pytest.mark.parametrize(("named", "answer", "edit"), MEANT)
def test_a_retained_edit_is_exact_from_then_on(
    named: str, answer: Assistant, edit: Callable[[Assistant], Assistant]
) -> None:
    session, before = grown(answer)
    echoed = edit(answer)
    items = (*before, echoed, *results(echoed))
    at = session.forest.attach(session.request(items), rules(**{named: "retain"}))
    turn = session.make(at, say("third", stem="c"))
    session.forest.commit(turn)
    again = session.forest.attach(session.request([*items, say("third", stem="c"), user("go on")]), rules())
    assert (again.parent, again.match, again.drift) == (turn, "exact", ())
    assert session.forest.full(turn.turn_id).startswith(session.forest.full("turn_1"))


def test_a_first_turn_is_retained_too_and_several_in_one_request() -> None:
    session = Session()
    first, second = say("one", '{"k": 1}', stem="a"), say("two", '{"k": 2}', stem="b")
    session.call(START, first)
    session.call([*START, first, *results(first)], second)
    changed = [respell(a, lambda _: '{"k": 9}') for a in (first, second)]
    items = (*START, changed[0], *results(first), changed[1], *results(second))
    at = session.forest.attach(session.request(items), rules(args_changed="retain"))
    assert at.parent is not None
    assert (at.parent.turn_id, at.root_reason, at.tail) == ("turn_1", None, results(second))
    assert at.drift == ("args_changed", "edit_retained")


def test_an_edit_under_other_tools_is_not_retained() -> None:
    session = Session()
    answer = say("", '{"k": 1}', stem="a")
    session.call(START, answer, head=Head())
    echoed = respell(answer, lambda _: '{"k": 2}')
    items = (*START, echoed, *results(echoed))
    asked = rules(args_changed="retain")
    at = session.forest.attach(session.request(items, head=TOOLS), asked)
    assert (at.parent, at.match) == (None, "root")
    kept = session.forest.attach(session.request(items, head=Head()), asked)
    assert kept.parent is not None


def test_retaining_one_class_obeys_the_others() -> None:
    session, before = grown(ANSWER)
    both = replace(respell(ANSWER, lambda _: '{"k": 2}'), text="hello")
    at = session.forest.attach(session.request([*before, both, *results(both)]), rules(args_changed="retain"))
    assert at.parent is not None
    assert (at.parent.turn_id, at.drift) == ("turn_0", ("args_changed", "edit_honoured", "text_changed"))


def test_the_turn_that_shares_a_call_id_is_meant() -> None:
    session = Session()
    mine, other = say(None, '{"k": 1}', stem="mine"), say(None, '{"k": 2}', stem="other")
    session.call(START, mine)
    session.call(START, other)
    echoed = respell(mine, lambda _: '{"k": 3}')
    at = session.forest.attach(session.request([*START, echoed, *results(echoed)]), rules(args_changed="retain"))
    assert at.parent is not None
    assert at.parent.turn_id == "turn_0"


def test_an_honoured_edit_is_named_once_and_the_branch_goes_on_exactly() -> None:
    session, before = grown(ANSWER)
    items = (*before, replace(ANSWER, text="hi"), *results(ANSWER))
    strict = rules(ws_trim="honour")
    at = session.forest.attach(session.request(items), strict)
    turn = session.make(at, say("third", stem="c"))
    session.forest.commit(turn)
    again = session.forest.attach(session.request([*items, say("third", stem="c"), user("go on")]), strict)
    assert (again.parent, again.match, again.drift) == (turn, "exact", ())


# -------------------------------------------------------------------------------------------------- head


def test_a_changed_head_is_a_root_or_the_conversation_goes_on_under_the_old_one() -> None:
    session = Session()
    first = say("first")
    session.call(START, first)
    request = session.request([*START, first, user("more")], Head())
    fresh = session.forest.attach(request, rules())
    assert (fresh.parent, fresh.root_reason, fresh.head) == (None, "root_head_changed", None)
    stale = session.forest.attach(request, rules(head_changed="retain"))
    assert stale.parent is not None
    assert (stale.parent.turn_id, stale.head, stale.drift) == ("turn_0", TOOLS, ("head_stale",))
    unlike = session.request([*START, say("unlike"), user("more")], Head())
    assert session.forest.attach(unlike, rules(head_changed="retain")).root_reason == "root_head_changed"


def test_the_newest_head_that_goes_on_is_kept() -> None:
    session = Session()
    other = Head(tools=(Tool("read", '{"type":"function","function":{"name":"read"}}'),))
    session.call(START, say("first"))
    session.call(START, say("first"), head=other)
    request = session.request([*START, say("first"), user("more")], Head())
    stale = session.forest.attach(request, rules(head_changed="retain"))
    assert (stale.parent, stale.head) == (session.forest.turns["turn_1"], other)


# ----------------------------------------------------------------------------------------------- filters


def billed(n: int, rest: str = "be brief") -> System:
    return System(f"x-bill: v=1; h={n};\n{rest}")


def attach(session: Session, items: tuple[Item, ...], asked: Rules) -> Attachment:
    return session.forest.attach(session.request(items), asked)


def test_a_changed_header_line_is_a_root_without_the_filter_and_counted_with_it() -> None:
    session, asked = Session(), rules(BILLING)
    first, second = say("one"), say("two", stem="b")
    turn = session.make(attach(session, (billed(1), user("task")), asked), first)
    session.forest.commit(turn)
    items = (billed(2), user("task"), first, user("more"))
    assert attach(session, items, rules()).root_reason == "root_history_changed"
    at = attach(session, items, asked)
    assert (at.parent, at.match, at.drift, at.tail) == (turn, "lenient", ("filtered:billing",), (user("more"),))
    again = session.make(at, second)
    session.forest.commit(again)
    assert session.forest.full(again.turn_id).startswith(session.forest.full(turn.turn_id))  # the old line stays
    same = attach(session, (*items, second, user("go on")), asked)
    assert (same.parent, same.match, same.drift) == (again, "exact", ())
    third = attach(session, (billed(3), *items[1:], second, user("go on")), asked)
    assert (third.parent, third.match, third.drift) == (again, "lenient", ("filtered:billing",))


def test_a_filter_reads_what_it_is_for_and_nothing_else() -> None:
    session, asked = Session(), rules(BILLING)
    first = say("one")
    session.forest.commit(session.make(attach(session, (billed(1), user("task")), asked), first))
    for items in [
        (billed(2, "another prompt"), user("task"), first, user("more")),
        (System("v=1\nx-bill: h=2\nbe brief"), user("task"), first, user("more")),
        (user("x-bill: v=1; h=1;\nbe brief"), user("task"), first, user("more")),
    ]:
        assert attach(session, items, asked).parent is None
    late = (billed(1), user("task"), first, System("x-bill: 1\nnote"))
    session.forest.commit(session.make(attach(session, late, asked), say("two")))
    changed = (*late[:3], System("x-bill: 2\nnote"), say("two"), user("go on"))
    at = attach(session, changed, asked)
    assert at.parent is not None
    assert at.parent.turn_id == "turn_0"  # only the first system text has such a line


@pytest.mark.parametrize("where", ["result", "user", "system"])
def test_reminders_in_any_text(where: str) -> None:
    def note(n: int) -> Item:
        text = f"ok\n<left>{n} tokens</left>"
        return {"result": ToolResult("c_0", text), "user": UserText(text), "system": System(text)}[where]

    session, asked = Session(), rules(LEFT)
    first = say(None, "{}")
    session.forest.commit(session.make(attach(session, START, asked), first))
    second = session.make(attach(session, (*START, first, note(9)), asked), say("two", stem="b"))
    session.forest.commit(second)
    at = attach(session, (*START, first, note(7), say("two", stem="b"), user("more")), asked)
    assert (at.parent, at.drift) == (second, ("filtered:left",))
    gone = attach(session, (*START, first, note(7), replace(say("two", stem="b"), text="three"), user("more")), asked)
    assert gone.parent is not None
    assert gone.parent.turn_id == "turn_0"
    assert "foreign_assistant" in gone.drift


@pytest.mark.parametrize("said", [(), (say("one"), user("more"))])
def test_a_retry_is_known_whatever_volatile_text_it_brings(said: tuple[Item, ...]) -> None:
    session, asked = Session(), rules(BILLING, LEFT)
    session.forest.commit(session.make(attach(session, (billed(1), user("task")), asked), say("one")))

    def told(n: int, rest: str = "be brief", own: str = "task") -> bytes:
        items = (billed(n, rest), user(f"{own}<left>{n} tokens</left>"), *said)
        return attach(session, items, asked).fingerprint

    assert told(1) == told(2)
    assert attach(session, (System("be brief"), user("task"), *said), asked).fingerprint == told(1)
    assert len({told(1), told(1, "be long"), told(1, own="other")}) == 3
    plain = [attach(session, (billed(n), user("task"), *said), rules()).fingerprint for n in (1, 2)]
    assert plain[0] != plain[1]


def test_edited_turns_are_recognised_behind_filtered_text() -> None:
    session, asked = Session(), rules(BILLING)
    first = say("one", '{"k": 1}')
    session.forest.commit(session.make(attach(session, (billed(1), user("task")), asked), first))
    changed = respell(first, lambda _: '{"k": 2}')
    at = attach(session, (billed(2), user("task"), changed, *results(changed)), asked)
    assert (at.parent, at.drift) == (None, ("args_changed", "edit_honoured"))
    kept = attach(session, (billed(2), user("task"), changed, *results(changed)), rules(BILLING, args_changed="retain"))
    assert kept.parent is not None
    assert kept.drift == ("args_changed", "edit_retained", "filtered:billing")


def test_without_volatile_text_filters_change_no_key() -> None:
    plain, filtering = Session(), Session()
    for session, asked in ((plain, rules()), (filtering, rules(BILLING, LEFT))):
        session.forest.commit(session.make(attach(session, START, asked), say("one")))
    ours, theirs = (s.forest.turns["turn_0"] for s in (plain, filtering))
    assert (ours.key_exact, ours.key_lenient) == (theirs.key_exact, theirs.key_lenient)


def test_a_restored_forest_finds_filtered_turns() -> None:
    session, asked = Session(), rules(BILLING)
    first = say("one")
    session.forest.commit(session.make(attach(session, (billed(1), user("task")), asked), first))
    again = Forest.restore("ses_1", DIGEST, list(session.forest.turns.values()))
    at = again.attach(session.request([billed(2), user("task"), first, user("more")]), asked)
    assert at.drift == ("filtered:billing",)
