"""Rows that hold the beginning of a turn whose stream broke: trained at most once, and proven."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tugline.core.columns import Ids, concat, count, take, take_floats
from tugline.core.session import Outcome
from tugline.core.trace import Trajectory
from tugline.core.turn import Partial, Turn
from tugline.trajectory.build import SessionFacts, Strategy, build
from tugline.trajectory.partial import verify_partial
from tugline.trajectory.rows import why_untrained
from tugline.trajectory.verify import verify_masks, verify_trace
from unit.trajectory.world import Said, World, ask, encode, poke, say, user

FACTS = SessionFacts("ses", "grp", Outcome.COMPLETED, 1.0)
START = (user("go"),)
N = 7


def branch(world: World, whole: Turn, words: str, train: bool) -> Turn:
    """The turn that goes on behind the first N ids of `whole`."""
    before = world.said[whole.parent][1] if whole.parent else ()
    request = ask((*before, *whole.items, say(words), user("on")))
    made = world.sample(request, said(words))
    bridge = concat([whole.bridge, take(whole.sampled, 0, N), encode("closed")])
    part = Partial(whole.turn_id, count(whole.bridge), N, train)
    made = replace(made, keep=whole.keep, bridge=bridge, prompt_len=whole.keep + count(bridge), partial=part)
    return world.commit(request, made)


def said(words: str) -> Said:
    return Said(say(f"after {words}"), versions=((0, 2),))


def deep(train: bool) -> tuple[World, Turn, Turn, frozenset[str]]:
    """A turn, one behind it that nobody got, and the branch behind the beginning of that."""
    world = World()
    first = world.call(START, say("first"))
    whole = world.call(world.after(first, user("more")), say("whole words"))
    made = branch(world, whole, "whole", train)
    assert made.parent == first.turn_id
    return world, whole, made, frozenset({whole.turn_id})


def proven(made: Trajectory, world: World, undelivered: frozenset[str]) -> None:
    by_id = {t.turn_id: t for t in world.turns}
    assert [f for trace in made.traces for f in verify_trace(trace, by_id)] == []
    assert verify_masks(made.traces, world.turns, undelivered) == []
    total = sum(count(t.sampled) for t in world.turns)
    assert sum(sum(t.loss_mask) for t in made.traces) + sum(made.untrained.values()) == total
    assert min(made.untrained.values(), default=1) > 0


@pytest.mark.parametrize("strategy", ["exact", "per_call", "merged"])
def test_what_stays_of_a_cut_turn_is_context(strategy: Strategy) -> None:
    world, whole, made, lost = deep(train=False)
    built = build(FACTS, world.turns, lost, strategy)
    assert built.untrained == {"undelivered": count(whole.sampled)}
    assert whole.turn_id not in {s.turn_id for t in built.traces for s in t.spans}
    proven(built, world, lost)
    row = built.traces[-1]
    assert row.spans[-1].turn_id == made.turn_id
    at = made.keep + count(whole.bridge)
    assert take(row.token_ids, at, at + N) == take(whole.sampled, 0, N)
    assert not any(row.loss_mask[at : at + N])
    assert np.isnan(np.frombuffer(row.logprobs, "<f4")[at : at + N]).all()


@pytest.mark.parametrize("strategy", ["exact", "per_call"])
def test_it_trains_where_asked_for_with_the_engines_own_numbers(strategy: Strategy) -> None:
    world, whole, made, lost = deep(train=True)
    built = build(FACTS, world.turns, lost, strategy)
    assert built.untrained == {"undelivered": count(whole.sampled) - N}
    proven(built, world, lost)
    row = built.traces[-1]
    at = made.keep + count(whole.bridge)
    assert row.loss_mask[at : at + N] == b"\1" * N
    assert take_floats(row.logprobs, at, at + N) == take_floats(whole.logprobs, 0, N)
    assert not row.loss_mask[at + N]
    (span,) = [s for s in row.spans if s.turn_id == whole.turn_id]
    assert (span.start, span.end, span.finish, span.trained) == (at, at + N, "abort", True)
    assert [v for _, v in row.version_runs] == [1, 2]


@pytest.mark.parametrize("seen", ["delivered", "extended"])
def test_a_turn_that_trains_whole_does_not_train_in_part_too(seen: str) -> None:
    world, whole, *_ = deep(train=True)
    if seen == "extended":
        world.call(world.after(whole, user("next")), say("next"))
    built = build(FACTS, world.turns, frozenset())
    proven(built, world, frozenset())
    assert built.untrained == {}
    spans = [s for t in built.traces for s in t.spans if s.turn_id == whole.turn_id and s.trained]
    assert [s.end - s.start for s in spans] == [count(whole.sampled)]


def test_of_two_branches_behind_one_beginning_the_first_trains_it() -> None:
    world, whole, _, lost = deep(train=True)
    again = branch(world, whole, "whole", True)
    world.call(world.after(again, user("next")), say("next"))
    world.call(world.after(again, user("other")), say("other"))
    built = build(FACTS, world.turns, lost)
    assert len(built.traces) == 3
    proven(built, world, lost)
    assert built.untrained == {"undelivered": count(whole.sampled) - N}
    assert [s.trained for t in built.traces for s in t.spans if s.turn_id == whole.turn_id] == [True, False, False]


def test_a_branch_that_nobody_got_trains_nothing() -> None:
    world, whole, made, lost = deep(train=True)
    lost |= {made.turn_id}
    built = build(FACTS, world.turns, lost)
    proven(built, world, lost)
    assert why_untrained(made, lost) == "undelivered"
    assert built.untrained == {"undelivered": count(whole.sampled) + count(made.sampled)}


def test_the_beginning_of_a_side_job_trains_no_more_than_a_whole_one() -> None:
    world = World()
    whole = world.commit(ask(START), replace(world.sample(ask(START), Said(say("whole words"))), role="auxiliary"))
    made = branch(world, whole, "whole", True)
    assert made.role == "main"
    lost = frozenset({whole.turn_id})
    built = build(FACTS, world.turns, lost)
    proven(built, world, lost)
    assert built.untrained == {"undelivered": count(whole.sampled)}
    assert [s.turn_id for t in built.traces for s in t.spans if s.trained] == [made.turn_id]


def test_wrong_rows_are_found() -> None:
    world, whole, _, lost = deep(train=True)
    built = build(FACTS, world.turns, lost)
    row = built.traces[-1]
    by_id = {t.turn_id: t for t in world.turns}
    bare = replace(
        row,
        loss_mask=bytes(len(row.loss_mask)),
        spans=tuple(s for s in row.spans if s.turn_id != whole.turn_id),
    )
    assert {f.kind for f in verify_trace(bare, by_id)} >= {"row_mask", "row_spans"}
    left_out = [replace(row, spans=bare.spans)]
    assert {f.kind for f in verify_masks(left_out, world.turns, lost)} == {"not_trained"}
    twice = [row, replace(row, trace_id="again", spans=tuple(s for s in row.spans if s.turn_id == whole.turn_id))]
    assert {f.kind for f in verify_masks(twice, world.turns, lost)} == {"trained_twice"}
    (part,) = [s for s in row.spans if s.turn_id == whole.turn_id]
    longer = replace(row, spans=tuple(replace(s, end=s.end + 1) if s is part else s for s in row.spans))
    assert "mask_sum" in {f.kind for f in verify_masks([longer], world.turns, lost)}


def test_the_part_is_proven_against_the_journal() -> None:
    world, whole, made, _ = deep(train=True)
    assert verify_partial(whole, None, None) == []
    assert verify_partial(made, whole, world.entry(whole)) == []
    part = made.partial
    assert part is not None
    entry = world.entry(whole)
    at = count(whole.bridge)
    bad = [
        (made, None, None),
        (made, replace(whole, session_id="other"), entry),
        (made, replace(whole, parent=None), entry),
        (made, replace(whole, engine="teacher"), entry),
        (replace(made, partial=replace(part, n=count(whole.sampled) + 1)), whole, entry),
        (replace(made, partial=replace(part, n=0)), whole, entry),
        (replace(made, partial=replace(part, at=at + 1)), whole, entry),
        (replace(made, bridge=poke(made.bridge, at, 9999)), whole, entry),
        (replace(made, bridge=poke(made.bridge, 0, 9999)), whole, entry),
        (replace(made, bridge=poke(made.bridge, at + N - 1, 9999)), whole, None),
        (made, whole, replace(entry, ids=poke(entry.ids, N - 1, 9999))),
        (made, whole, replace(entry, ids=Ids(b""))),
    ]
    for turn, origin, wrote in bad:
        assert [f.kind for f in verify_partial(turn, origin, wrote)] == ["partial_ids"]
    assert verify_partial(replace(made, bridge=poke(made.bridge, at + N, 9999)), whole, entry) == []
