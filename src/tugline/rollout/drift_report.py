"""The long form of `tugline report --drift`: how calls ended, what deviated and where it was first seen, what is not
trained and why, what has been checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tugline.core.columns import count
from tugline.core.session import SessionState
from tugline.core.turn import CallRecord, Turn
from tugline.trajectory.rows import undelivered_turns, why_untrained

ECHO = ("engine_echo_mismatch", "no_prompt_ids")
"""Untrainable reasons that V1 gives; all others are of V2."""


class Readable(Protocol):
    """The slice of a run store that this report reads."""

    def sessions(self) -> list[tuple[SessionState, float]]: ...
    def iter_calls(self, session_id: str) -> Iterable[CallRecord]: ...
    def iter_turns(self, session_id: str) -> Iterable[Turn]: ...


@dataclass(slots=True)
class Seen:
    """How often something was seen, and the first place. `tokens`: sampled tokens of those turns."""

    session_id: str
    call_id: str | None
    times: int = 0
    tokens: int = 0


@dataclass(slots=True)
class DriftReport:
    """Tables by name. Each entry of `drift`, `roots`, `untrained` and `errors` has its first example."""

    calls: Counter[str] = field(default_factory=Counter)
    drift: dict[str, Seen] = field(default_factory=dict)
    roots: dict[str, Seen] = field(default_factory=dict)
    untrained: dict[str, Seen] = field(default_factory=dict)
    ignored: dict[str, Seen] = field(default_factory=dict)
    errors: dict[str, Seen] = field(default_factory=dict)
    levels: Counter[str] = field(default_factory=Counter)
    turns: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Failures of V1, V2, V3."""

    def checks(self) -> list[tuple[str, str, str]]:
        """(code, what it proves, status) of V1 to V5."""

        def status(code: str) -> str:
            return f"{self.failed[code]} of {self.turns} failed" if self.failed[code] else f"{self.turns} passed"

        return [
            ("V1", "the engine's echo is the prompt that was sent", status("V1")),
            ("V2", "ids, log-probabilities, stops and versions fit together", status("V2")),
            ("V3", "each prompt extends its parent", status("V3")),
            ("V4", "prompts are what the template renders whole", "not checked here: tugline verify RUN --audit"),
            ("V5", "log-probabilities can be had again", "not checked here: tugline verify RUN --rescore"),
        ]

    def as_json(self) -> dict[str, object]:
        """The object under `details` of `tugline report --drift --json`."""
        return {
            "calls": dict(sorted(self.calls.items())),
            "drift": _listed(self.drift, "turns"),
            "roots": _listed(self.roots, "calls"),
            "untrained": _listed(self.untrained, "turns", tokens=True),
            "without_effect": _listed(self.ignored, "calls"),
            "errors": _listed(self.errors, "calls"),
            "levels": dict(sorted(self.levels.items())),
            "checks": [{"code": code, "proves": what, "status": status} for code, what, status in self.checks()],
        }


def drift_report(store: Readable) -> DriftReport:
    """Read a run, all attempts. Raises VerifyError for damage."""
    out = DriftReport()
    for state, _ in store.sessions():
        session_id = state.key.session_id
        calls, turns = list(store.iter_calls(session_id)), list(store.iter_turns(session_id))
        call_of: dict[str | None, str] = {c.turn_id: c.call_id for c in reversed(calls) if c.turn_id is not None}
        for call in calls:
            _add_call(call, out)
        _add_turns(turns, calls, call_of, out)
    return out


def _add_call(call: CallRecord, out: DriftReport) -> None:
    out.calls[call.outcome.value] += 1
    if call.root_reason is not None:
        _see(out.roots, call.root_reason, call.session_id, call.call_id)
    for name in call.ignored:
        _see(out.ignored, name, call.session_id, call.call_id)
    if call.error is not None:
        _see(out.errors, call.error, call.session_id, call.call_id)


def _add_turns(turns: list[Turn], calls: list[CallRecord], call_of: Mapping[str | None, str], out: DriftReport) -> None:
    undelivered = undelivered_turns(turns, calls)
    by_id = {turn.turn_id: turn for turn in turns}
    for turn in turns:
        where = turn.session_id, call_of.get(turn.turn_id)
        out.turns += 1
        out.levels[turn.level] += 1
        for reason in turn.drift:
            _see(out.drift, reason, *where)
        why = why_untrained(turn, undelivered)
        if why is not None:
            _see(out.untrained, why, *where, tokens=count(turn.sampled))
        if turn.untrainable is not None:
            out.failed["V1" if turn.untrainable in ECHO else "V2"] += 1
        out.failed["V3"] += not _extends(turn, by_id)


def _extends(turn: Turn, by_id: Mapping[str, Turn]) -> bool:
    parent = by_id.get(turn.parent) if turn.parent is not None else None
    if parent is None and turn.parent is not None:
        return False
    whole = parent.prompt_len + count(parent.sampled) if parent is not None else 0
    return turn.keep in (whole, max(0, whole - 1)) and turn.keep + count(turn.bridge) == turn.prompt_len


def _see(table: dict[str, Seen], name: str, session_id: str, call_id: str | None, tokens: int = 0) -> None:
    seen = table.setdefault(name, Seen(session_id, call_id))
    seen.times += 1
    seen.tokens += tokens


def _listed(table: Mapping[str, Seen], unit: str, *, tokens: bool = False) -> list[dict[str, object]]:
    return [
        {
            "reason": name,
            unit: seen.times,
            **({"tokens": seen.tokens} if tokens else {}),
            "example": {"session": seen.session_id, "call": seen.call_id},
        }
        for name, seen in sorted(table.items(), key=lambda pair: (-pair[1].times, pair[0]))
    ]
