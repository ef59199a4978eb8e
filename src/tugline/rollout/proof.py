"""Re-proving a run from its records and the engine's own journal. Offline: needs no engine, tokenizer or network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tugline.core.columns import Ids, concat, take
from tugline.core.contracts import JournalEntry, Verdict
from tugline.core.errors import VerifyError
from tugline.core.session import FAILURE_OF, Ended, Failure, SessionState
from tugline.core.trace import Trace, Trajectory
from tugline.core.turn import CallRecord, Turn
from tugline.trajectory.merge import linked, strategy_for
from tugline.trajectory.partial import verify_partial
from tugline.trajectory.rows import undelivered_turns
from tugline.trajectory.verify import (
    Finding,
    continuous,
    verify_labels,
    verify_links,
    verify_masks,
    verify_trace,
    verify_turn,
)


class Records(Protocol):
    """The slice of a run store that proofs read."""

    def sessions(self) -> list[tuple[SessionState, float]]: ...
    def iter_calls(self, session_id: str) -> Iterable[CallRecord]: ...
    def iter_turns(self, session_id: str) -> Iterable[Turn]: ...
    def iter_traces(self, session_id: str) -> Iterable[Trace]: ...
    def trajectory(self, session_id: str) -> Trajectory | None: ...
    def verdict(self, session_id: str) -> Verdict | None: ...


Journal = Callable[[str], JournalEntry | None]
"""Looks a generation up by the engine's own reference."""


@dataclass(slots=True)
class Proof:
    """What was proven. `findings` names every contradiction; empty means everything holds."""

    calls_total: int = 0
    calls_exact: int = 0
    traces_total: int = 0
    traces_exact: int = 0
    traces_continuous: int = 0
    sampled_tokens: int = 0
    trained_tokens: int = 0
    drift: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    rewarded_without_tokens: list[str] = field(default_factory=list)
    """Sessions that score and teach nothing."""

    @property
    def ok(self) -> bool:
        """Everything holds and something was there to prove."""
        return not self.findings and not self.rewarded_without_tokens and self.calls_total > 0

    def as_json(self) -> dict[str, object]:
        """The stable part of `tugline verify --json`, and more."""
        return {
            "ok": self.ok,
            "calls": {"total": self.calls_total, "exact": self.calls_exact},
            "traces": {
                "total": self.traces_total,
                "exact": self.traces_exact,
                "continuous": self.traces_continuous,
            },
            "tokens": {"sampled": self.sampled_tokens, "trained": self.trained_tokens},
            "drift": dict(sorted(self.drift.items())),
            "rewarded_without_tokens": self.rewarded_without_tokens,
            "findings": [
                {
                    "kind": f.kind,
                    "session": f.session_id,
                    "call": f.call_id,
                    "turn": f.turn_id,
                    "trace": f.trace_id,
                    "position": f.position,
                    "message": f.message,
                }
                for f in self.findings[:200]
            ],
            "findings_total": len(self.findings),
        }


def prove_run(records: Records, journal: Journal, say: Callable[[int, int], None] = lambda _a, _b: None) -> Proof:
    """Check every call against the journal and every row against its turns."""
    proof = Proof()
    states = [state for state, _ in records.sessions()]
    for done, state in enumerate(states):
        _prove_session(records, journal, state, proof)
        say(done + 1, len(states))
    return proof


