"""Long sessions: memory and the cost of a turn grow with what is new, restarts change nothing."""

from __future__ import annotations

import gc
import tracemalloc

from tugline.core.items import Item, System
from tugline.forest import keys
from tugline.forest.attach import Attachment
from tugline.forest.forest import Forest
from unit.forest.driver import DIGEST, Session, results, say, user

START: tuple[Item, ...] = (System("be brief"), user("task"))


def grow(session: Session, items: list[Item], turns: range) -> None:
    for n in turns:
        answer = say(f"step {n}", f'{{"n": {n}}}', stem=f"c{n}")
        session.call(items, answer)
        items += [answer, *results(answer, "x" * 40)]


def test_a_hundred_turns_take_the_same_memory_whenever_they_come() -> None:
    session = Session()
    at = session.forest.attach(session.request(START))

    def go_on(turns: int) -> None:
        nonlocal at
        for _ in range(turns):
            answer, tail = say("step"), (user("observation"),)
            turn = session.make(at, answer)
            session.forest.commit(turn)
            chain = keys.walk(keys.step(at.chain, answer), tail)[-1]
            at = Attachment(turn, tail, "exact", None, (), chain, b"")

    go_on(20)
    held = []
    tracemalloc.start()
    try:
        for _ in range(3):
            go_on(100)
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    second, third = held[1] - held[0], held[2] - held[1]
    assert third < 1.3 * second


def test_a_restart_in_the_middle_gives_the_same_keys_and_ids() -> None:
    straight, broken = Session(), Session()
    one, two = list(START), list(START)
    grow(straight, one, range(60))
    grow(broken, two, range(30))
    broken.forest = Forest.restore("ses_1", DIGEST, list(broken.forest.turns.values()))
    grow(broken, two, range(30, 60))
    ours, theirs = straight.forest.turns, broken.forest.turns
    assert [(t.key_exact, t.key_lenient, t.parent) for t in ours.values()] == [
        (t.key_exact, t.key_lenient, t.parent) for t in theirs.values()
    ]
    for turn_id in ours:
        assert straight.forest.full(turn_id) == broken.forest.full(turn_id)
