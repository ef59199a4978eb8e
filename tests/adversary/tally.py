"""What adversarial sessions came to, counted."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from adversary.play import Stage, prove
from tugline.core.columns import count
from tugline.core.items import Assistant
from tugline.core.turn import CallRecord, Turn

EMPTY = "empty turn that the API cannot repeat"
EXPLAINED = {
    EMPTY: "Responses has no form for a model turn that said nothing: the next request comes without it",
    "no_bridge:parts_moved": "the template writes the text of a turn that calls tools behind their results",
    "no_bridge:parallel_calls": "the template shows one call per turn: others stand behind the first one's result",
    "no_bridge:role_": "the template refuses, or rewrites the history for, what comes next",
    "no_bridge:probe_": "the template cannot say what stands behind a turn",
}
"""Reasons for a new row although the harness kept the meaning, by the beginning of their names."""


@dataclass
class Tally:
    """Sessions of one model, dialect and mode."""

    model: str
    family: str
    dialect: str
    mode: str
    tools: bool
    real: bool
    sessions: int = 0
    calls: int = 0
    exact: int = 0
    rows: int = 0
    continuous_rows: int = 0
    steps: int = 0
    """Turns behind the first of their session."""
    continuous: int = 0
    """Of these, prompts that extend the whole turn before."""
    empty: int = 0
    levels: Counter[str] = field(default_factory=Counter)
    drift: Counter[str] = field(default_factory=Counter)
    breaks: Counter[str] = field(default_factory=Counter)
    """Steps that are not continuous, by the reason that the turn names."""
    refused: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """Break or finding -> session and turn of the first one."""

    def as_json(self) -> dict[str, Any]:
        return {f.name: dict(v) if isinstance(v := getattr(self, f.name), Counter) else v for f in fields(self)}


def count_up(tally: Tally, at: Stage, names: list[str]) -> None:
    """Add sessions that have ended."""
    proof = prove(at, names)
    tally.sessions += len(names)
    tally.calls += proof.calls_total
    tally.exact += proof.calls_exact
    tally.rows += proof.traces_total
    tally.continuous_rows += proof.traces_continuous
    tally.drift.update(proof.drift)
    for finding in proof.findings:
        tally.findings[finding.kind] += 1
        tally.examples.setdefault(finding.kind, f"{finding.session_id}: {finding.message}"[:300])
    for name in names:
        played = at.played[name]
        tally.empty += played.empty
        for text in played.refused:
            tally.refused[text[:160]] += 1
        _steps(tally, list(at.store.iter_turns(name)), {c.turn_id: c for c in at.store.iter_calls(name)})


def unexplained(tally: Tally) -> dict[str, int]:
    """Breaks without a known reason."""
    return {word: n for word, n in tally.breaks.items() if not word.startswith(tuple(EXPLAINED))}


def _steps(tally: Tally, turns: list[Turn], calls: dict[str | None, CallRecord]) -> None:
    tally.levels.update(turn.level for turn in turns)
    for n, (before, after) in enumerate(itertools.pairwise(turns), start=2):
        tally.steps += 1
        whole = before.prompt_len + count(before.sampled)
        if after.parent == before.turn_id and after.keep in (whole, whole - 1):
            tally.continuous += 1
            continue
        call = calls.get(after.turn_id)
        if before.echo == Assistant():
            tally.breaks[EMPTY] += 1
            continue
        word = (call.root_reason if call else None) or ", ".join(after.drift) or "unnamed"
        tally.breaks[word] += 1
        tally.examples.setdefault(word, f"{after.session_id} turn {n}")


def markdown(tallies: Iterable[Tally]) -> str:
    """The table of docs: one line per model and dialect, modes together."""
    lines = [
        "| model | dialect | tools | calls | exact | rows | continuous | drift | not continuous |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    merged: dict[tuple[str, str], list[Tally]] = {}
    for tally in tallies:
        merged.setdefault((tally.model, tally.dialect), []).append(tally)
    for (model, dialect), group in merged.items():
        drift, breaks, refused = Counter[str](), Counter[str](), Counter[str]()
        for tally in group:
            drift.update(tally.drift)
            breaks.update(tally.breaks)
            refused.update({f"refused: {k[:60]}": v for k, v in tally.refused.items()})
        what = "" if group[0].real else " (structure only)"
        lines.append(
            f"| {model}{what} | {dialect} | {'yes' if group[0].tools else 'no'} "
            f"| {sum(t.calls for t in group)} | {sum(t.exact for t in group)} | {sum(t.rows for t in group)} "
            f"| {sum(t.continuous_rows for t in group)} | {_listed(drift)} | {_listed(breaks + refused)} |"
        )
    return "\n".join(lines) + "\n"


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{word} {n}" for word, n in sorted(counter.items())) or "none"
