"""What a request repeats is compared with the request before it, not hashed; the outcome is that of hashing it all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core.items import Assistant, Item, Prefill, System, ToolCall, ToolResult, UserMedia, UserText
from tugline.forest import keys, walked
from tugline.forest.forest import Forest
from tugline.forest.rules import Rules
from tugline.forest.walked import KEPT, ROOM, weight
from unit.forest.driver import DIGEST, Session, results, say, user

START: tuple[Item, ...] = (System("be brief"), user("task"))
RULES = (Rules(), Rules(honoured=frozenset({"ws_trim"})), Rules(retained=frozenset({"text_changed"})))


class Counted:
    """Counts the items whose views are hashed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.items = 0
        honest = keys.states

        def states(chain: keys.Chain, items: Iterable[Item], plain: Any = None) -> Iterator[keys.State]:
            for state in honest(chain, items, plain):
                self.items += 1
                yield state

        monkeypatch.setattr(keys, "states", states)

    def spent(self) -> int:
        spent, self.items = self.items, 0
        return spent


def spelled(item: Item) -> Item:
    """The turn as a client in another language echoes it."""
    if not isinstance(item, Assistant):
        return item
    calls = tuple(replace(call, arguments=call.arguments.replace(" ", "")) for call in item.calls)
    return replace(item, calls=calls, reasoning=None)


@pytest.mark.parametrize("echo", [lambda item: item, spelled], ids=["verbatim", "respelled"])
def test_a_turn_hashes_what_is_new_in_it(monkeypatch: pytest.MonkeyPatch, echo: Any) -> None:
    session, items = Session(), list(START)
    counted, spent = Counted(monkeypatch), []
    for n in range(60):
        answer = say(f"step {n}", f'{{"n": {n}}}', stem=f"c{n}")
        counted.spent()
        session.forest.attach(session.request(items))
        spent.append(counted.spent())
        session.call(items, answer)
        items += [echo(answer), *results(answer, "ok")]
    assert set(spent[1:]) == {2}, "the echo and one result"
    session.forest = Forest.restore("ses_1", DIGEST, list(session.forest.turns.values()))
    counted.spent()
    session.call(items, answer := say("step 60", '{"n": 60}', stem="c60"))
    assert counted.spent() == len(items) + 1, "all of it once, and the reply"
    session.forest.attach(session.request([*items, answer, *results(answer, "ok")]))
    assert counted.spent() == 2


def test_what_is_remembered_is_bounded_and_holds_no_copy() -> None:
    session, items = Session(), list(START)
    for n in range(3 * KEPT):
        answer = say(f"step {n}", f'{{"n": {n}}}', stem=f"c{n}")
        session.call([replace(i) for i in items], answer)  # every request is decoded anew
        items += [answer, *results(answer, "x" * 50)]
    walks = list(session.forest._walked._walks.values())
    assert len(walks) == KEPT
    for older, newer in pairwise(walks):
        assert all(a is b for a, b in zip(older.items, newer.items, strict=False))


def test_what_is_remembered_takes_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole requests are remembered when they come, whether or not they are ever answered."""
    monkeypatch.setattr(walked, "ROOM", 10_000)
    session = Session()

    def held() -> list[int]:
        return [len(str(walk.items[-1])) for walk in session.forest._walked._walks.values()]

    for size in (3000, 3001, 3002, 3003):
        session.forest.attach(session.request([user("x" * size)]))
    assert [n - held()[0] for n in held()] == [0, 1, 2], "the oldest goes"
    session.forest.attach(session.request([user("y" * 10_000)]))
    assert len(held()) == 3, "what has no room drives nothing out"
    session.forest.attach(session.request([user("\U0001f600" + "z" * 1500)]))
    assert len(held()) == 2, "characters of four bytes"
    grown: list[Item] = [user("x" * 3003)]
    for n in range(4):
        grown.append(user("w" * (1000 + n)))
        session.forest.attach(session.request(grown))
        last = next(reversed(session.forest._walked._walks.values()))
        assert last.size == weight(last.items) == weight(grown)
    assert ROOM >= 4 << 20, "a conversation of a million tokens is remembered"


LONG = "x" * 5000


@pytest.mark.parametrize(
    "item",
    [
        System(LONG), UserText(LONG), Prefill(LONG), UserMedia(LONG, "d"), UserMedia("m", LONG),
        ToolResult(LONG, ""), ToolResult("", LONG), ToolResult("", "", LONG),
        ToolResult("", "", None, (UserMedia("m", LONG),)),
        Assistant(LONG), Assistant(None, LONG), Assistant(calls=(ToolCall(LONG, "", ""),)),
        Assistant(calls=(ToolCall("", LONG, ""),)), Assistant(calls=(ToolCall("", "", LONG),)),
    ],
)  # fmt: skip
def test_each_text_of_an_item_weighs(item: Item) -> None:
    assert 5000 < weight((item,)) < 5600


words = st.sampled_from(["a", "a ", "b", ""])


@given(data=st.data(), rules=st.sampled_from(RULES))
def test_the_outcome_is_that_of_hashing_all(data: st.DataObject, rules: Rules) -> None:
    """Conversations that grow, go back, are edited and come again, in any order, from a forest that remembers them and
    from one that was just restored."""
    session = Session()
    talks: list[list[Item]] = [list(START)]
    for n in range(data.draw(st.integers(2, 9))):
        items = list(data.draw(st.sampled_from(talks)))
        if data.draw(st.booleans()):
            items = items[: data.draw(st.integers(1, len(items)))]
            if isinstance(items[-1], Assistant):
                items.append(user("instead"))
        if data.draw(st.integers(0, 3)) == 0:
            at = data.draw(st.integers(0, len(items) - 1))
            old = items[at]
            if isinstance(old, Assistant | UserText):
                items[at] = replace(old, text=data.draw(words))
        request = session.request(items)
        fresh = Forest.restore("ses_1", DIGEST, list(session.forest.turns.values()))
        for turn_id in session.forest.turns:
            if session.forest.delivered(turn_id):
                fresh.mark_delivered(turn_id)
        ours, theirs = session.forest.attach(request, rules), fresh.attach(request, rules)
        assert ours == theirs
        answer = say(data.draw(words), f'{{"n": {n % 3}}}', stem=f"c{n % 2}")
        session.last = ours
        session.forest.commit(session.make(ours, answer))
        if data.draw(st.booleans()):
            session.forest.mark_delivered(list(session.forest.turns)[-1])
        talks.append([*items, answer, *results(answer, "ok")])
