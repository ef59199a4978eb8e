"""What a run came to: outcomes, rewards, rows, drift, calls, tokens, stage times. Read from the store alone."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import quantiles
from typing import Protocol

from tugline.core.columns import count
from tugline.core.session import FAILURE_OF, Ended, Failure, SessionState, state_name
from tugline.core.trace import Trace
from tugline.core.turn import CallRecord, Turn
from tugline.rollout.detectors import turn_marks
from tugline.rollout.transitions import last_attempts


class Readable(Protocol):
    """The slice of a run store that a summary reads."""

    def sessions(self) -> list[tuple[SessionState, float]]: ...
    def history(self, session_id: str) -> list[tuple[str, float]]:
        """(state name, wall time) of each transition, in order."""
        ...

    def iter_calls(self, session_id: str) -> Iterable[CallRecord]: ...
    def iter_turns(self, session_id: str) -> Iterable[Turn]: ...
    def iter_traces(self, session_id: str) -> Iterable[Trace]: ...


@dataclass(slots=True)
class Summary:
    """Counts over the newest attempt of every session; `attempts` counts them all."""

    sessions: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    rewards: list[float] = field(default_factory=list)
    by_task: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    rows: int = 0
    sessions_with_rows: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    drift: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    """Calls that held something without effect here, by its name."""
    engines: Counter[str] = field(default_factory=Counter)
    """Turns of engines that are not the policy, by name."""
    turns: int = 0
    roles: Counter[str] = field(default_factory=Counter)
    """Turns by what they are for."""
    links: Counter[str] = field(default_factory=Counter)
    """Turns that belong to another besides their parent, by the name of the link."""
    roots: Counter[str] = field(default_factory=Counter)
    """Turns that began a conversation, by the reason."""
    levels: Counter[str] = field(default_factory=Counter)
    """The policy's turns by capture level."""
    refused: Counter[str] = field(default_factory=Counter)
    """The policy's turns that must not be trained, by the reason that stands on them."""
    tokens: Counter[str] = field(default_factory=Counter)
    stages: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    reasons: Counter[str] = field(default_factory=Counter)
    """Why sessions did not complete, newest attempt."""
    example: dict[str, str] = field(default_factory=dict)
    """reason -> one session id."""
    marks: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What looks like cheating -> the sessions; names with `!` are proofs, which cost the reward. See `detectors`."""

    @property
    def total(self) -> int:
        """Sessions, not attempts."""
        return sum(self.sessions.values())

    @property
    def text_only(self) -> bool:
        """Whether all of the policy's turns are text without ids: nobody expects tokens of them."""
        return set(self.levels) == {"L0"}

    def as_json(self) -> dict[str, object]:
        """The stable part of `tugline report --json`, and more."""
        n = len(self.rewards)
        return {
            "sessions": {"total": self.total, **dict(sorted(self.sessions.items()))},
            "attempts": self.attempts,
            "reward": {"mean": sum(self.rewards) / n if n else None, "n": n},
            "reward_by_task": {k: {"mean": sum(v) / len(v), "n": len(v)} for k, v in sorted(self.by_task.items())},
            "rows_per_session": self.rows / self.sessions_with_rows if self.sessions_with_rows else None,
            "rows": self.rows,
            "turns": self.turns,
            "roles": dict(sorted(self.roles.items())),
            "links": dict(sorted(self.links.items())),
            "roots": dict(sorted(self.roots.items())),
            "calls": dict(sorted(self.calls.items())),
            "tokens": dict(self.tokens),
            "levels": dict(sorted(self.levels.items())),
            "refused": dict(sorted(self.refused.items())),
            "drift": dict(sorted(self.drift.items())),
            "ignored": dict(sorted(self.ignored.items())),
            "other_engines": dict(sorted(self.engines.items())),
            "marks": {k: {"sessions": len(v), "first": v[0]} for k, v in sorted(self.marks.items())},
            "stages": {k: _quantiles(v) for k, v in self.stages.items()},
            "reasons": [
                {"reason": r, "count": c, "session": self.example.get(r)} for r, c in self.reasons.most_common(3)
            ],
        }


def summarise(store: Readable) -> Summary:
    """Read a run."""
    states = [state for state, _ in store.sessions()]
    out = Summary(attempts=len(states))
    newest = {s.key.session_id for s in last_attempts(states).values()}
    for state in states:
        _add_work(store, state.key.session_id, out)
        if state.key.session_id in newest:
            _add_end(store, state, out)
    return out


def _add_work(store: Readable, session_id: str, out: Summary) -> None:
    for call in store.iter_calls(session_id):
        out.calls[call.outcome.value] += 1
        out.ignored.update(call.ignored)
        out.roots.update([call.root_reason] if call.root_reason else ())
    turns = list(store.iter_turns(session_id))
    for name in turn_marks(turns):
        out.marks[name].append(session_id)
    for turn in turns:
        out.turns += 1
        out.roles[turn.role] += 1
        out.links.update(name for name, _ in turn.links)
        out.drift.update(turn.drift)
        out.engines.update([turn.engine] if turn.engine else ())
        out.levels.update([] if turn.engine else [turn.level])
        out.refused.update([turn.untrainable] if turn.untrainable and not turn.engine else ())
        out.tokens["prompt"] += turn.prompt_len
        out.tokens["prompt_new"] += count(turn.bridge)
        out.tokens["sampled"] += count(turn.sampled)


def _add_end(store: Readable, state: SessionState, out: Summary) -> None:
    session_id = state.key.session_id
    if not isinstance(state, Ended):
        out.sessions[state_name(state)] += 1
        return
    out.sessions[state.outcome.value] += 1
    for name in state.marks:
        out.marks[name].append(session_id)
    if state.reason:
        out.reasons[state.reason] += 1
        out.example.setdefault(state.reason, session_id)
    traces = list(store.iter_traces(session_id))
    out.rows += len(traces)
    out.sessions_with_rows += bool(traces)
    if FAILURE_OF[state.outcome] is not Failure.INFRA:
        out.tokens["trained"] += sum(sum(t.loss_mask) for t in traces)
    if state.reward is not None and FAILURE_OF[state.outcome] is not Failure.INFRA:
        out.rewards.append(state.reward)
        out.by_task[state.key.task_id].append(state.reward)
    history = store.history(session_id)
    for (name, begun), (_, ended) in itertools.pairwise(history):
        out.stages[name].append(ended - begun)


def _quantiles(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {"p50": values[0] if values else 0.0, "p95": values[0] if values else 0.0, "n": len(values)}
    cuts = quantiles(values, n=20, method="inclusive")
    return {"p50": cuts[9], "p95": cuts[18], "n": len(values)}
