"""One flipped bit, at every single position of a turn or a row, is found there and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tugline.core.columns import Floats, Ids, count
from tugline.core.contracts import JournalEntry
from tugline.core.items import Item
from tugline.core.session import Outcome
from tugline.core.trace import Trajectory
from tugline.core.turn import Turn
from tugline.trajectory.build import SessionFacts, build
from tugline.trajectory.verify import Finding, verify_masks, verify_trace, verify_turn
from unit.forest.driver import Session, Shape, results, say, user

FACTS = SessionFacts("ses_1", "grp_1", Outcome.COMPLETED, 1.0)


def forked() -> tuple[Session, Trajectory]:
    """Two shared turns, then two leaves; the first leaf trims the stop of the turn before it."""
    session = Session()
    items: list[Item] = [user("task")]
    for i in range(2):
        answer = say(f"step {i}", f'{{"n": {i}}}', reasoning="hm", stem=f"c{i}")
        session.call(items, answer, Shape(versions=((0, 1), (3, 2))))
        items += [answer, *results(answer)]
    session.call([*items, user("left")], say("left", stem="l"), Shape(trim=True))
    session.call([*items, user("right")], say("right", stem="r"))
    return session, build(FACTS, list(session.forest.turns.values()), frozenset())


def entry_of(session: Session, turn: Turn) -> JournalEntry:
    prompt = session.forest.prompt(turn.turn_id)
    return JournalEntry("ref", "ses_1", prompt, turn.sampled, turn.logprobs, turn.finish, turn.version_runs)


def flip(column: bytes, byte: int) -> bytes:
    """One bit."""
    return column[:byte] + bytes([column[byte] ^ 1]) + column[byte + 1 :]


def named(found: list[Finding]) -> list[tuple[str, int | None]]:
    return [(f.kind, f.position) for f in found]


@pytest.mark.parametrize("turn_id", ["turn_0", "turn_1", "turn_2", "turn_3"])
def test_of_a_turn_against_the_journal(turn_id: str) -> None:
    session, _ = forked()
    turn = session.forest.turns[turn_id]
    entry = entry_of(session, turn)
    before = session.forest.full(turn.parent) if turn.parent else Ids(b"")
    assert verify_turn(turn, before, entry) == []
    for at in range(turn.prompt_len):
        wrong = replace(entry, prompt_ids=Ids(flip(entry.prompt_ids, 4 * at)))
        assert named(verify_turn(turn, before, wrong)) == [("prompt_ids", at)]
    for at in range(count(turn.sampled)):
        wrong = replace(entry, ids=Ids(flip(entry.ids, 4 * at)))
        assert named(verify_turn(turn, before, wrong)) == [("sampled_ids", at)]
        wrong = replace(entry, logprobs=Floats(flip(entry.logprobs, 4 * at)))
        assert named(verify_turn(turn, before, wrong)) == [("logprobs", at)]


@pytest.mark.parametrize("row", [0, 1])
def test_of_a_row_against_its_turns(row: int) -> None:
    session, made = forked()
    trace, turns = made.traces[row], session.forest.turns
    assert verify_trace(trace, turns) == []
    for at in range(count(trace.token_ids)):
        assert named(verify_trace(replace(trace, token_ids=Ids(flip(trace.token_ids, 4 * at))), turns)) == [
            ("row_ids", at)
        ]
        assert named(verify_trace(replace(trace, logprobs=Floats(flip(trace.logprobs, 4 * at))), turns)) == [
            ("row_logprobs", at)
        ]
        assert named(verify_trace(replace(trace, loss_mask=flip(trace.loss_mask, at)), turns)) == [("row_mask", at)]


def test_a_sample_made_for_another_session_is_found() -> None:
    session, _ = forked()
    turn = session.forest.turns["turn_0"]
    stray = replace(entry_of(session, turn), session_id="ses_2")
    assert named(verify_turn(turn, Ids(b""), stray)) == [("session", None)]


@pytest.mark.parametrize(
    ("runs", "at"), [(((0, 1), (4, 2)), 3), (((0, 1),), 3), (((0, 1), (3, 2), (5, 3)), 5), (((0, 7), (3, 2)), 0)]
)
def test_versions_part_at_a_token(runs: tuple[tuple[int, int], ...], at: int) -> None:
    session, _ = forked()
    turn = session.forest.turns["turn_0"]
    entry = replace(entry_of(session, turn), version_runs=runs)
    assert named(verify_turn(turn, Ids(b""), entry)) == [("versions", at)]


def test_weights_that_count_a_session_more_than_once_are_found() -> None:
    session, made = forked()
    turns = list(session.forest.turns.values())
    assert verify_masks(made.traces, turns) == []
    doubled = [replace(t, loss_weight=1.0) for t in made.traces]
    assert named(verify_masks(doubled, turns)) == [("loss_weight", None)]


def test_a_stop_trimmed_only_by_another_row_trains() -> None:
    session = Session()
    first = say("first", stem="a")
    session.call([user("task")], first)
    session.call([user("task"), first, user("whole")], say("whole", stem="w"))
    session.call([user("task"), first, user("cut")], say("cut", stem="c"), Shape(trim=True))
    made = build(FACTS, list(session.forest.turns.values()), frozenset())
    assert made.untrained == {}
    sampled = sum(count(t.sampled) for t in session.forest.turns.values())
    assert sum(sum(t.loss_mask) for t in made.traces) == sampled
