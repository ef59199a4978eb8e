"""A trajectory as JSON and back: columns become lists, an unknown log-probability (anything not finite) becomes null.

Finite values come back bit for bit. Pure.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tugline.core.columns import Floats, Ids, floats, floats_array, ids, ids_list
from tugline.core.errors import VerifyError
from tugline.core.routes import Routes
from tugline.core.session import Failure, Outcome
from tugline.core.trace import Span, Trace, Trajectory
from tugline.core.turn import Role, Sampling


class TraceJson(msgspec.Struct, frozen=True):
    """One training row. token_ids, loss_mask and logprobs are of one length; see the core type."""

    trace_id: str
    session_id: str
    group_id: str
    kind: Role
    parent: str | None
    order: int
    token_ids: list[int]
    loss_mask: list[int]
    logprobs: list[float | None]
    version_runs: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...]
    sampling: Sampling
    logprob_kind: Literal["raw", "processed"]
    loss_weight: float
    level: str
    drift: dict[str, int]
    links: tuple[tuple[str, str], ...] = ()
    routed_experts: Routes | None = None
    """`data` is base64 of little-endian `kind`[rows, layers, picks]: see the core type."""


class TrajectoryJson(msgspec.Struct, frozen=True):
    """All rows of a session with its reward."""

    session_id: str
    group_id: str
    outcome: Outcome
    failure: Failure
    reward: float | None
    reward_parts: dict[str, float]
    untrained: dict[str, int]
    traces: tuple[TraceJson, ...]


def encode_trajectory(trajectory: Trajectory) -> bytes:
    """JSON text. About 15 bytes per token: call it off the event loop."""
    return msgspec.json.encode(
        TrajectoryJson(
            session_id=trajectory.session_id,
            group_id=trajectory.group_id,
            outcome=trajectory.outcome,
            failure=trajectory.failure,
            reward=trajectory.reward,
            reward_parts=trajectory.reward_parts,
            untrained=trajectory.untrained,
            traces=tuple(map(_out, trajectory.traces)),
        )
    )


def decode_trajectory(data: bytes) -> Trajectory:
    """Raises VerifyError when the text is no trajectory."""
    try:
        found = msgspec.json.decode(data, type=TrajectoryJson)
        return Trajectory(
            session_id=found.session_id,
            group_id=found.group_id,
            outcome=found.outcome,
            failure=found.failure,
            reward=found.reward,
            reward_parts=found.reward_parts,
            traces=tuple(map(_in, found.traces)),
            untrained=found.untrained,
        )
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, OverflowError) as err:
        raise VerifyError(f"not a trajectory: {err}") from err


def _out(trace: Trace) -> TraceJson:
    return TraceJson(
        trace_id=trace.trace_id,
        session_id=trace.session_id,
        group_id=trace.group_id,
        kind=trace.kind,
        parent=trace.parent,
        order=trace.order,
        token_ids=ids_list(trace.token_ids),
        loss_mask=list(trace.loss_mask),
        logprobs=floats_array(trace.logprobs).tolist(),  # NaN is written as null
        version_runs=trace.version_runs,
        spans=trace.spans,
        sampling=trace.sampling,
        logprob_kind=trace.logprob_kind,
        loss_weight=trace.loss_weight,
        level=trace.level,
        drift=trace.drift,
        links=trace.links,
        routed_experts=trace.routed_experts,
    )


def _in(row: TraceJson) -> Trace:
    token_ids: Ids = ids(row.token_ids)
    logprobs: Floats = floats(float("nan") if value is None else value for value in row.logprobs)
    return Trace(
        trace_id=row.trace_id,
        session_id=row.session_id,
        group_id=row.group_id,
        kind=row.kind,
        parent=row.parent,
        order=row.order,
        token_ids=token_ids,
        loss_mask=bytes(row.loss_mask),
        logprobs=logprobs,
        version_runs=row.version_runs,
        spans=row.spans,
        sampling=row.sampling,
        logprob_kind=row.logprob_kind,
        loss_weight=row.loss_weight,
        level=row.level,
        drift=row.drift,
        links=row.links,
        routed_experts=row.routed_experts,
    )
