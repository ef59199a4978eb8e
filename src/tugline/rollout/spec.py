"""What a rollout is asked to do, and what it needs to do it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tugline.core.contracts import CallLog, Harness, Limits, Policy, Sandbox, SandboxProvider, SessionGate
from tugline.core.session import Ended, SessionState
from tugline.core.task import Task
from tugline.core.trace import Trajectory
from tugline.core.turn import CallRecord, Turn
from tugline.rollout.judging import Judged


class RunState(CallLog, Protocol):
    """The slice of the run store that the service uses."""

    async def put_session(self, state: SessionState) -> None:
        """Durable transition."""
        ...

    def sessions(self) -> list[tuple[SessionState, float]]:
        """Latest state of every session, with the wall time of its last change."""
        ...

    def iter_calls(self, session_id: str) -> Sequence[CallRecord]:
        """Calls of a session in order."""
        ...

    async def put_trajectory(self, trajectory: Trajectory) -> None:
        """Rows and verdict of an ended session."""
        ...


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Sessions per stage at once."""

    boot: int = 2
    run: int = 8
    judge: int = 2


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Seconds per stage, where a task sets none."""

    boot: float = 300.0
    agent: float = 600.0
    judge: float = 120.0


@dataclass(frozen=True, slots=True)
class RolloutSpec:
    """One rollout: every task `n` times."""

    tasks: tuple[Task, ...]
    n: int
    policy: Policy
    concurrency: Concurrency = Concurrency()
    limits: StageLimits = StageLimits()
    sandbox_limits: Limits = Limits()
    max_attempts: int = 3
    gateway_port: int = 8000
    """Port that agents see inside an isolating sandbox."""
    egress: tuple[str, ...] = ()
    """Hosts that the operator lets agents reach, where their task wants a network."""
    context: int = 0
    max_tokens: int = 1024


@dataclass(frozen=True, slots=True)
class Parts:
    """The implementations to use."""

    store: RunState
    gate: SessionGate
    sandboxes: SandboxProvider
    harness: Harness
    judge: Callable[[Task, Sandbox, float, Path], Awaitable[Judged]]
    """(task, the agent's box, seconds, the session's folder) -> what it is worth. See `Judging.judge`."""
    build: Callable[[Ended, Sequence[Turn], Sequence[CallRecord]], Trajectory] | None
    sessions_dir: Path
    cache: Path
    say: Callable[[str], None]
    on_state: Callable[[SessionState], None]
