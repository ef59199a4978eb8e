"""Session states: one frozen type per state, and the outcomes.

queued -> booting -> ready -> running -> judging -> ended(outcome). Each transition is durable before it acts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Outcome(StrEnum):
    """How a session ended."""

    COMPLETED = "completed"
    AGENT_FAILED = "agent_failed"
    AGENT_TIMEOUT = "agent_timeout"
    BOOT_FAILED = "boot_failed"
    JUDGE_FAILED = "judge_failed"
    ENGINE_FAILED = "engine_failed"
    NODE_LOST = "node_lost"
    CANCELLED = "cancelled"


class Failure(StrEnum):
    """Who is to blame. Policy failures train with their reward; infra failures are retried and never train."""

    NONE = "none"
    POLICY = "policy"
    INFRA = "infra"


FAILURE_OF: dict[Outcome, Failure] = {
    Outcome.COMPLETED: Failure.NONE,
    Outcome.AGENT_FAILED: Failure.POLICY,
    Outcome.AGENT_TIMEOUT: Failure.POLICY,
    Outcome.BOOT_FAILED: Failure.INFRA,
    Outcome.JUDGE_FAILED: Failure.INFRA,
    Outcome.ENGINE_FAILED: Failure.INFRA,
    Outcome.NODE_LOST: Failure.INFRA,
    Outcome.CANCELLED: Failure.INFRA,
}


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Names one attempt. `attempt` starts at 1 and grows with every infra retry; session_id differs per attempt."""

    session_id: str
    group_id: str
    task_id: str
    index: int
    """Position in the group, from 0."""
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Queued:
    key: SessionKey


@dataclass(frozen=True, slots=True)
class Booting:
    key: SessionKey


@dataclass(frozen=True, slots=True)
class Ready:
    key: SessionKey


@dataclass(frozen=True, slots=True)
class Running:
    key: SessionKey


@dataclass(frozen=True, slots=True)
class Judging:
    key: SessionKey
    agent_outcome: Outcome


@dataclass(frozen=True, slots=True)
class Ended:
    key: SessionKey
    outcome: Outcome
    reward: float | None = None
    reward_parts: tuple[tuple[str, float], ...] = ()
    reason: str | None = None
    """One line: why it did not complete."""
    marks: tuple[str, ...] = ()
    """Names of what looks like cheating; those that begin with `!` are proofs, and cost the reward."""


SessionState: TypeAlias = Queued | Booting | Ready | Running | Judging | Ended


def state_name(state: SessionState) -> str:
    """The word stored and shown for a state."""
    return type(state).__name__.lower()
