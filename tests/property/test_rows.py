"""Whatever a session's tree looks like: rows are its paths, and each trainable sampled token trains once."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from property.forest_trees import worlds
from tugline.core.columns import count, take, take_floats
from tugline.core.session import Outcome
from tugline.core.trace import Trajectory
from tugline.trajectory.build import SessionFacts, Strategy, build
from tugline.trajectory.rows import why_untrained
from tugline.trajectory.verify import continuous, verify_masks, verify_trace, verify_turn
from unit.trajectory.world import STOP, World

FACTS = SessionFacts("ses", "grp", Outcome.COMPLETED, 1.0)
strategies = st.sampled_from(["exact", "per_call"])
some = settings(max_examples=80, deadline=None)


def drawn(data: st.DataObject, strategy: Strategy) -> tuple[World, frozenset[str], Trajectory]:
    world = data.draw(worlds())
    leaves = [t for t in world.forest.leaves() if data.draw(st.integers(0, 3)) == 0]
    undelivered = frozenset(leaves)
    return world, undelivered, build(FACTS, world.turns, undelivered, strategy)


def trained_tokens(trajectory: Trajectory) -> Counter[tuple[str, int]]:
    """(turn, offset into its sample) of every mask bit, found through the spans."""
    out: Counter[tuple[str, int]] = Counter()
    for trace in trajectory.traces:
        where = {s.start + n: (s.turn_id, n) for s in trace.spans for n in range(s.end - s.start)}
        out.update(where[int(at)] for at in np.nonzero(np.frombuffer(trace.loss_mask, "u1"))[0])
    return out


@some
@given(st.data(), strategies)
def test_each_trainable_token_trains_once_but_for_trimmed_stops(data: st.DataObject, strategy: Strategy) -> None:
    world, undelivered, made = drawn(data, strategy)
    trained = trained_tokens(made)
    assert set(trained.values()) <= {1}
    wanted = {
        (t.turn_id, n) for t in world.turns if why_untrained(t, undelivered) is None for n in range(count(t.sampled))
    }
    trimming = {t.parent for t in world.turns if t.parent is not None and t.keep < count(world.forest.full(t.parent))}
    stops = {(t, count(world.forest.turns[t].sampled) - 1) for t in trimming}
    assert set(trained) <= wanted
    missing = wanted - set(trained)
    assert missing <= (stops if strategy == "exact" else set())
    assert made.untrained.get("stop_trim", 0) == len(missing)
    assert all(take(world.forest.turns[t].sampled, n, n + 1) == STOP.to_bytes(4, "little") for t, n in missing)


@some
@given(st.data(), strategies)
def test_sampled_tokens_are_trained_or_accounted_for(data: st.DataObject, strategy: Strategy) -> None:
    world, _, made = drawn(data, strategy)
    sampled = sum(count(t.sampled) for t in world.turns)
    assert sum(sum(t.loss_mask) for t in made.traces) + sum(made.untrained.values()) == sampled


@some
@given(st.data(), strategies)
def test_rows_are_the_paths(data: st.DataObject, strategy: Strategy) -> None:
    world, _, made = drawn(data, strategy)
    for order, trace in enumerate(made.traces):
        assert trace.order == order
        assert trace.token_ids == world.forest.full(trace.spans[-1].turn_id)
        assert len(trace.loss_mask) == count(trace.token_ids) == count(trace.logprobs)
        values = np.frombuffer(trace.logprobs, "<f4")
        outside = np.ones(len(values), bool)
        for span in trace.spans:
            turn, n = world.forest.turns[span.turn_id], span.end - span.start
            assert take(trace.token_ids, span.start, span.end) == take(turn.sampled, 0, n)
            assert take_floats(trace.logprobs, span.start, span.end) == take_floats(turn.logprobs, 0, n)
            outside[span.start : span.end] = False
        assert np.isnan(values[outside]).all()
        assert not np.frombuffer(trace.loss_mask, "u1")[outside].any()
        assert trace.parent in {None, *(t.trace_id for t in made.traces[:order])}


@some
@given(st.data(), strategies)
def test_every_token_has_the_version_it_was_sampled_with(data: st.DataObject, strategy: Strategy) -> None:
    world, _, made = drawn(data, strategy)
    for trace in made.traces:
        starts, versions = zip(*trace.version_runs, strict=True)
        assert list(starts) == sorted(set(starts))
        for span in trace.spans:
            runs = dict(world.forest.turns[span.turn_id].version_runs)
            version = None
            for offset in range(span.end - span.start):
                version = runs.get(offset, version)
                assert versions[np.searchsorted(starts, span.start + offset, "right") - 1] == version


@some
@given(st.data(), strategies)
def test_honest_data_gives_no_finding(data: st.DataObject, strategy: Strategy) -> None:
    world, undelivered, made = drawn(data, strategy)
    assert [verify_turn(t, world.parent_full(t), world.entry(t)) for t in world.turns] == [[]] * len(world.turns)
    assert [verify_trace(t, world.forest.turns) for t in made.traces] == [[]] * len(made.traces)
    assert verify_masks(made.traces, world.turns, undelivered) == []
    assert all(continuous(t, world.forest.turns) for t in made.traces)


@some
@given(st.data(), strategies)
def test_a_session_counts_once(data: st.DataObject, strategy: Strategy) -> None:
    _, _, made = drawn(data, strategy)
    if made.traces:
        assert abs(sum(t.loss_weight for t in made.traces) - 1) < 1e-9
        per_token = {round(t.loss_weight / sum(t.loss_mask), 12) for t in made.traces if sum(t.loss_mask)}
        assert len(per_token) <= 1
