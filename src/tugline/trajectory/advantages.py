"""Advantages of a group and weights of rows: a session is one sample, however many rows and tokens it became."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, isfinite

from tugline.core.session import Failure
from tugline.core.trace import Trace, Trajectory
from tugline.trajectory.rows import mask_sum


@dataclass(frozen=True, slots=True)
class AdvantageRow:
    """A row and its session's advantage; None = nothing to learn from in this group."""

    trace: Trace
    advantage: float | None


def usable(trajectory: Trajectory) -> bool:
    """Whether a session may train: judged, with a finite reward, and not ended by our own infrastructure."""
    reward = trajectory.reward
    return trajectory.failure is not Failure.INFRA and reward is not None and isfinite(reward)


def leave_one_out(group: Sequence[Trajectory]) -> tuple[float | None, ...]:
    """Per session of one group: its reward minus the mean reward of the other usable ones.

    None for sessions that may not train, and for all when fewer than two may. Raises ValueError when the sessions are
    of several groups.
    """
    if len({trajectory.group_id for trajectory in group}) > 1:
        raise ValueError("advantages compare sessions of one group only")
    rewards = {i: t.reward for i, t in enumerate(group) if t.reward is not None and usable(t)}
    if len(rewards) < 2:
        return (None,) * len(group)
    total, others = fsum(rewards.values()), len(rewards) - 1
    return tuple(rewards[i] - (total - rewards[i]) / others if i in rewards else None for i in range(len(group)))


def broadcast(group: Sequence[Trajectory]) -> tuple[AdvantageRow, ...]:
    """Every row of a group with its session's advantage, in order. Raises ValueError like `leave_one_out`."""
    pairs = zip(group, leave_one_out(group), strict=True)
    return tuple(AdvantageRow(trace, advantage) for trajectory, advantage in pairs for trace in trajectory.traces)


def weigh(traces: Sequence[Trace]) -> tuple[Trace, ...]:
    """The rows of one session with `loss_weight` set to each row's share of the session's trained tokens.

    The weight multiplies the *mean* loss over a row's trained tokens: weights of a session sum to 1, a session of one
    row has weight 1, and all trained tokens of a session count alike. Rows that train nothing weigh 0.
    """
    tokens = [mask_sum(trace.loss_mask) for trace in traces]
    total = sum(tokens)
    pairs = zip(traces, tokens, strict=True)
    return tuple(replace(trace, loss_weight=n / total if total else 0.0) for trace, n in pairs)
