"""A run is proved from its records: each missing or changed record is a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from tugline.core.contracts import JournalEntry, Verdict
from tugline.core.errors import VerifyError
from tugline.core.session import Ended, Outcome, SessionKey, SessionState
from tugline.core.trace import Trace, Trajectory
from tugline.core.turn import CallOutcome, CallRecord, Turn
from tugline.rollout.proof import prove_run
from tugline.trajectory.build import SessionFacts, build
from unit.trajectory.world import Said, World, say, user


@dataclass
class Run:
    """Records of one session, as lists that tests spoil."""

    state: SessionState
    calls: list[CallRecord]
    turns: list[Turn]
    traces: list[Trace]
    whole: Trajectory | None
    journal: dict[str, JournalEntry] = field(default_factory=dict)
    judged: Verdict | None = Verdict(1.0)

    def sessions(self) -> list[tuple[SessionState, float]]:
        return [(self.state, 0.0)]

    def iter_calls(self, session_id: str) -> list[CallRecord]:
        return self.calls

    def iter_turns(self, session_id: str) -> list[Turn]:
        return self.turns

    def iter_traces(self, session_id: str) -> list[Trace]:
        return self.traces

    def trajectory(self, session_id: str) -> Trajectory | None:
        return None if self.whole is None else replace(self.whole, traces=tuple(self.traces))

    def verdict(self, session_id: str) -> Verdict | None:
        return self.judged

    def kinds(self) -> list[str]:
        return [f.kind for f in prove_run(self, self.journal.get).findings]


def honest() -> Run:
    world = World()
    first = world.call((user("task"),), say("a"))
    second = world.call(world.after(first, user("b")), say("c"))
    world.call(world.after(first, user("d")), say("e"))
    world.call(world.after(second, user("f")), Said(say("g"), trim=True))
    calls = [
        CallRecord(
            f"call_{n}", "ses", n, "chat", "/v1", t.turn_id, CallOutcome.ANSWERED, 200, 0.0, 0.0, engine_ref=t.turn_id
        )
        for n, t in enumerate(world.turns)
    ]
    made = build(SessionFacts("ses", "grp", Outcome.COMPLETED, 1.0), world.turns, frozenset())
    key = SessionKey("ses", "grp", "task", 0)
    journal = {t.turn_id: world.entry(t) for t in world.turns}
    return Run(Ended(key, Outcome.COMPLETED, 1.0), calls, world.turns, list(made.traces), made, journal)


def test_an_honest_run_is_proved() -> None:
    run = honest()
    proof = prove_run(run, run.journal.get)
    assert proof.ok
    assert (proof.calls_total, proof.calls_exact) == (4, 4)
    assert (proof.traces_total, proof.traces_exact, proof.traces_continuous) == (2, 2, 2)
    assert proof.trained_tokens == proof.sampled_tokens - 1  # one trimmed stop


def lose_leaf_turn(run: Run) -> None:
    del run.turns[3]


def lose_journal_row(run: Run) -> None:
    del run.journal[run.turns[1].turn_id]


def swap_journal_rows(run: Run) -> None:
    a, b = run.turns[2].turn_id, run.turns[3].turn_id
    run.journal[a], run.journal[b] = run.journal[b], run.journal[a]


def lose_call(run: Run) -> None:
    del run.calls[2]


def lose_row(run: Run) -> None:
    del run.traces[1]


def lose_inner_turn(run: Run) -> None:
    del run.turns[0]


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lose_leaf_turn, {"missing_turn", "broken_path", "mask_sum"}),
        (lose_journal_row, {"missing_in_journal"}),
        (swap_journal_rows, {"prompt_ids", "sampled_ids", "logprobs"}),
        (lose_call, {"missing_call", "context_trained"}),  # whose reply nobody is known to have got
        (lose_row, {"not_trained"}),
        (lose_inner_turn, {"missing_turn", "missing_parent", "not_an_extension", "prompt_ids", "prompt_length"}),
    ],
)
def test_a_spoiled_run_is_found_out(spoil: Callable[[Run], None], kinds: set[str]) -> None:
    run = honest()
    spoil(run)
    found = set(run.kinds())
    assert found
    assert kinds & found
    if spoil not in (lose_leaf_turn, lose_inner_turn):
        assert found <= kinds


def test_an_answered_call_without_its_turn_is_found_even_when_nothing_else_refers_to_it() -> None:
    run = honest()
    run.calls.append(replace(run.calls[0], call_id="call_9", turn_id="turn_lost", engine_ref="lost"))
    proof = prove_run(run, run.journal.get)
    assert [(f.kind, f.call_id) for f in proof.findings] == [("missing_turn", "call_9")]
    assert not proof.ok


def test_damage_that_the_store_or_the_journal_reports_is_a_finding() -> None:
    run = honest()

    def damaged(ref: str) -> JournalEntry | None:
        raise VerifyError("checksum")

    assert {f.kind for f in prove_run(run, damaged).findings} == {"damaged_journal"}

    class Broken(Run):
        def iter_turns(self, session_id: str) -> list[Turn]:
            raise VerifyError("checksum")

    broken = Broken(run.state, run.calls, run.turns, run.traces, run.whole, run.journal)
    assert broken.kinds() == ["damaged_record"]


def test_a_reward_without_trainable_tokens_fails_the_run() -> None:
    run = honest()
    run.turns, run.traces, run.calls = [], [], []
    proof = prove_run(run, run.journal.get)
    assert proof.rewarded_without_tokens == ["ses"]
    assert not proof.ok
