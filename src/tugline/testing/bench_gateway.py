"""`tugline bench gateway`: what a captured call costs, beside a relay that moves the same bytes and reads nothing.

Rounds of both are interleaved in one run on the same core, so that what the machine does otherwise hits both; the
result is the median of the rounds' ratios. A number is given only with its proof: every answered call must lie in the
run store as the engine produced it.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import tugline
from tugline.core.errors import RunError
from tugline.core.turn import CallOutcome
from tugline.store import RunStore
from tugline.testing.bench_load import Job, Took
from tugline.testing.bench_proc import Child, child, children, cpu_model, rss_bytes, two_cores
from tugline.testing.bench_server import Finished, Truth, digest

GATE = 80.0
"""The run fails when a captured call takes more than this many times the CPU of a relayed one: 1.5 times what was
measured, see docs/benchmarks.md."""
CONCURRENCY = 8
TURNS = 20


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    sessions: int
    turns: int = TURNS


QUICK, FULL = Size(rounds=3, sessions=8), Size(rounds=9, sessions=24)


@dataclass(frozen=True, slots=True)
class Captured:
    """Of `calls` answered calls: `exact` lie in the store as the engine produced them, `continued` go on from the turn
    before (all but the first of a session)."""

    calls: int
    exact: int
    continued: int
    expected_continued: int

    @property
    def ok(self) -> bool:
        return self.calls > 0 and self.exact == self.calls and self.continued == self.expected_continued


@dataclass(frozen=True, slots=True)
class Machine:
    """Where it was measured."""

    cpu: str
    pinned: bool
    load: tuple[float, float]
    """Load averages over one minute, before and after."""
    python: str
    version: str


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Times are milliseconds, memory is KiB."""

    ours: float
    """CPU per call of the gateway's process: median of the rounds."""
    floor: float
    ratios: tuple[float, ...]
    """One per round."""
    by_turn: tuple[float, ...]
    """CPU per call at turn 1, 2, ...: median of the rounds."""
    floor_by_turn: tuple[float, ...]
    request_kb: tuple[float, float]
    """Size of a request at the first and at the last turn."""
    latency: tuple[float, float]
    """p50 and p99 of a call, with CONCURRENCY calls always under way."""
    rss_per_session: float
    lag_max: float
    captured: Captured
    machine: Machine

    @property
    def ratio(self) -> float:
        """Median of the rounds' ratios."""
        return statistics.median(self.ratios)

    @property
    def slope(self) -> float:
        """Added CPU per call and turn above the floor's: linear fit over all turns but the first."""
        above = [a - b for a, b in zip(self.by_turn[1:], self.floor_by_turn[1:], strict=True)]
        return statistics.linear_regression(range(len(above)), above).slope if len(above) > 1 else 0.0

    @property
    def ok(self) -> bool:
        """All captured right, and no dearer than the gate allows."""
        return self.captured.ok and self.ratio <= GATE

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "ok": self.ok,
            "cpu_ms_per_call": {"ours": round(self.ours, 4), "floor": round(self.floor, 4)},
            "ratio": round(self.ratio, 2),
            "ratios": [round(r, 2) for r in self.ratios],
            "gate": GATE,
            "cpu_ms_by_turn": {
                "ours": [round(v, 4) for v in self.by_turn],
                "floor": [round(v, 4) for v in self.floor_by_turn],
                "slope_above_floor": round(self.slope, 5),
            },
            "request_kb": {"first": round(self.request_kb[0], 1), "last": round(self.request_kb[1], 1)},
            "latency_ms": {"concurrency": CONCURRENCY, "p50": self.latency[0], "p99": self.latency[1]},
            "rss_kib_per_session": round(self.rss_per_session, 1),
            "loop_lag_ms_max": round(self.lag_max, 2),
            "captured": {
                "calls": self.captured.calls,
                "exact": self.captured.exact,
                "continued": self.captured.continued,
                "expected_continued": self.captured.expected_continued,
            },
            "machine": msgspec.to_builtins(self.machine),
        }

    def text(self) -> str:
        """For people."""
        c, m = self.captured, self.machine
        verdict = "within" if self.ratio <= GATE else "ABOVE"
        last = len(self.by_turn)
        sizes = f"{self.request_kb[0]:.0f} -> {self.request_kb[1]:.0f} KB"
        rows = {
            "captured": f"{c.exact}/{c.calls} as produced, {c.continued}/{c.expected_continued} continue their session",
            "CPU per call": f"{self.ours:.2f} ms, byte relay {self.floor:.3f} ms",
            "ratio": f"{self.ratio:.1f} (rounds {min(self.ratios):.1f} to {max(self.ratios):.1f}), {verdict} {GATE:g}",
            "turn 1, 2, last": f"{self.by_turn[0]:.2f}, {self.by_turn[min(1, last - 1)]:.2f}, {self.by_turn[-1]:.2f} ms"
            f" as requests grow {sizes}",
            "growth": f"{self.slope * 1000:+.0f} us per turn above the relay's",
            "latency": f"p50 {self.latency[0]:.1f} ms, p99 {self.latency[1]:.1f} ms at concurrency {CONCURRENCY}",
            "memory": f"{self.rss_per_session:.0f} KiB per open session of {last} turns",
            "loop lag": f"{self.lag_max:.1f} ms at most",
            "machine": f"{m.cpu}, {'pinned' if m.pinned else 'NOT pinned'}, load {m.load[0]:.1f} -> {m.load[1]:.1f}, "
            f"Python {m.python}, tugline {m.version}",
        }
        width = max(map(len, rows))
        return "\n".join(f"  {name.ljust(width)}  {value}" for name, value in rows.items())


