"""Trajectories: which turns train, in which rows. Each sampled token of a trainable turn trains exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tugline.core.columns import count
from tugline.core.session import FAILURE_OF, Outcome
from tugline.core.trace import Trace, Trajectory
from tugline.core.turn import Turn
from tugline.trajectory.advantages import weigh
from tugline.trajectory.merge import linked
from tugline.trajectory.rows import drift_of, lay_out, level_of, path_to, trains_partly, why_untrained

Strategy = Literal["exact", "per_call", "merged"]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What is known of a session besides its turns."""

    session_id: str
    group_id: str
    outcome: Outcome
    reward: float | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)
    logprob_kind: Literal["raw", "processed"] = "processed"


def build(
    session: SessionFacts, turns: Sequence[Turn], undelivered: frozenset[str], strategy: Strategy = "exact"
) -> Trajectory:
    """Rows of a session. `undelivered`: turns whose reply never reached the harness and that nothing extends.

    exact: one row per leaf of the tree; the earliest row through a turn owns it, others carry it masked. per_call: one
    row per turn. merged: as exact, after calls that were captured one by one have been put behind those that their
    prompts extend id by id (see `merge`). All train the same tokens but for stops that a following prompt replaced:
    those stand in per_call rows only, and are counted as stop_trim otherwise. Raises VerifyError when a turn's parent
    is missing.
    """
    if strategy == "merged":
        turns = linked(turns)
        undelivered -= {turn.parent for turn in turns}  # what a later prompt goes on from was seen
    by_id = {turn.turn_id: turn for turn in turns}
    untrained: Counter[str] = Counter()
    trainable: set[str] = set()
    for turn in turns:
        reason = why_untrained(turn, undelivered)
        if reason is None:
            trainable.add(turn.turn_id)
        else:
            untrained[reason] += count(turn.sampled)
    traces: list[Trace] = []
    owner: dict[str, str] = {}
    for leaf in _row_ends(turns, trainable, strategy):
        path = path_to(leaf, by_id)
        mine = {t.turn_id for t in path if t.turn_id in trainable and t.turn_id not in owner}
        if strategy == "per_call":
            mine &= {leaf}
        if not mine:
            continue
        partly = {
            part.turn_id: part.n
            for part in (turn.partial for turn in path if turn.turn_id in mine)
            if part and trains_partly(part, by_id, undelivered) and part.turn_id not in owner
        }
        trace = _trace(session, path, (mine | partly.keys(), by_id), owner, len(traces))
        owner.update(dict.fromkeys(mine | partly.keys(), trace.trace_id))
        untrained["undelivered"] -= sum(partly.values())
        traces.append(trace)
        trimmed = sum(count(by_id[s.turn_id].sampled) - (s.end - s.start) for s in trace.spans if s.turn_id in mine)
        if trimmed:
            untrained["stop_trim"] += trimmed
    return Trajectory(
        session_id=session.session_id,
        group_id=session.group_id,
        outcome=session.outcome,
        failure=FAILURE_OF[session.outcome],
        reward=session.reward,
        reward_parts=dict(session.reward_parts),
        traces=weigh([replace(trace, links=_links(trace, by_id, owner)) for trace in traces]),
        untrained={reason: n for reason, n in sorted(untrained.items()) if n},
    )


def _row_ends(turns: Sequence[Turn], trainable: set[str], strategy: Strategy) -> list[str]:
    """The last turn of each row, in commit order: trainable turns with no trainable turn below them."""
    if strategy == "per_call":
        return [t.turn_id for t in turns if t.turn_id in trainable]
    covered: set[str] = set()
    ends: list[str] = []
    for turn in reversed(turns):
        live = turn.turn_id in trainable
        if live and turn.turn_id not in covered:
            ends.append(turn.turn_id)
        if (live or turn.turn_id in covered) and turn.parent is not None:
            covered.add(turn.parent)
    ends.reverse()
    return ends


def _trace(
    session: SessionFacts,
    path: Sequence[Turn],
    owned: tuple[set[str], Mapping[str, Turn]],
    owner: dict[str, str],
    order: int,
) -> Trace:
    mine, turns = owned
    columns = lay_out(path, mine, turns)
    parent = next((owner[t.turn_id] for t in reversed(path) if t.turn_id in owner), None)
    last = path[-1]
    return Trace(
        trace_id=f"trace_{last.turn_id.removeprefix('turn_')}",
        session_id=session.session_id,
        group_id=session.group_id,
        kind=next(turn.role for turn in path if turn.turn_id in mine),
        parent=parent,
        order=order,
        token_ids=columns.token_ids,
        loss_mask=columns.loss_mask,
        logprobs=columns.logprobs,
        version_runs=columns.version_runs,
        spans=columns.spans,
        sampling=last.sampling,
        logprob_kind=session.logprob_kind,
        level=level_of(path),
        drift=drift_of(path, mine),
        routed_experts=columns.routes,
    )


def _links(trace: Trace, turns: Mapping[str, Turn], owner: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The links of a row's own turns, to the rows that train the other ends. Without repeats, in order."""
    found: dict[tuple[str, str], None] = {}
    for span in trace.spans:
        if span.trained:
            for name, turn_id in turns[span.turn_id].links:
                row = owner.get(turn_id)
                if row is not None and row != trace.trace_id:
                    found[name, row] = None
    return tuple(found)
