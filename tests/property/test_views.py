"""One conversation in four APIs is one conversation: same lenient key, each finds what another sampled."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from property.views_wire import WRITERS, Call, Result, Said, Talk, Tool, User, cuts
from tugline.core.columns import concat, count, floats, ids
from tugline.core.items import Assistant, Item, Prefill, Request, System, ToolCall, ToolResult, UserText
from tugline.core.turn import Sampling, Turn
from tugline.dialects import DIALECTS
from tugline.forest import keys
from tugline.forest.forest import Forest
from tugline.testing.dialect_suite import reply_of

DIALECT = {d.name: d for d in DIALECTS}
NAMES = tuple(DIALECT)
PARAMS = {"model": "m"}
some = settings(max_examples=80, deadline=None)

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
names = st.sampled_from(["bash", "look", "write_file"])
json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), words
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=5,
)
objects = st.dictionaries(words, json_values, max_size=3)


@st.composite
def arguments(draw: st.DrawFn) -> str:
    """A JSON object, spelled in one of many ways, or text that is none."""
    if draw(st.integers(0, 7)) == 0:
        return draw(st.sampled_from(["{", '{"a": 1, }', "not json", '"text"', "[1]", "3", " "]))
    blank = draw(st.sampled_from(["", " ", "  "]))
    return json.dumps(draw(objects), ensure_ascii=draw(st.booleans()), separators=(f"{blank},", f":{blank}"))


@st.composite
def said(draw: st.DrawFn, at: int) -> Said:
    text, reasoning = draw(st.none() | words), draw(st.none() | words)
    calls = tuple(Call(f"call_{at}_{i}", draw(names), draw(arguments())) for i in range(draw(st.integers(0, 3))))
    return Said(text if text or calls else "ok", reasoning, calls)


@st.composite
def users(draw: st.DrawFn) -> User:
    return User(tuple(draw(st.lists(st.one_of(words, words, st.integers(0, 1)), min_size=1, max_size=4))))


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    """A conversation that ends with the harness's words."""
    tools = tuple(
        Tool(name, draw(st.none() | words), {"type": "object", "properties": draw(objects)})
        for name in draw(st.lists(names, unique=True, min_size=1, max_size=3))
    )
    turns: list[Any] = [draw(users())]
    for at in range(draw(st.integers(0, 4))):
        turn = draw(said(at))
        turns.append(turn)
        if turn.calls:
            image = st.none() | st.integers(0, 1)
            results = [Result(call, draw(words | st.just("")), draw(image)) for call in turn.calls]
            turns.append(tuple(draw(st.permutations(results))))
        if not turn.calls or draw(st.booleans()):
            turns.append(draw(users()))
    return Talk(tuple(draw(st.lists(words, max_size=2))), tools, tuple(turns))


def read(name: str, talk: Talk, wire: Any = None) -> Request:
    return DIALECT[name].decode(WRITERS[name].write(talk, wire), PARAMS)


def lenient(request: Request) -> bytes:
    return keys.walk(keys.start(b"template", request.head), request.items)[-1].lenient


@given(talks())
@some
def test_all_views_have_one_lenient_key(talk: Talk) -> None:
    requests = {name: read(name, talk) for name in NAMES}
    found = {name: lenient(request) for name, request in requests.items()}
    assert len(set(found.values())) == 1, {n: r.items for n, r in requests.items()}


@pytest.mark.parametrize("name", NAMES)
@given(talks(), st.data())
@some
def test_another_conversation_has_another_key(name: str, talk: Talk, data: st.DataObject) -> None:
    """So that the test above can fail: one word more anywhere changes the key."""
    at = data.draw(st.sampled_from([i for i, t in enumerate(talk.turns) if isinstance(t, User)]))
    turn = talk.turns[at]
    assert isinstance(turn, User)
    changed = replace(talk, turns=(*talk.turns[:at], User((*turn.parts, "more")), *talk.turns[at + 1 :]))
    assert lenient(read(name, talk)) != lenient(read(name, changed))


