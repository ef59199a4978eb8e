"""The whole suite: fake engine, sessions, verdicts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tugline.core.errors import ConfigError, RunError, TuglineError
from tugline.gateway.server import bind, listen
from tugline.testing.exactness.agent import Agent, Moment, Stopped
from tugline.testing.exactness.app import fake_app
from tugline.testing.exactness.clients import CLIENTS
from tugline.testing.exactness.fake import NONCANONICAL, FakeEngine
from tugline.testing.exactness.judge import PROMISES, Judge, Verdict
from tugline.testing.exactness.records import Kept
from tugline.testing.exactness.scenes import SCENES
from tugline.testing.exactness.subjects import Subject

MODES = ("whole", "streamed")
_REFUSED = 3
"""First sessions of an API after which it is given up when none of them had a usable reply."""
_SILENT = 2
"""Sessions in a row without a whole reply of any kind after which a gateway is given up."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played."""

    dialects: tuple[str, ...] = tuple(CLIENTS)
    scenes: tuple[str, ...] = tuple(SCENES)
    modes: tuple[str, ...] = MODES

    def __post_init__(self) -> None:
        """Raises ConfigError naming what is unknown."""
        for what, given, known in (
            ("dialect", self.dialects, tuple(CLIENTS)),
            ("scene", self.scenes, tuple(SCENES)),
            ("mode", self.modes, MODES),
        ):
            unknown = [word for word in given if word not in known]
            if unknown or not given:
                raise ConfigError(
                    f"no {what} {', '.join(unknown)!r}; there are: {', '.join(known)}", where=f"--{what}s"
                )

    @classmethod
    def small(cls, **chosen: tuple[str, ...]) -> Plan:
        """The quick choice of scenes."""
        return cls(scenes=tuple(s.name for s in SCENES.values() if s.small), **chosen)


@dataclass(slots=True)
class Report:
    """What a gateway keeps."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    sessions: int = 0
    unplanned: int = 0
    """Generations that no request of the suite had asked for."""
    forms: dict[str, int] = field(default_factory=dict)
    """route and form of the prompts that the engine got, with how many."""
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Every dialect keeps everything that could be looked at."""
        return bool(self.verdicts) and all(v.ok for v in self.verdicts.values())

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "ok": self.ok,
            "sessions": self.sessions,
            "engine": {"prompts": self.forms, "unplanned": self.unplanned},
            "dialects": {name: _verdict_json(v) for name, v in self.verdicts.items()},
            "notes": self.notes,
        }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    def shown(found: Any) -> dict[str, Any]:
        return {"scene": found.scene, "stream": found.stream, "request": found.turn, "message": found.message}

    promises: dict[str, Any] = {}
    for promise in PROMISES:
        score = verdict.scores[promise]
        broken = [f for f in verdict.findings if f.promise == promise]
        kept = None if not score.of else not broken
        first = shown(broken[0]) if broken else None
        scenes = sorted({f.scene for f in broken})
        promises[promise] = {"kept": kept, "held": score.held, "of": score.of, "first": first, "scenes": scenes}
        if promise == "C":
            promises[promise] |= {"by_template": score.by_template, "by_harness": score.by_harness}
        if score.counted:
            promises[promise]["counted"] = score.counted
        if score.none or not score.of:
            promises[promise]["why"] = score.none or score.why
    return {
        "served": verdict.served,
        "ok": verdict.ok,
        "requests": verdict.calls,
        "answered": verdict.answered,
        "promises": promises,
        "findings": [shown(f) | {"promise": f.promise} for f in verdict.findings],
        "counted": [shown(f) | {"promise": f.promise} for f in verdict.counted],
        "failures": [shown(f) for f in verdict.failures],
    }


