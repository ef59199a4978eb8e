"""Whatever changes what is trained cannot be changed in the records without being found: field by field.

The tests go through all fields that there are, so that a new one must either be proven or be named here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from tugline.core.columns import Floats, concat, ids
from tugline.core.contracts import Verdict
from tugline.core.routes import Routes
from tugline.core.session import Ended, Failure, Outcome, SessionKey
from tugline.core.trace import Trace, Trajectory
from tugline.core.turn import CallOutcome, CallRecord, Partial, Sampling, Turn
from tugline.rollout.proof import prove_run
from tugline.trajectory.build import SessionFacts, build
from tugline.trajectory.rows import undelivered_turns
from unit.rollout.test_proof import Run
from unit.trajectory.world import Said, World, bash, result, say, user

UNPROVEN_OF_TURN = {
    "seq": "order is that of the records",
    "head": "what was said is in the prompt's ids, which are proven",
    "items": "as above",
    "echo": "as above",
    "key_exact": "finds turns while a session is open",
    "key_lenient": "as above",
    "thread": "tells retries apart while a session is open",
}
UNPROVEN_OF_ROW = {"logprob_kind": "the engine's word alone, one for all rows of a session"}


def recorded() -> Run:
    """Two branches, the second from a resample, a side job, a summary and the conversation behind it, an undelivered
    reply, a turn that must not train and one of another engine."""
    world = World()
    first = world.call((user("task"),), say("a", bash("c1", "{}")))
    again = world.after(first, result("c1", "one"))
    second = world.call(again, Said(say("b", bash("c2", "{}")), trim=True, versions=((0, 1), (3, 2))))
    world.call(again, say("c"))
    world.call((user("title?"),), Said(say("A title"), role="auxiliary"))
    world.call((user("sum up"),), Said(say("A summary"), role="compaction"))
    world.call((user("A summary"),), say("going on"))
    world.call(world.after(second, result("c2", "two")), Said(say("bad"), untrainable="bad_stop"))
    world.call(world.after(second, result("c2", "more")), say("nobody saw this"))
    judge = world.call((user("judge"),), say("good"))
    turns = [replace(t, engine="judge") if t is judge else t for t in world.turns]
    names = [turn.turn_id for turn in turns]
    links = {
        1: (("resample_of", names[0]),),
        2: (("resample_of", names[1]),),
        3: (("aux_of", names[2]),),
        4: (("compaction_of", names[2]),),
        5: (("compaction_of", names[4]),),
    }
    turns = [replace(turn, links=links.get(n, ())) for n, turn in enumerate(turns)]
    calls = [
        CallRecord(
            f"call_{n}", "ses", n, "chat", "/v1", t.turn_id, CallOutcome.ANSWERED, 200, 0.0, 0.0, engine_ref=t.turn_id
        )
        for n, t in enumerate(turns)
    ]
    calls[7] = replace(calls[7], outcome=CallOutcome.UNDELIVERED)
    facts = SessionFacts("ses", "grp", Outcome.COMPLETED, 0.5, {"tests": 0.5})
    made = build(facts, turns, undelivered_turns(turns, calls))
    state = Ended(SessionKey("ses", "grp", "task", 0), Outcome.COMPLETED, 0.5, (("tests", 0.5),))
    journal = {t.turn_id: world.entry(t) for t in world.turns}
    return Run(state, calls, turns, list(made.traces), made, journal, Verdict(0.5, {"tests": 0.5}))


VALUES: dict[str, list[Any]] = {
    "role": ["main", "compaction"],
    "level": ["L0", "L2"],
    "engine": ["", "judge"],
    "partial": [Partial("turn_none", 1, 1), Partial("turn_0000_0", 0, 1), Partial("turn_0000_0", 1, 1, train=True)],
    "routes": [Routes(0, 1, 1, "uint8", b"\0"), Routes(0, 1, 2, "int16", bytes(8))],
    "links": [(("aux_of", "turn_none"),), (("parent_of", "turn_0000_0"),)],
}
"""What a field may be instead, where any other word would be none at all."""
LABELS = ("role", "level", "drift", "sampling")
"""Fields that say something of trained tokens only."""


def other(value: Any) -> list[Any]:
    """Values of the same kind that are not this one."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, Outcome):
        return [Outcome.AGENT_FAILED, Outcome.NODE_LOST]
    if isinstance(value, Failure):
        return [Failure.INFRA]
    if isinstance(value, int | float):
        return [value + 1, value - 0.25] if isinstance(value, float) else [value + 1]
    if isinstance(value, bytes):  # columns and masks
        last = b"" if not value else value[:-1] + bytes([value[-1] ^ 1])
        return [value[:-4], last, value + b"\0\0\0\0"] if value else [b"\0\0\0\0"]
    if isinstance(value, Sampling):
        return [replace(value, temperature=0.5), replace(value, top_k=3)]
    if isinstance(value, dict):
        return [{**value, "more": 1}, *([{}] if value else [])]
    if isinstance(value, tuple):
        return [value[:-1]] if value else [(("aux_of", "turn_none"),)]
    if value is None:
        return ["turn_none"]
    return [str(value) + "x"]


