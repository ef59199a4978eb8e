"""Calls captured one by one: `merged` finds conversations by ids alone, splits where one differs, drops nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from property.forest_trees import worlds
from tugline.core.columns import Ids, count, ids, take
from tugline.core.session import Outcome
from tugline.core.trace import Trajectory
from tugline.core.turn import Turn
from tugline.trajectory.build import SessionFacts, build
from tugline.trajectory.merge import linked, strategy_for
from tugline.trajectory.rows import why_untrained
from tugline.trajectory.verify import continuous, verify_masks, verify_trace
from unit.trajectory.world import STOP, Said, World, ask, logprobs, say, user

FACTS = SessionFacts("ses", "grp", Outcome.COMPLETED, 1.0)
some = settings(max_examples=120, deadline=None)


def captured(world: World) -> list[Turn]:
    """The session as an engine that only returns ids would have given it: each call with its whole prompt."""
    return [replace(t, parent=None, keep=0, bridge=world.forest.prompt(t.turn_id), level="L2") for t in world.turns]


def full(turn: Turn) -> Ids:
    return Ids(turn.bridge + turn.sampled)


def trained(made: Trajectory) -> Counter[tuple[str, int]]:
    out: Counter[tuple[str, int]] = Counter()
    for trace in made.traces:
        where = {s.start + n: (s.turn_id, n) for s in trace.spans for n in range(s.end - s.start)}
        out.update(where[int(at)] for at in np.nonzero(np.frombuffer(trace.loss_mask, "u1"))[0])
    return out


def check(turns: list[Turn], undelivered: frozenset[str]) -> Trajectory:
    """Everything that must hold of merged rows, against nothing but the captured calls."""
    made = build(FACTS, turns, undelivered, "merged")
    by_id = {t.turn_id: t for t in turns}
    tree = linked(turns)
    seen = undelivered - {t.parent for t in tree}
    wanted = {(t.turn_id, n) for t in turns if why_untrained(t, seen) is None for n in range(count(t.sampled))}
    found = trained(made)
    assert set(found.values()) <= {1}
    assert set(found) <= wanted
    missing = wanted - set(found)
    assert made.untrained.get("stop_trim", 0) == len(missing)
    assert all(n == count(by_id[t].sampled) - 1 and by_id[t].finish == "stop" for t, n in missing)
    assert sum(found.values()) + sum(made.untrained.values()) == sum(count(t.sampled) for t in turns)
    for trace in made.traces:
        last = by_id[trace.spans[-1].turn_id]
        assert trace.token_ids == full(last)
        for span in trace.spans:  # each sample stands behind the very prompt that the engine had
            one = by_id[span.turn_id]
            assert take(trace.token_ids, 0, span.start) == one.bridge
            assert take(trace.token_ids, span.start, span.end) == take(one.sampled, 0, span.end - span.start)
    views = {t.turn_id: t for t in tree}
    assert [verify_trace(t, views) for t in made.traces] == [[]] * len(made.traces)
    assert verify_masks(made.traces, list(tree), seen) == []
    assert all(continuous(t, views) for t in made.traces)
    return made


@some
@given(st.data())
def test_each_sampled_token_trains_once_in_its_own_context(data: st.DataObject) -> None:
    world = data.draw(worlds())
    turns = captured(world)
    undelivered = frozenset(t.turn_id for t in turns if data.draw(st.integers(0, 3)) == 0)
    check(turns, undelivered)


@some
@given(st.data())
def test_merging_a_tree_needs_no_more_rows_than_the_tree(data: st.DataObject) -> None:
    world = data.draw(worlds())
    merged = check(captured(world), frozenset())
    assert len(merged.traces) <= len(build(FACTS, world.turns, frozenset()).traces)


@some
@given(st.data())
def test_a_mixed_session_is_merged_too(data: st.DataObject) -> None:
    """Some calls have their parents, others are captured alone."""
    world = data.draw(worlds())
    alone = captured(world)
    turns = [a if data.draw(st.booleans()) else t for a, t in zip(alone, world.turns, strict=True)]
    made = build(FACTS, turns, frozenset(), "merged")
    found = trained(made)
    expected = sum(count(t.sampled) for t in turns if why_untrained(t, frozenset()) is None)
    assert set(found.values()) <= {1}
    assert sum(found.values()) + made.untrained.get("stop_trim", 0) == expected


@some
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=6), st.lists(st.integers(0, 2), min_size=1, max_size=3)),
                max_size=12))  # fmt: skip
def test_the_longest_beginning_is_found(calls: list[tuple[list[int], list[int]]]) -> None:
    """Against an oracle that compares every pair. Few ids: prompts collide in every way."""
    turns = [root(n, prompt, sampled) for n, (prompt, sampled) in enumerate(calls)]
    check(turns, frozenset())
    for n, turn in enumerate(linked(turns)):
        keeps = [
            len(end) // 4
            for earlier in turns[:n]
            for end in (full(earlier), full(earlier)[:-4] if count(earlier.sampled) > 1 else full(earlier))
            if turns[n].bridge.startswith(end)
        ]
        assert turn.keep == max(keeps, default=0)
        assert (turn.parent is None) == (not keeps)


def root(n: int, prompt: list[int], sampled: list[int]) -> Turn:
    world = World()
    made = world.sample(ask([user("task")]), Said(say("x")))
    return replace(
        made,
        turn_id=f"turn_{n}",
        seq=n,
        bridge=ids(prompt),
        sampled=ids(sampled),
        logprobs=logprobs(len(sampled), n),
        version_runs=((0, 1),),
        prompt_len=len(prompt),
        level="L2",
    )


# ------------------------------------------------------------------------------------------------- by hand


def conversation(turns: int) -> World:
    world = World()
    items = (user("task"),)
    for n in range(turns):
        turn = world.call(items, say(f"step {n}"))
        items = world.after(turn, user(f"more {n}"))
    return world


def test_a_conversation_is_one_row() -> None:
    made = check(captured(conversation(5)), frozenset())
    assert len(made.traces) == 1
    assert [s.trained for s in made.traces[0].spans] == [True] * 5
    assert made.traces[0].level == "L2"


def test_a_changed_id_splits_the_row_there() -> None:
    turns = captured(conversation(4))
    damaged = bytearray(turns[2].bridge)
    damaged[0:4] = (999).to_bytes(4, "little")  # the engine read another first token from here on
    turns[2] = replace(turns[2], bridge=Ids(bytes(damaged)))
    made = check(turns, frozenset())
    assert [len(t.spans) for t in made.traces] == [1, 3]  # the fourth still goes on from the second
    assert made.traces[0].spans[0].turn_id == turns[2].turn_id


def test_a_replaced_stop_is_counted_and_another_ending_splits() -> None:
    first = root(0, [5, 6], [7, 8, STOP])
    other_stop = root(1, [5, 6, 7, 8, 9, 9], [7, STOP])
    made = check([first, other_stop], frozenset())
    assert (len(made.traces), made.untrained) == (1, {"stop_trim": 1})
    cut = replace(first, finish="length")
    assert len(check([cut, other_stop], frozenset()).traces) == 2


def test_a_resample_of_a_one_token_answer_does_not_swallow_the_first() -> None:
    twice = [root(0, [5, 6], [STOP]), root(1, [5, 6], [7, STOP])]
    made = check(twice, frozenset())
    assert (len(made.traces), made.untrained) == (2, {})


def test_calls_of_another_engine_are_never_joined() -> None:
    turns = captured(conversation(3))
    turns[1] = replace(turns[1], engine="judge")
    made = build(FACTS, turns, frozenset(), "merged")
    assert all(turns[1].turn_id not in {s.turn_id for s in t.spans} for t in made.traces)
    assert made.untrained == {"other_engine": count(turns[1].sampled)}


def test_what_a_later_prompt_goes_on_from_was_delivered() -> None:
    turns = captured(conversation(2))
    made = build(FACTS, turns, frozenset({turns[0].turn_id, turns[1].turn_id}), "merged")
    assert made.untrained == {"undelivered": count(turns[1].sampled)}
    assert [s.turn_id for t in made.traces for s in t.spans] == [turns[0].turn_id]


def test_a_whole_call_is_gone_on_from_before_one_whose_stop_would_be_replaced() -> None:
    cut = replace(root(0, [5], [6, 7]), finish="length")
    stopped = root(1, [5], [6, 7, STOP])
    after = root(2, [5, 6, 7, 9], [7, STOP])
    for turns in ([cut, stopped, after], [stopped, cut, after]):
        assert linked(turns)[2].parent == cut.turn_id
        assert check(turns, frozenset()).untrained == {}


def test_a_level_decides_the_strategy() -> None:
    world = conversation(2)
    assert strategy_for(world.turns) == "exact"
    assert strategy_for(captured(world)) == "merged"
    assert strategy_for([replace(t, engine="judge") for t in captured(world)]) == "exact"
