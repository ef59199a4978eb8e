"""Advantages: against the others of the group, never from our own failures, once per session."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tugline.core.columns import ids, nans
from tugline.core.session import FAILURE_OF, Outcome
from tugline.core.trace import Trace, Trajectory
from tugline.core.turn import Sampling
from tugline.trajectory.advantages import broadcast, leave_one_out, usable, weigh


def row(trained: int, name: str = "t") -> Trace:
    return Trace(
        trace_id=name, session_id="s", group_id="g", kind="main", parent=None, order=0, token_ids=ids(range(10)),
        loss_mask=b"\1" * trained + bytes(10 - trained), logprobs=nans(10), version_runs=(), spans=(),
        sampling=Sampling(),
    )  # fmt: skip


def session(reward: float | None, outcome: Outcome = Outcome.COMPLETED, n_rows: int = 1) -> Trajectory:
    traces = tuple(row(5, f"t{n}") for n in range(n_rows))
    return Trajectory("s", "g", outcome, FAILURE_OF[outcome], reward, {}, traces)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1.0, 0.0], [1.0, -1.0]),
        ([1.0, 0.0, 0.0], [1.0, -0.5, -0.5]),
        ([0.5, 0.5, 0.5], [0.0, 0.0, 0.0]),
        ([3.0, 1.0, 2.0, 0.0], [2.0, -2 / 3, 2 / 3, -2.0]),
        ([1.0], [None]),
        ([], []),
        ([1.0, None], [None, None]),
        ([1.0, None, 0.0], [1.0, None, -1.0]),
        ([1.0, float("nan"), 0.0], [1.0, None, -1.0]),
        ([1.0, float("inf"), 0.0], [1.0, None, -1.0]),
    ],
)
def test_leave_one_out(rewards: list[float | None], expected: list[float | None]) -> None:
    got = leave_one_out([session(r) for r in rewards])
    assert [g is None for g in got] == [e is None for e in expected]
    assert [g for g in got if g is not None] == pytest.approx([e for e in expected if e is not None])


@pytest.mark.parametrize("outcome", list(Outcome))
def test_infra_failures_never_count_and_policy_failures_do(outcome: Outcome) -> None:
    policy = outcome in (Outcome.COMPLETED, Outcome.AGENT_FAILED, Outcome.AGENT_TIMEOUT)
    group = [session(1.0), session(0.0), session(7.0, outcome)]
    assert usable(group[2]) is policy
    assert leave_one_out(group) == ((-2.5, -4.0, 6.5) if policy else (1.0, -1.0, None))


def test_advantages_of_a_group_add_up_to_nothing() -> None:
    got = leave_one_out([session(r) for r in (0.1, 0.7, 0.4, 1.0, 0.0)])
    assert sum(g for g in got if g is not None) == pytest.approx(0)


def test_every_row_has_its_sessions_advantage() -> None:
    group = [session(1.0, n_rows=2), session(None, n_rows=1), session(0.0, n_rows=3)]
    found = broadcast(group)
    assert [r.advantage for r in found] == [1.0, 1.0, None, -1.0, -1.0, -1.0]
    assert [r.trace for r in found] == [t for s in group for t in s.traces]


def test_sessions_of_two_groups_are_not_compared() -> None:
    with pytest.raises(ValueError, match="one group"):
        leave_one_out([session(1.0), replace(session(0.0), group_id="other")])


@pytest.mark.parametrize(
    ("trained", "weights"),
    [([4], [1.0]), ([1, 3], [0.25, 0.75]), ([2, 0, 2], [0.5, 0.0, 0.5]), ([0, 0], [0.0, 0.0]), ([], [])],
)
def test_weights_count_a_session_once_and_its_tokens_alike(trained: list[int], weights: list[float]) -> None:
    assert [t.loss_weight for t in weigh([row(n) for n in trained])] == weights
