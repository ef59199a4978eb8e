"""What two spellings of one conversation share: tools by meaning, prefills as clients echo them."""

from __future__ import annotations

import pytest

from tugline.core.items import Assistant, Head, Prefill, Request, Tool, UserText
from tugline.forest import keys
from tugline.forest.forest import KNOWN_HEADS, Forest
from unit.forest.driver import DIGEST, Session, user

PLAIN = '{"type":"function","function":{"name":"f","description":"d","parameters":{"a":1,"b":2}}}'
SAME = (
    '{"function":{"parameters":{"b":2,"a":1.0},"strict":true,"name":"f","description":"d"},"type":"function"}',
    '{"name":"f","description":"d","parameters":{"a":1,"b":2}}',
)
OTHER = (
    PLAIN.replace('"d"', '"e"'),
    PLAIN.replace('"b":2', '"b":3'),
    PLAIN.replace('"name":"f"', '"name":"g"'),
    PLAIN[:-1],
)


def root(spec: str) -> keys.Chain:
    return keys.start(DIGEST, Head((Tool("f", spec),)))


@pytest.mark.parametrize("spec", SAME)
def test_tools_are_compared_by_meaning(spec: str) -> None:
    assert root(spec).lenient == root(PLAIN).lenient
    assert root(spec).exact != root(PLAIN).exact


@pytest.mark.parametrize("spec", OTHER)
def test_another_tool_is_another_head(spec: str) -> None:
    assert root(spec).lenient != root(PLAIN).lenient


def test_respelled_tools_continue_the_conversation_and_are_named() -> None:
    session = Session(head=Head((Tool("f", PLAIN),)))
    turn = session.call([user("a")], Assistant("b"))
    at = session.forest.attach(session.request([user("a"), Assistant("b"), user("c")], Head((Tool("f", SAME[0]),))))
    assert at.parent == turn and at.match == "lenient" and at.drift == ("tools_respelled",)


def test_an_echo_that_holds_its_prefill_is_the_turn() -> None:
    session = Session()
    turn = session.call([user("a"), Prefill("Sure, ")], Assistant(" go"))
    for text, match in (("Sure,  go", "exact"), ("Sure,  go \n", "lenient")):
        at = session.forest.attach(session.request([user("a"), Assistant(text), user("c")]))
        assert at.parent == turn and at.match == match, at
        assert at.drift == (() if match == "exact" else ("ws_trim",))
    assert session.forest.attach(session.request([user("a"), Assistant(" go"), user("c")])).parent is None
    assert session.forest.history(turn.turn_id)[-2:] == (Prefill("Sure, "), Assistant(" go"))


def test_another_prefill_is_another_request() -> None:
    forest = Forest("s", DIGEST)
    asked = [Request("m", Head(), (UserText("a"), *tail)) for tail in ((), (Prefill("x"),), (Prefill("y"),))]
    assert len({forest.attach(r).fingerprint for r in asked}) == 3


def test_heads_that_are_kept_are_bounded() -> None:
    forest = Forest("s", DIGEST)
    for n in range(KNOWN_HEADS * 2):
        forest.attach(Request("m", Head((Tool("f", str(n)),)), (UserText("a"),)))
    assert len(forest._roots) == KNOWN_HEADS
