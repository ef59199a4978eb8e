"""The life of a session as pure functions: what a stage's end means, and whether to try again.

queued -> booting -> ready -> running -> judging -> ended. Infra failures are retried under a new session id; policy
failures are judged and trained with their reward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tugline.core.contracts import Exit, SessionCalls
from tugline.core.ident import new_id
from tugline.core.session import FAILURE_OF, Ended, Failure, Outcome, SessionKey, SessionState
from tugline.core.turn import CallOutcome


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """How the agent phase ended. `judge` = there is something to score."""

    outcome: Outcome
    judge: bool
    reason: str | None = None


def agent_end(exit: Exit, failure: str | None, calls: SessionCalls) -> AgentEnd:
    """Attribute the end of an agent to the policy or to us.

    An agent that never got one sampled turn proves nothing about the policy: infra, whatever its exit status. When
    its last call failed because of the engine, the agent's failure is the engine's.
    """
    if calls.turns == 0:
        said = failure or calls.last_error or f"exit status {exit.code}"
        return AgentEnd(Outcome.ENGINE_FAILED, judge=False, reason=f"no model turn was sampled: {said}")
    if exit.timed_out:
        return AgentEnd(Outcome.AGENT_TIMEOUT, judge=True, reason="agent time limit")
    if failure is None:
        return AgentEnd(Outcome.COMPLETED, judge=True)
    if calls.engine_failures and calls.last_error:
        return AgentEnd(Outcome.ENGINE_FAILED, judge=False, reason=calls.last_error)
    return AgentEnd(Outcome.AGENT_FAILED, judge=True, reason=failure)


def told_end(outcome: Outcome, reason: str | None, calls: SessionCalls) -> AgentEnd:
    """The end of an agent that somebody else ran and tells us about; attributed like that of our own agents."""
    if FAILURE_OF[outcome] is Failure.INFRA:
        return AgentEnd(outcome, judge=False, reason=reason)
    if calls.turns + calls.other_turns == 0 and not calls.calls.get(CallOutcome.ANSWERED.value):
        said = reason or calls.last_error or "the agent made no call"
        return AgentEnd(Outcome.ENGINE_FAILED, judge=False, reason=f"no model turn was sampled: {said}"[:500])
    if outcome is Outcome.AGENT_FAILED and calls.engine_failures and calls.last_error:
        return AgentEnd(Outcome.ENGINE_FAILED, judge=False, reason=calls.last_error)
    return AgentEnd(outcome, judge=True, reason=reason)


def next_attempt(ended: Ended, max_attempts: int) -> SessionKey | None:
    """The key of the retry of an infra failure, or None when there is none to make."""
    if FAILURE_OF[ended.outcome] is not Failure.INFRA or ended.outcome is Outcome.CANCELLED:
        return None
    if ended.key.attempt >= max_attempts:
        return None
    return replace(ended.key, session_id=new_id("ses"), attempt=ended.key.attempt + 1)


def recover(state: SessionState) -> Ended | None:
    """What a session found unfinished by a new process becomes: its node was lost. None if it had ended."""
    if isinstance(state, Ended):
        return None
    return Ended(state.key, Outcome.NODE_LOST, reason="the process that ran it died")


def last_attempts(states: list[SessionState]) -> dict[tuple[str, int], SessionState]:
    """The newest attempt for each (group, index)."""
    newest: dict[tuple[str, int], SessionState] = {}
    for state in states:
        slot = (state.key.group_id, state.key.index)
        known = newest.get(slot)
        if known is None or state.key.attempt > known.key.attempt:
            newest[slot] = state
    return newest