def test_the_untouched_run_is_proved() -> None:
    run = recorded()
    proof = prove_run(run, run.journal.get)
    assert proof.findings == [] and proof.ok
    assert len(run.traces) >= 4 and any(trace.links for trace in run.traces)
    assert run.whole is not None and set(run.whole.untrained) >= {
        "auxiliary",
        "undelivered",
        "bad_stop",
        "other_engine",
    }


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Trace) if f.name not in UNPROVEN_OF_ROW])
def test_no_field_of_a_row_can_be_changed(field: str) -> None:
    for n in range(len(recorded().traces)):
        for value in other(getattr(recorded().traces[n], field)):
            run = recorded()
            run.traces[n] = replace(run.traces[n], **{field: value})
            assert run.kinds(), f"row {n}: {field} = {value!r} passed"


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Trajectory) if f.name != "traces"])
def test_no_field_of_a_trajectory_can_be_changed(field: str) -> None:
    whole = recorded().whole
    for value in other(getattr(whole, field)):
        run = recorded()
        assert run.whole is not None
        run.whole = replace(run.whole, **{field: value})
        assert run.kinds(), f"{field} = {value!r} passed"


def test_neither_the_end_nor_the_verdict_can_be_changed_alone() -> None:
    for change in ({"reward": 1.0}, {"reward": None}, {"outcome": Outcome.AGENT_FAILED}, {"reward_parts": ()}):
        run = recorded()
        run.state = replace(run.state, **change)
        assert run.kinds(), change
    run = recorded()
    run.state = replace(run.state, key=replace(run.state.key, group_id="grp_other"))
    assert run.kinds()
    run = recorded()
    run.judged = Verdict(1.0)
    assert run.kinds() == ["reward"]


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(Turn) if f.name not in UNPROVEN_OF_TURN])
def test_no_field_of_a_turn_that_decides_what_is_trained_can_be_changed(field: str) -> None:
    fresh = recorded()
    ends = {trace.spans[-1].turn_id for trace in fresh.traces}
    trained = {span.turn_id for trace in fresh.traces for span in trace.spans if span.trained}
    for n, turn in enumerate(fresh.turns):
        if field == "sampling" and turn.turn_id not in ends:
            continue  # of a row stands the sampling of its last turn
        for value in VALUES.get(field) or other(getattr(turn, field)):
            run = recorded()
            run.turns[n] = replace(turn, **{field: value})
            if run.turns[n] == turn or (field in LABELS and turn.turn_id not in trained):
                continue
            if turn.engine and field == "untrainable":
                continue  # as nothing of another engine is
            assert run.kinds(), f"turn {n}: {field} = {value!r} passed"


def test_no_delivery_that_decides_can_be_changed() -> None:
    fresh = recorded()
    extended = {turn.parent for turn in fresh.turns}
    for n, turn in enumerate(fresh.turns):
        if turn.turn_id in extended or turn.engine or turn.role == "auxiliary" or turn.untrainable:
            continue
        run = recorded()
        seen = run.calls[n].outcome is CallOutcome.ANSWERED
        run.calls[n] = replace(run.calls[n], outcome=CallOutcome.UNDELIVERED if seen else CallOutcome.ANSWERED)
        assert set(run.kinds()) & {"context_trained", "not_trained"}, n


def test_weights_that_only_add_up_are_found() -> None:
    run = recorded()
    a, b = run.traces[:2]
    assert a.loss_weight != b.loss_weight
    run.traces[:2] = [replace(a, loss_weight=b.loss_weight), replace(b, loss_weight=a.loss_weight)]
    assert run.kinds() == ["loss_weight", "loss_weight"]


def test_a_row_more_and_a_trajectory_less_are_found() -> None:
    run = recorded()
    context = run.traces[0]
    spans = tuple(replace(span, trained=False) for span in context.spans)
    run.traces.append(replace(context, trace_id="trace_more", spans=spans, loss_mask=bytes(len(context.loss_mask))))
    assert run.kinds()
    run = recorded()
    run.whole = None
    assert run.kinds() == ["missing_trajectory"]


def test_a_trained_token_without_a_log_probability_is_found_though_the_journal_agrees() -> None:
    run = recorded()
    turn = run.turns[0]
    hole = Floats(b"\0\0\xc0\x7f" + turn.logprobs[4:])
    run.turns[0] = replace(turn, logprobs=hole)
    run.journal[turn.turn_id] = replace(run.journal[turn.turn_id], logprobs=hole)
    facts = SessionFacts("ses", "grp", Outcome.COMPLETED, 0.5, {"tests": 0.5})
    run.whole = build(facts, run.turns, undelivered_turns(run.turns, run.calls))
    run.traces = list(run.whole.traces)
    assert set(run.kinds()) == {"row_logprobs"}


def test_ids_and_mask_that_grow_together_are_found() -> None:
    run = recorded()
    row = run.traces[0]
    run.traces[0] = replace(
        row,
        token_ids=concat([row.token_ids, ids([7])]),
        loss_mask=row.loss_mask + b"\1",
        logprobs=Floats(row.logprobs + b"\0\0\0\0"),
    )
    assert "row_ids" in run.kinds()