def _prove_session(records: Records, journal: Journal, state: SessionState, proof: Proof) -> None:
    session_id = state.key.session_id
    try:
        turns = list(records.iter_turns(session_id))
        calls = list(records.iter_calls(session_id))
    except VerifyError as err:
        proof.findings.append(_finding("damaged_record", session_id, err.message))
        return
    refs = {c.turn_id: c for c in calls if c.turn_id is not None and c.engine_ref is not None}
    _prove_turns(turns, refs, journal, proof)
    by_id = {t.turn_id: t for t in turns}
    for call in calls:
        if call.turn_id is not None and call.turn_id not in by_id:
            message = f"call {call.call_id} was answered by turn {call.turn_id}, which is not stored"
            proof.findings.append(_finding("missing_turn", session_id, message, call.call_id))
    proof.findings.extend(verify_links(turns))
    try:
        traces = list(records.iter_traces(session_id))
        whole, verdict = records.trajectory(session_id), records.verdict(session_id)
    except VerifyError as err:
        # rows are stored against their turns: a changed turn shows here too, after it was named above
        proof.findings.append(_finding("damaged_row", session_id, err.message))
        return
    before, as_stored = len(proof.findings), turns
    if strategy_for(turns) == "merged":  # rows of such a session are paths of the tree that its ids alone give
        turns = list(linked(turns))
        by_id = {t.turn_id: t for t in turns}
    # rows of a lost or failed attempt are proven too, but nothing ever trains on them
    trains = isinstance(state, Ended) and FAILURE_OF[state.outcome] is not Failure.INFRA
    for trace in traces:
        found = verify_trace(trace, by_id)
        proof.traces_total += 1
        proof.traces_exact += not found
        proof.traces_continuous += continuous(trace, by_id)
        proof.trained_tokens += sum(trace.loss_mask) if trains else 0
        proof.findings.extend(found)
    if isinstance(state, Ended):
        proof.findings.extend(verify_masks(traces, turns, undelivered_turns(turns, calls)))
        if len(proof.findings) == before:  # else these would only say the same again
            proof.findings.extend(_labels(state, as_stored, calls, whole, traces))
        if verdict is not None and state.reward is not None and verdict.reward != state.reward:
            message = f"the session's reward is {state.reward}, the verifier said {verdict.reward}"
            proof.findings.append(_finding("reward", session_id, message))
        trainable = any(any(trace.loss_mask) for trace in traces) or any(turn.engine for turn in turns)
        trainable = trainable or any(turn.level == "L0" for turn in turns)  # text only: nobody expects tokens of it
        if state.reward is not None and FAILURE_OF[state.outcome] is not Failure.INFRA and not trainable:
            proof.rewarded_without_tokens.append(session_id)


def _labels(
    state: Ended, turns: Sequence[Turn], calls: Sequence[CallRecord], whole: Trajectory | None, traces: Sequence[Trace]
) -> list[Finding]:
    session_id = state.key.session_id
    if whole is None:
        missing = _finding("missing_trajectory", session_id, "rows are stored, what they are trained with is not")
        return [missing] if traces else []
    try:
        return verify_labels(whole, state, turns, undelivered_turns(turns, calls))
    except VerifyError as err:
        return [_finding("broken_path", session_id, err.message)]


def _prove_turns(turns: Sequence[Turn], refs: dict[str, CallRecord], journal: Journal, proof: Proof) -> None:
    by_id = {turn.turn_id: turn for turn in turns}
    full: dict[str, Ids] = {}
    """Of turns that some later turn extends: kept until the last of them was seen."""
    awaited = Counter(turn.parent for turn in turns)
    for turn in turns:
        parent = full.get(turn.parent) if turn.parent is not None else Ids(b"")
        call = refs.get(turn.turn_id)
        proof.calls_total += 1
        proof.sampled_tokens += len(turn.sampled) // 4
        proof.drift.update(turn.drift)
        found: list[Finding] = []
        if parent is None:
            found.append(_finding("missing_parent", turn.session_id, f"turn {turn.turn_id}: its parent is not stored"))
            parent = Ids(b"")
        entry = None
        if call is None or call.engine_ref is None:
            found.append(_finding("missing_call", turn.session_id, f"turn {turn.turn_id} has no call record"))
        else:
            entry = _look_up(journal, call, found)
        found.extend(verify_turn(turn, parent, entry, call.call_id if call else None))
        if turn.partial is not None:
            origin = refs.get(turn.partial.turn_id)
            found.extend(
                verify_partial(
                    turn, by_id.get(turn.partial.turn_id), _look_up(journal, origin, found) if origin else None
                )
            )
        if awaited[turn.turn_id]:
            full[turn.turn_id] = concat([take(parent, 0, turn.keep), turn.bridge, turn.sampled])
        awaited[turn.parent] -= 1
        if turn.parent is not None and not awaited[turn.parent]:
            full.pop(turn.parent, None)
        proof.calls_exact += not found
        proof.findings.extend(found)


def _look_up(journal: Journal, call: CallRecord, found: list[Finding]) -> JournalEntry | None:
    try:
        entry = journal(call.engine_ref or "")
    except VerifyError as err:
        found.append(_finding("damaged_journal", call.session_id, err.message, call.call_id))
        return None
    if entry is None:
        message = f"call {call.call_id}: the engine's journal has no record {call.engine_ref}"
        found.append(_finding("missing_in_journal", call.session_id, message, call.call_id))
    return entry


def _finding(kind: str, session_id: str, message: str, call_id: str | None = None) -> Finding:
    return Finding(
        kind=kind, session_id=session_id, call_id=call_id, turn_id=None, trace_id=None, position=None, message=message
    )