@asynccontextmanager
async def fake_server(engine: FakeEngine, port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serves the engine; its URL. Raises RunError for a port that is taken."""
    try:
        sock = bind(host, port)
    except OSError as err:
        raise RunError(f"cannot listen on {host}:{port}: {err.strerror}") from err
    listener = await listen(fake_app(engine), sock)
    try:
        yield f"http://{host}:{listener.port}"
    finally:
        await listener.close()


def make_engine(model: Path, *, seed: int = 0, noncanonical: float = NONCANONICAL) -> FakeEngine:
    """The engine of a model directory. Raises ConfigError."""
    return FakeEngine(model, seed=seed, noncanonical=noncanonical)


Say = Callable[[str, int, int], None]
"""Told of every session: its name, how many are done, how many there are."""


async def run_suite(
    engine: FakeEngine, subject: Subject, http: httpx.AsyncClient, plan: Plan, say: Say = lambda _n, _d, _o: None
) -> Report:
    """Play everything, then judge. Raises TuglineError when the gateway cannot be talked to at all."""
    moments: list[Moment] = []
    records: dict[str, Sequence[Kept] | None] = {}
    lost: dict[str, str] = {}
    report = Report()
    begun = len(engine.made)  # a driver that starts up may have looked at what the engine can do
    games = [(d, s, m) for d in plan.dialects for s in plan.scenes for m in plan.modes]
    for done, (dialect, scene, mode) in enumerate(games):
        if _fell_silent(moments):
            report.notes.append(f"given up after {done} of {len(games)} sessions: no whole reply any more")
            break
        if _refused(moments, dialect):
            continue
        name = f"exactness-{dialect}-{scene}-{mode}".replace("_", "-")
        say(name.removeprefix("exactness-"), done, len(games))
        await _play((engine, subject, http), (dialect, scene, mode), name, moments)
        try:
            records[name] = await subject.close(name)
        except TuglineError as err:
            lost[name] = err.message
        report.sessions += 1
    report.notes += [f"records of {len(lost)} sessions cannot be read: {why}" for why in [*lost.values()][:1]]
    report.notes += [
        f"{d}: given up after {_REFUSED} sessions without a usable reply" for d in plan.dialects if _refused(moments, d)
    ]
    engine.plan()
    if engine.shortened:
        report.notes.append(
            f"{engine.shortened} turns (and so scenes) are shorter than planned: the model's format holds no more"
        )
    judge = Judge(engine, moments, records, lost)
    report.verdicts = {dialect: judge.verdict(dialect) for dialect in plan.dialects}
    report.unplanned = sum(not m.planned for m in engine.made[begun:])
    for made in engine.made[begun:]:
        key = f"{made.route} {made.form}"
        report.forms[key] = report.forms.get(key, 0) + 1
    return report


def _by_session(moments: Sequence[Moment]) -> list[list[Moment]]:
    found: dict[str, list[Moment]] = {}
    for moment in moments:
        found.setdefault(moment.session, []).append(moment)
    return list(found.values())


def _refused(moments: Sequence[Moment], dialect: str) -> bool:
    """Whether none of the first sessions of an API had a usable reply."""
    first = _by_session([m for m in moments if m.dialect == dialect])[:_REFUSED]
    return len(first) == _REFUSED and not any(m.heard for session in first for m in session)


def _fell_silent(moments: Sequence[Moment]) -> bool:
    """Whether the last sessions had no whole reply of any kind."""
    last = _by_session(moments)[-_SILENT:]
    return len(last) == _SILENT and not any(m.status for session in last for m in session)


async def _play(
    parts: tuple[FakeEngine, Subject, httpx.AsyncClient], game: tuple[str, str, str], name: str, moments: list[Moment]
) -> None:
    engine, subject, http = parts
    dialect, scene, mode = game
    line = await subject.open(name)
    agent = Agent(CLIENTS[dialect], engine, http, line, name, scene, mode == "streamed", moments, SCENES[scene].hostile)
    with contextlib.suppress(Stopped):  # the moment that stopped it is on record
        await SCENES[scene].play(agent)


def known_scenes() -> Mapping[str, str]:
    """Name and what it is about."""
    return {name: scene.about for name, scene in SCENES.items()}
