"""Trajectories over HTTP arrive as they were."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core.columns import Floats, Ids, floats, floats_array, ids
from tugline.core.errors import VerifyError
from tugline.core.session import Failure, Outcome
from tugline.core.trace import Span, Trace, Trajectory
from tugline.core.turn import Sampling
from tugline.rollout.trajectory_json import decode_trajectory, encode_trajectory

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def trajectory(token_ids: Ids, mask: bytes, logprobs: Floats) -> Trajectory:
    row = Trace(
        trace_id="trace_1",
        session_id="ses_1",
        group_id="g",
        kind="main",
        parent=None,
        order=0,
        token_ids=token_ids,
        loss_mask=mask,
        logprobs=logprobs,
        version_runs=((0, 1), (2, 3)),
        spans=(Span(0, 2, "turn_1", "main", "stop", True),),
        sampling=Sampling(0.7, 0.9, 5, 64, None),
        drift={"stop_trim": 1},
        links=(("spawned_by", "trace_0"),),
    )
    return Trajectory("ses_1", "g", Outcome.COMPLETED, Failure.NONE, 0.1, {"x": 1.0}, (row,), {"stop_trim": 1})


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans(), st.none() | FLOATS), max_size=50))
def test_finite_values_come_back_bit_for_bit_and_unknown_ones_as_nan(
    rows: list[tuple[int, bool, float | None]],
) -> None:
    values = floats(float("nan") if v is None else v for _, _, v in rows)
    sent = trajectory(ids(i for i, _, _ in rows), bytes(m for _, m, _ in rows), values)
    data = encode_trajectory(sent)
    assert decode_trajectory(data) == sent
    assert json.loads(data)["traces"][0]["logprobs"] == [
        None if v is None else float(np.float32(v)) for _, _, v in rows
    ]


def test_what_is_not_finite_is_unknown() -> None:
    sent = trajectory(ids([1, 2]), b"\0\1", floats([float("-inf"), -1.0]))
    assert np.isnan(floats_array(decode_trajectory(encode_trajectory(sent)).traces[0].logprobs)[0])


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"session_id": 1}', b"\xff"])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(VerifyError, match="not a trajectory"):
        decode_trajectory(data)
