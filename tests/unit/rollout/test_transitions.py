import pytest

from tugline.core.contracts import Exit, SessionCalls
from tugline.core.session import Ended, Outcome, Queued, Running, SessionKey
from tugline.rollout.transitions import agent_end, last_attempts, next_attempt, recover

KEY = SessionKey("ses_1", "grp", "task", 0)


def calls(turns: int = 3, engine_failures: int = 0, last_error: str | None = None) -> SessionCalls:
    return SessionCalls({}, turns, 10, engine_failures, last_error)


@pytest.mark.parametrize(
    ("exit", "failure", "seen", "outcome", "judged"),
    [
        (Exit(0, 1.0), None, calls(), Outcome.COMPLETED, True),
        (Exit(1, 1.0), "exit 1", calls(), Outcome.AGENT_FAILED, True),
        (Exit(-9, 9.0, timed_out=True), "killed", calls(), Outcome.AGENT_TIMEOUT, True),
        # silent or dead agents prove nothing about the policy, whatever their exit status
        (Exit(0, 2.0), None, calls(turns=0), Outcome.ENGINE_FAILED, False),
        (Exit(1, 2.0), "exit 1", calls(turns=0), Outcome.ENGINE_FAILED, False),
        (Exit(-9, 9.0, timed_out=True), None, calls(turns=0), Outcome.ENGINE_FAILED, False),
        # the agent died of an engine failure: not the policy's fault
        (Exit(1, 1.0), "exit 1", calls(2, 1, "EngineError: gone"), Outcome.ENGINE_FAILED, False),
        # the engine failed once inside and recovered; the agent finished
        (Exit(0, 1.0), None, calls(2, 1, None), Outcome.COMPLETED, True),
    ],
)
def test_an_agents_end_is_attributed(
    exit: Exit, failure: str | None, seen: SessionCalls, outcome: Outcome, judged: bool
) -> None:
    end = agent_end(exit, failure, seen)
    assert (end.outcome, end.judge) == (outcome, judged)


def test_infra_failures_get_a_new_session_id_until_the_budget_is_used() -> None:
    again = next_attempt(Ended(KEY, Outcome.BOOT_FAILED), max_attempts=2)
    assert again is not None
    assert again.attempt == 2
    assert again.session_id != KEY.session_id
    assert next_attempt(Ended(again, Outcome.BOOT_FAILED), max_attempts=2) is None


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.AGENT_FAILED, Outcome.AGENT_TIMEOUT, Outcome.CANCELLED])
def test_policy_failures_and_cancellations_are_never_retried(outcome: Outcome) -> None:
    assert next_attempt(Ended(KEY, outcome), max_attempts=9) is None


def test_what_a_dead_process_left_is_lost_and_what_had_ended_stays() -> None:
    lost = recover(Running(KEY))
    assert lost is not None
    assert lost.outcome is Outcome.NODE_LOST
    assert recover(Ended(KEY, Outcome.COMPLETED)) is None


def test_the_newest_attempt_stands_for_its_slot() -> None:
    second = SessionKey("ses_2", "grp", "task", 0, attempt=2)
    newest = last_attempts([Queued(second), Ended(KEY, Outcome.BOOT_FAILED)])
    assert newest == {("grp", 0): Queued(second)}
