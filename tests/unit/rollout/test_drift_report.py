"""`tugline report --drift`: counts with their first example, and the status of the checks."""

from __future__ import annotations

from dataclasses import replace

from tugline.core.columns import count
from tugline.core.turn import CallOutcome
from tugline.rollout.drift_report import drift_report
from unit.rollout.test_proof import honest


def test_counts_and_first_examples() -> None:
    run = honest()
    run.turns[1] = replace(run.turns[1], drift=("ws_trim",))
    run.turns[2] = replace(run.turns[2], drift=("stop_trim", "ws_trim"))
    run.turns[3] = replace(run.turns[3], untrainable="engine_echo_mismatch")
    run.calls[0] = replace(run.calls[0], root_reason="root_first", ignored=("metadata",))
    run.calls.append(
        replace(run.calls[0], call_id="call_x", turn_id=None, outcome=CallOutcome.REJECTED, error="BadRequest: no",
                root_reason=None)
    )  # fmt: skip
    run.calls.append(replace(run.calls[3], call_id="call_again", outcome=CallOutcome.REPLAYED, engine_ref=None))
    found = drift_report(run).as_json()
    assert found["calls"] == {"answered": 4, "rejected": 1, "replayed": 1}
    assert found["drift"] == [
        {"reason": "ws_trim", "turns": 2, "example": {"session": "ses", "call": "call_1"}},
        {"reason": "stop_trim", "turns": 1, "example": {"session": "ses", "call": "call_2"}},
    ]
    assert found["roots"] == [{"reason": "root_first", "calls": 1, "example": {"session": "ses", "call": "call_0"}}]
    assert found["untrained"] == [
        {
            "reason": "engine_echo_mismatch",
            "turns": 1,
            "tokens": count(run.turns[3].sampled),
            "example": {"session": "ses", "call": "call_3"},
        }
    ]
    assert found["without_effect"] == [
        {"reason": "metadata", "calls": 2, "example": {"session": "ses", "call": "call_0"}}
    ]
    assert [e["reason"] for e in found["errors"]] == ["BadRequest: no"]  # type: ignore[attr-defined]
    assert found["levels"] == {"L4": 4}
    status = {c["code"]: c["status"] for c in found["checks"]}  # type: ignore[attr-defined]
    assert status["V1"] == "1 of 4 failed"
    assert (status["V2"], status["V3"]) == ("4 passed", "4 passed")
    assert status["V4"].endswith("--audit")


def test_undelivered_and_broken_chains() -> None:
    run = honest()
    run.calls[3] = replace(run.calls[3], outcome=CallOutcome.UNDELIVERED)
    run.turns[2] = replace(run.turns[2], keep=run.turns[2].keep - 2)
    run.turns[1] = replace(run.turns[1], parent="turn_gone")
    report = drift_report(run)
    assert {name: seen.call_id for name, seen in report.untrained.items()} == {"undelivered": "call_3"}
    assert report.failed["V3"] == 2


def test_an_empty_run() -> None:
    run = honest()
    run.calls, run.turns = [], []
    found = drift_report(run).as_json()
    assert found["calls"] == {} and found["drift"] == []
