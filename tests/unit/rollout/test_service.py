"""The service over in-memory parts: stages, attribution, retries, resumption, no leaks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import (
    Access,
    Bundle,
    Command,
    Exit,
    Gateway,
    Launch,
    Limits,
    Plan,
    Policy,
    SessionCalls,
    Verdict,
)
from tugline.core.errors import SandboxError, VerifierError
from tugline.core.session import Ended, Outcome, Queued, Running, SessionKey, SessionState
from tugline.core.task import Environment, Task
from tugline.core.trace import Trajectory
from tugline.core.turn import CallOutcome, CallRecord, Sampling, Turn
from tugline.rollout.judging import Judged
from tugline.rollout.service import RolloutService
from tugline.rollout.spec import Concurrency, Parts, RolloutSpec, StageLimits


class MemoryStore:
    def __init__(self) -> None:
        self.states: dict[str, SessionState] = {}
        self.order: list[SessionState] = []
        self.rows: dict[str, Trajectory] = {}

    async def commit(self, call: CallRecord, turn: Turn | None) -> None: ...
    async def mark(self, call_id: str, outcome: CallOutcome) -> None: ...
    async def seal(self, session_id: str) -> None: ...
    async def load_turns(self, session_id: str) -> Sequence[Turn]:
        return ()

    async def load_calls(self, session_id: str) -> Sequence[CallRecord]:
        return ()

    async def put_session(self, state: SessionState) -> None:
        self.states[state.key.session_id] = state
        self.order.append(state)

    def sessions(self) -> list[tuple[SessionState, float]]:
        return [(s, 0.0) for s in self.states.values()]

    def iter_calls(self, session_id: str) -> Sequence[CallRecord]:
        return ()

    async def put_trajectory(self, trajectory: Trajectory) -> None:
        self.rows[trajectory.session_id] = trajectory


class Gate:
    def __init__(self, turns: int = 2) -> None:
        self.turns = turns
        self.open_sessions: set[str] = set()
        self.most = 0

    async def open(self, session_id: str, policy: Policy) -> Access:
        self.open_sessions.add(session_id)
        self.most = max(self.most, len(self.open_sessions))
        return Access(session_id, "secret", "http://x", "http://x/s/secret")

    async def serve(self, session_id: str, listener: socket.socket) -> Callable[[], Awaitable[None]]:
        raise AssertionError("not isolated")

    async def close(self, session_id: str) -> SessionCalls:
        self.open_sessions.discard(session_id)
        return SessionCalls({}, self.turns, 10, 0, None)


class Box:
    workdir, isolated = "/app", False

    def __init__(self, world: World) -> None:
        self.world = world
        world.alive += 1
        world.most = max(world.most, world.alive)
        self.closed = False

    async def run(self, command: Command, deadline: Deadline, gateway: Gateway | None = None) -> Exit:
        await asyncio.sleep(0)
        return self.world.exit

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None: ...
    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        return None

    async def upload(self, source: Path, target: str) -> None: ...
    async def clone(self) -> Box:
        return Box(self.world)

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.world.alive -= 1


class World:
    """A provider, harness and verifier whose behaviour a test sets."""

    name, dialect, isolating = "world", "chat", False

    def __init__(self) -> None:
        self.alive = self.most = self.boots = 0
        self.boot_failures = 0
        self.exit = Exit(0, 1.0)
        self.agent_failure: str | None = None
        self.verdicts: list[Verdict | Exception] = []

    async def check(self) -> list[str]:
        return []

    async def start(self, environment: Environment, session_id: str, limits: Limits) -> Box:
        self.boots += 1
        if self.boots <= self.boot_failures:
            raise SandboxError("no space")
        return Box(self)

    async def reap(self) -> int:
        return 0

    async def close(self) -> None: ...
    async def install(self, cache: Path, say: Callable[[str], None]) -> Bundle:
        return Bundle((), "1")

    def plan(self, launch: Launch, bundle: Bundle) -> Plan:
        return Plan(Command(("true",)))

    def failure(self, exit: Exit, log: bytes) -> str | None:
        return self.agent_failure

    async def judge(self, task: Task, box: Box, seconds: float, folder: Path) -> Judged:
        answer = self.verdicts.pop(0) if self.verdicts else Verdict(1.0)
        if isinstance(answer, Exception):
            raise answer
        return Judged(answer, ("!canary_passed",) if answer.flags else ())


def task(name: str) -> Task:
    return Task(name, name, "do it", Environment("img"), Path("/nowhere"), None)


def service(
    tmp_path: Path, world: World, store: MemoryStore, gate: Gate, *, tasks: int = 1, n: int = 2, attempts: int = 2
) -> RolloutService:
    spec = RolloutSpec(
        tasks=tuple(task(f"t{i}") for i in range(tasks)),
        n=n,
        policy=Policy(Sampling()),
        concurrency=Concurrency(boot=2, run=3, judge=1),
        limits=StageLimits(5, 5, 5),
        max_attempts=attempts,
    )
    parts = Parts(
        store=store,
        gate=gate,
        sandboxes=world,
        harness=world,
        judge=world.judge,
        build=None,
        sessions_dir=tmp_path,
        cache=tmp_path,
        say=lambda _line: None,
        on_state=lambda _state: None,
    )
    return RolloutService(spec, parts)


async def collect(made: RolloutService) -> list[Ended]:
    return [s async for group in made.run() for s in group.sessions]


async def test_groups_come_whole_and_nothing_is_left(tmp_path: Path) -> None:
    world, store, gate = World(), MemoryStore(), Gate()
    ended = await collect(service(tmp_path, world, store, gate, tasks=4, n=3))
    assert len(ended) == 12
    assert {s.outcome for s in ended} == {Outcome.COMPLETED}
    assert [s.reward for s in ended] == [1.0] * 12
    assert world.alive == 0
    assert not gate.open_sessions
    assert gate.most <= 3, "the run stage is bounded"


async def test_each_state_is_durable_before_it_acts(tmp_path: Path) -> None:
    world, store = World(), MemoryStore()
    await collect(service(tmp_path, world, store, Gate(), n=1))
    names = [type(s).__name__ for s in store.order]
    assert names == ["Queued", "Booting", "Ready", "Running", "Judging", "Ended"]


async def test_boot_failures_are_retried_under_a_new_id_and_never_rewarded(tmp_path: Path) -> None:
    world, store = World(), MemoryStore()
    world.boot_failures = 1
    (ended,) = await collect(service(tmp_path, world, store, Gate(), n=1))
    assert ended.outcome is Outcome.COMPLETED
    assert ended.key.attempt == 2
    first = next(s for s in store.states.values() if s.key.attempt == 1)
    assert isinstance(first, Ended)
    assert (first.outcome, first.reward) == (Outcome.BOOT_FAILED, None)


async def test_a_crashed_verifier_is_infra_and_never_zero(tmp_path: Path) -> None:
    world = World()
    world.verdicts = [VerifierError("no reward file"), VerifierError("no reward file")]
    (ended,) = await collect(service(tmp_path, world, MemoryStore(), Gate(), n=1, attempts=2))
    assert (ended.outcome, ended.reward) == (Outcome.JUDGE_FAILED, None)


async def test_a_failed_agent_is_judged_and_keeps_its_reward(tmp_path: Path) -> None:
    world = World()
    world.agent_failure = "exit 1"
    world.verdicts = [Verdict(0.25, {"style": 0.5})]
    (ended,) = await collect(service(tmp_path, world, MemoryStore(), Gate(), n=1))
    assert (ended.outcome, ended.reward, ended.reward_parts) == (Outcome.AGENT_FAILED, 0.25, (("style", 0.5),))


async def test_a_silent_agent_gets_no_reward(tmp_path: Path) -> None:
    (ended,) = await collect(service(tmp_path, World(), MemoryStore(), Gate(turns=0), n=1, attempts=1))
    assert (ended.outcome, ended.reward) == (Outcome.ENGINE_FAILED, None)
    assert ended.reason is not None
    assert "no model turn" in ended.reason


async def test_a_new_process_keeps_what_ended_and_reruns_the_rest(tmp_path: Path) -> None:
    store = MemoryStore()
    key = SessionKey("ses_done", "grp_t0", "t0", 0)
    await store.put_session(Ended(key, Outcome.COMPLETED, 0.5))
    await store.put_session(Running(replace(key, session_id="ses_dead", index=1)))
    await store.put_session(Queued(replace(key, session_id="ses_new", index=2)))
    ended = await collect(service(tmp_path, World(), store, Gate(), n=3))
    assert [s.key.index for s in ended] == [0, 1, 2]
    assert ended[0].key.session_id == "ses_done"
    dead = store.states["ses_dead"]
    assert isinstance(dead, Ended)
    assert dead.outcome is Outcome.NODE_LOST
    assert ended[1].key.attempt == 2


async def test_cancelling_a_run_leaves_no_sandbox_and_no_open_session(tmp_path: Path) -> None:
    world, gate = World(), Gate()
    begun = asyncio.Event()

    class Hanging(Box):
        async def run(self, command: Command, deadline: Deadline, gateway: Gateway | None = None) -> Exit:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

    async def start(environment: Environment, session_id: str, limits: Limits) -> Box:
        return Hanging(world)

    world.start = start  # type: ignore[method-assign]
    running = asyncio.ensure_future(collect(service(tmp_path, world, MemoryStore(), gate, n=2)))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.alive == 0
    assert not gate.open_sessions