def commit(forest: Forest, request: Request, echo: Assistant) -> Turn:
    attached = forest.attach(request)
    exact, loose = forest.keys(attached, echo)
    parent = attached.parent
    before = forest.full(parent.turn_id) if parent else ids([])
    bridge = ids([1, 2])
    turn = Turn(
        f"turn_{len(forest.turns)}", "ses", len(forest.turns), parent.turn_id if parent else None, count(before),
        bridge, ids([3]), floats([-1.0]), ((0, 0),), "stop", count(concat([before, bridge])), request.head,
        attached.tail, echo, exact, loose, Sampling(),
    )  # fmt: skip
    forest.commit(turn)
    return turn


@pytest.mark.parametrize(("ours", "theirs"), list(itertools.permutations(NAMES, 2)))
@given(talk=talks(), turn=said(at=99), more=users())
@settings(max_examples=25, deadline=None)
def test_what_one_api_sampled_is_found_through_another(
    ours: str, theirs: str, talk: Talk, turn: Said, more: User
) -> None:
    forest = Forest("ses", b"template")
    calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in turn.calls)
    reply = reply_of(Assistant(turn.text, turn.reasoning, calls))
    request = read(ours, talk)
    sampled = commit(forest, request, DIALECT[ours].echo(replace(reply, request=request)))
    results = (tuple(Result(c, "ok", None) for c in turn.calls),) if turn.calls else ()
    onward = replace(talk, turns=(*talk.turns, turn, *results, more))
    found = forest.attach(read(theirs, onward))
    assert found.parent is not None and found.parent.turn_id == sampled.turn_id
    assert len(found.tail) == len(read(theirs, onward).items) - len(read(theirs, talk).items) - 1


@pytest.mark.parametrize("name", NAMES)
@given(talks(), said(at=99))
@some
def test_our_reply_comes_back_as_its_echo(name: str, talk: Talk, turn: Said) -> None:
    """The reply's own bytes go back into the conversation, as clients that keep what they got do it."""
    dialect, writer = DIALECT[name], WRITERS[name]
    calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in turn.calls)
    request = read(name, talk)
    reply = replace(reply_of(Assistant(turn.text, turn.reasoning, calls)), request=request)
    more = replace(talk, system=(), turns=(User(("go on",)),))
    wire = [*writer.wire(talk), *writer.reply(dialect.encode(reply)), *writer.wire(more)]
    assert read(name, talk, wire).items == (*request.items, dialect.echo(reply), UserText("go on"))


@pytest.mark.parametrize("name", NAMES)
@given(talks())
@some
def test_strings_are_verbatim(name: str, talk: Talk) -> None:
    items = read(name, talk).items
    texts = [i.text for i in items if isinstance(i, UserText | System)]
    expected = [*talk.system, *(run for t in talk.turns if isinstance(t, User) for run in runs(t))]
    assert texts == expected
    assert [i.text for i in items if isinstance(i, ToolResult)] == [
        r.text for t in talk.turns if isinstance(t, tuple) for r in t
    ]
    spoken = [t for t in talk.turns if isinstance(t, Said)]
    heard = [i for i in items if isinstance(i, Assistant)]
    assert [(h.text, h.reasoning) for h in heard] == [(t.text, t.reasoning) for t in spoken]


def runs(user: User) -> list[str]:
    """Text parts between images are one text."""
    groups = itertools.groupby(user.parts, key=lambda part: isinstance(part, str))
    return ["".join(map(str, group)) for is_text, group in groups if is_text]


@pytest.mark.parametrize("name", NAMES)
@given(talks())
@settings(max_examples=40, deadline=None)
def test_a_shorter_wire_gives_a_prefix(name: str, talk: Talk) -> None:
    """Between any two blocks of the wire. Only an assistant turn at the end may still grow."""
    whole = read(name, talk).items
    for wire in cuts(WRITERS[name], WRITERS[name].wire(talk)):
        items: tuple[Item, ...] = read(name, talk, wire).items
        if items and isinstance(items[-1], Assistant | Prefill):
            items = items[:-1]
        elif items and isinstance(items[-1], UserText):
            at = len(items) - 1
            grown = whole[at]
            assert isinstance(grown, UserText) and grown.text.startswith(items[-1].text)
            items = items[:-1]
        assert whole[: len(items)] == items