class _Opened(msgspec.Struct):
    port: int
    keys: dict[str, str]


class _Port(msgspec.Struct):
    port: int


class _Done(msgspec.Struct):
    pass


@dataclass(frozen=True, slots=True)
class _Measured:
    """Raw results of all rounds."""

    ours: list[Took]
    floor: list[Took]
    names: list[str]
    rss: int
    finished: Finished


class _Rig:
    """The processes: gateway, relay, what is behind the relay, load."""

    def __init__(self, stack: ExitStack, run: Path) -> None:
        cores = two_cores()
        measured, other = cores or (None, None)
        self.pinned = cores is not None
        self.gateway = stack.enter_context(child("bench_server", str(run), core=measured))
        self._load = stack.enter_context(child("bench_load", core=other))
        upstream = stack.enter_context(child("bench_relay", "upstream", core=other))
        port = upstream.ask({}, _Port).port
        self.relay = stack.enter_context(child("bench_relay", "relay", str(port), core=measured))
        self._relay_port = self.relay.ask({}, _Port).port

    def ours(self, names: list[str], turns: int) -> Took:
        """One round through the gateway. Its sessions stay open."""
        opened = self.gateway.ask({"do": "open", "names": names}, _Opened)
        return self._run(Job(opened.port, self.gateway.pid, opened.keys, turns, CONCURRENCY), self.gateway)

    def floor(self, names: list[str], turns: int) -> Took:
        """The same round through the relay."""
        keys = dict.fromkeys(names, "x" * 43)
        return self._run(Job(self._relay_port, self.relay.pid, keys, turns, CONCURRENCY), self.relay)

    def _run(self, job: Job, measured: Child) -> Took:
        took = self._load.ask(job, Took)
        if took.error:
            raise RunError(f"a call failed: {took.error}")
        if children(measured.pid):
            raise RunError("the measured process has started processes: its CPU time would be wrong")
        return took


def run_bench(*, quick: bool, say: Callable[[str], None]) -> BenchResult:
    """Measure this machine and this version. Raises RunError when a call or a process fails."""
    return measure(QUICK if quick else FULL, say)


def measure(size: Size, say: Callable[[str], None]) -> BenchResult:
    """`run_bench` with any size."""
    if sys.platform != "linux":
        raise RunError("this benchmark reads CPU times as Linux gives them; it does not run here")
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tugline-bench-") as scratch:
        run = Path(scratch) / "run"
        with ExitStack() as stack:
            rig = _Rig(stack, run)
            say("warm-up")
            measured = _rounds(rig, size, say)
        say("checking what was captured")
        captured = check(run, measured.names, measured.finished.truth, size)
    machine = Machine(
        cpu_model(), rig.pinned, (before, os.getloadavg()[0]), sys.version.split()[0], tugline.__version__
    )
    return _result(measured, size, captured, machine)


def _rounds(rig: _Rig, size: Size, say: Callable[[str], None]) -> _Measured:
    warm = [f"warm{i}" for i in range(4)]
    rig.floor(warm, size.turns)
    rig.ours(warm, size.turns)
    rig.gateway.ask({"do": "reset"}, _Done)
    before = rss_bytes(rig.gateway.pid)
    ours: list[Took] = []
    floor: list[Took] = []
    names: list[str] = []
    for number in range(size.rounds):
        fresh = [f"round{number}.session{i}" for i in range(size.sessions)]
        names += fresh
        if number % 2:
            ours.append(rig.ours(fresh, size.turns))
            floor.append(rig.floor(fresh, size.turns))
        else:
            floor.append(rig.floor(fresh, size.turns))
            ours.append(rig.ours(fresh, size.turns))
        a, b = _per_call(ours[-1]), _per_call(floor[-1])
        say(f"round {number + 1} of {size.rounds}: {a:.2f} ms, byte relay {b:.3f} ms per call, ratio {a / b:.1f}")
    rss = rss_bytes(rig.gateway.pid) - before
    return _Measured(ours, floor, names, rss, rig.gateway.ask({"do": "finish"}, Finished))


def check(run: Path, names: list[str], truth: dict[str, Truth], size: Size) -> Captured:
    """Read every turn back from the run store and compare it with what the engine says it produced."""
    exact = continued = stored = 0
    with RunStore.open(run, write=False) as reader:
        for name in names:
            calls = {c.turn_id: c for c in reader.iter_calls(name) if c.outcome is CallOutcome.ANSWERED}
            for turn in reader.iter_turns(name):
                stored += 1
                call = calls.get(turn.turn_id)
                made = truth.get(call.engine_ref or "") if call else None
                seen = Truth(name, digest(reader.prompt(turn.turn_id), turn.sampled, turn.logprobs))
                exact += made == seen and turn.untrainable is None
                continued += turn.parent is not None and turn.keep > 0
    calls_made = size.rounds * size.sessions * size.turns
    # a turn too many is as wrong as one that is missing
    return Captured(max(calls_made, stored), exact, continued, size.rounds * size.sessions * (size.turns - 1))


def _per_call(took: Took) -> float:
    return sum(took.cpu) / took.answered * 1000


def _by_turn(rounds: list[Took], size: Size) -> tuple[float, ...]:
    columns = zip(*(took.cpu for took in rounds), strict=True)
    return tuple(statistics.median(column) / size.sessions * 1000 for column in columns)


def _result(measured: _Measured, size: Size, captured: Captured, machine: Machine) -> BenchResult:
    ours, floor = measured.ours, measured.floor
    latency = sorted(v * 1000 for took in ours for v in took.latency)
    sent = ours[0].sent
    return BenchResult(
        ours=statistics.median(map(_per_call, ours)),
        floor=statistics.median(map(_per_call, floor)),
        ratios=tuple(_per_call(a) / _per_call(b) for a, b in zip(ours, floor, strict=True)),
        by_turn=_by_turn(ours, size),
        floor_by_turn=_by_turn(floor, size),
        request_kb=(sent[0] / size.sessions / 1000, sent[-1] / size.sessions / 1000),
        latency=(
            round(latency[len(latency) // 2], 2),
            round(latency[min(len(latency) - 1, len(latency) * 99 // 100)], 2),
        ),
        rss_per_session=measured.rss / 1024 / (size.rounds * size.sessions),
        lag_max=measured.finished.lag * 1000,
        captured=captured,
        machine=machine,
    )
