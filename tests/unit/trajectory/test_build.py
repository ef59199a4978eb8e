"""Rows of small, drawn trees: who owns a turn, what trims, what never trains."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from tugline.core.columns import Floats, Ids, count, take, take_floats
from tugline.core.errors import VerifyError
from tugline.core.session import Failure, Outcome
from tugline.core.trace import Trajectory
from tugline.core.turn import CallOutcome, CallRecord, Turn
from tugline.trajectory.build import SessionFacts, Strategy, build
from tugline.trajectory.rows import lay_out, path_to, undelivered_turns
from unit.trajectory.world import Said, World, ask, say, user

FACTS = SessionFacts("ses", "grp", Outcome.COMPLETED, 1.0, {"tests": 1.0})
START = (user("task"),)


def rows(world: World, undelivered: frozenset[str] = frozenset(), strategy: Strategy = "exact") -> Trajectory:
    return build(FACTS, world.turns, undelivered, strategy)


def trained(made: Trajectory) -> list[list[str]]:
    return [[s.turn_id for s in t.spans if s.trained] for t in made.traces]


def tokens(made: Trajectory) -> int:
    return sum(sum(t.loss_mask) for t in made.traces)


def line(world: World, n: int, trim: bool = False) -> list[Turn]:
    out: list[Turn] = []
    for i in range(n):
        items = world.after(out[-1], user(f"u{i}")) if out else START
        out.append(world.call(items, Said(say(f"a{i}"), trim=trim)))
    return out


def test_an_unbranched_conversation_is_one_row() -> None:
    world = World()
    turns = line(world, 4)
    made = rows(world)
    assert trained(made) == [[t.turn_id for t in turns]]
    assert made.traces[0].token_ids == world.forest.full(turns[-1].turn_id)
    assert tokens(made) == sum(count(t.sampled) for t in turns)
    assert made.untrained == {}
    assert (made.reward, made.reward_parts, made.failure) == (1.0, {"tests": 1.0}, Failure.NONE)
    assert made.traces[0].loss_weight == 1.0


def test_a_trimmed_stop_is_replaced_and_counted() -> None:
    world = World()
    turns = line(world, 3, trim=True)
    made = rows(world)
    assert made.untrained == {"stop_trim": 2}
    assert tokens(made) == sum(count(t.sampled) for t in turns) - 2
    ends = [s.end - s.start for s in made.traces[0].spans]
    assert ends == [count(t.sampled) - (n < 2) for n, t in enumerate(turns)]
    alone = rows(world, strategy="per_call")
    assert tokens(alone) == sum(count(t.sampled) for t in turns)
    assert alone.untrained == {}


@pytest.mark.parametrize("first_trims", [True, False])
def test_two_children_one_trims_one_does_not(first_trims: bool) -> None:
    world = World()
    (root,) = line(world, 1)
    a = world.call(world.after(root, user("a")), Said(say("a"), trim=first_trims))
    b = world.call(world.after(root, user("b")), Said(say("b"), trim=not first_trims))
    made = rows(world)
    assert trained(made) == [[root.turn_id, a.turn_id], [b.turn_id]]
    assert [t.token_ids for t in made.traces] == [world.forest.full(a.turn_id), world.forest.full(b.turn_id)]
    assert made.untrained == ({"stop_trim": 1} if first_trims else {})
    lengths = [t.spans[0].end - t.spans[0].start for t in made.traces]
    whole = count(root.sampled)
    assert lengths == ([whole - 1, whole] if first_trims else [whole, whole - 1])
    assert made.traces[1].parent == made.traces[0].trace_id


def test_an_undelivered_leaf_is_in_no_row_and_the_row_ends_above_it() -> None:
    world = World()
    first, second, last = line(world, 3)
    made = rows(world, frozenset({last.turn_id}))
    assert trained(made) == [[first.turn_id, second.turn_id]]
    assert made.traces[0].token_ids == world.forest.full(second.turn_id)
    assert made.untrained == {"undelivered": count(last.sampled)}


def test_an_untrainable_inner_turn_is_masked_context() -> None:
    world = World()
    root = world.call(START, say("a"))
    bad = world.call(world.after(root, user("u")), Said(say("b"), untrainable="engine_echo_mismatch"))
    leaf = world.call(world.after(bad, user("v")), say("c"))
    made = rows(world)
    assert trained(made) == [[root.turn_id, leaf.turn_id]]
    assert made.untrained == {"engine_echo_mismatch": count(bad.sampled)}


def test_log_probabilities_of_the_wrong_length_never_shift_a_row() -> None:
    world = World()
    root = world.call(START, say("a"))
    request = ask(world.after(root, user("u")))
    turn = world.sample(request, Said(say("b"), untrainable="length_mismatch"))
    bad = world.commit(request, replace(turn, logprobs=take_floats(turn.logprobs, 0, 1)))
    leaf = world.call(world.after(bad, user("v")), say("c"))
    (trace,) = rows(world).traces
    assert count(trace.logprobs) == count(trace.token_ids) == len(trace.loss_mask)
    last = trace.spans[-1]
    assert take_floats(trace.logprobs, last.start, last.end) == leaf.logprobs
    context = trace.spans[1]
    assert np.isnan(np.frombuffer(take_floats(trace.logprobs, context.start, context.end), "<f4")).all()


def test_auxiliary_turns_never_train_and_subagents_do() -> None:
    world = World()
    title = world.call((user("title?"),), Said(say("a title"), role="auxiliary"))
    main = world.call(START, say("a"))
    child = world.call((user("sub task"),), Said(say("b"), role="subagent"))
    made = rows(world)
    assert trained(made) == [[main.turn_id], [child.turn_id]]
    assert [t.kind for t in made.traces] == ["main", "subagent"]
    assert made.untrained == {"auxiliary": count(title.sampled)}


def test_the_version_of_a_trimmed_stop_goes_with_it() -> None:
    world = World()
    root = world.call(START, say("a"))
    n = count(root.sampled)
    split = replace(root, version_runs=((0, 1), (n - 1, 2)))
    leaf = world.sample(ask(world.after(root, user("u"))), Said(say("b"), trim=True, versions=((0, 3),)))
    columns = lay_out([split, leaf], {root.turn_id, leaf.turn_id})
    assert columns.version_runs == ((split.prompt_len, 1), (leaf.prompt_len, 3))
    assert columns.trimmed == 1


def test_a_sample_of_nothing_but_a_trimmed_stop_leaves_an_empty_span() -> None:
    world = World()
    root = world.call(START, say("a"))
    only = replace(root, sampled=Ids(root.sampled[-4:]), logprobs=Floats(root.logprobs[-4:]))
    leaf = replace(world.sample(ask(world.after(root, user("u"))), Said(say("b"))), keep=only.prompt_len)
    columns = lay_out([only, leaf], {only.turn_id, leaf.turn_id})
    assert (columns.spans[0].start, columns.spans[0].end) == (only.prompt_len, only.prompt_len)
    assert take(columns.token_ids, 0, only.prompt_len) == only.bridge
    assert sum(columns.loss_mask) == count(leaf.sampled)


def test_weights_share_out_a_session() -> None:
    world = World()
    root = world.call(START, say("a long first answer"))
    world.call(world.after(root, user("u")), say("b"))
    world.call(world.after(root, user("v")), say("c"))
    made = rows(world)
    per_token = [t.loss_weight / sum(t.loss_mask) for t in made.traces]
    assert sum(t.loss_weight for t in made.traces) == pytest.approx(1)
    assert per_token == pytest.approx([1 / tokens(made)] * 2)


def test_an_infra_failure_is_said_and_an_unjudged_session_has_no_reward() -> None:
    world = World()
    line(world, 1)
    made = build(SessionFacts("ses", "grp", Outcome.NODE_LOST), world.turns, frozenset())
    assert (made.failure, made.reward) == (Failure.INFRA, None)


def test_a_session_without_turns_has_no_rows() -> None:
    assert rows(World()).traces == ()


def test_a_broken_or_looping_path_raises() -> None:
    world = World()
    first, second = line(world, 2)
    with pytest.raises(VerifyError, match="broken"):
        path_to(second.turn_id, {second.turn_id: second})
    loop = {first.turn_id: replace(first, parent=second.turn_id), second.turn_id: second}
    with pytest.raises(VerifyError, match="broken"):
        path_to(second.turn_id, loop)


def call(turn_id: str | None, outcome: CallOutcome) -> CallRecord:
    return CallRecord("call", "ses", 0, "chat", "/v1/chat/completions", turn_id, outcome, 200, 0.0, 0.0)


@pytest.mark.parametrize(
    ("outcomes", "gone"),
    [
        ([CallOutcome.ANSWERED], False),
        ([CallOutcome.UNDELIVERED], True),
        ([CallOutcome.UNDELIVERED, CallOutcome.REPLAYED], False),
        ([CallOutcome.UNDELIVERED, CallOutcome.COALESCED], False),
        ([CallOutcome.UNDELIVERED, CallOutcome.UNDELIVERED], True),
        ([], True),
    ],
)
def test_a_leaf_is_undelivered_unless_some_call_served_it(outcomes: list[CallOutcome], gone: bool) -> None:
    world = World()
    first, last = line(world, 2)
    calls = [call(last.turn_id, o) for o in outcomes] + [call(None, CallOutcome.REJECTED)]
    # the first turn's reply was seen, whatever the socket said: a later turn extends it
    assert undelivered_turns([first, last], calls) == (frozenset({last.turn_id}) if gone else frozenset())


def test_a_long_session_costs_what_it_holds() -> None:
    """2,000 turns, each trimming the one before: memory is that of the columns, not its square."""
    world = World()
    turns: list[Turn] = []
    template = world.call(START, Said(say("x")))
    length = 0
    for n in range(2000):
        keep = max(0, length - 1)
        turn = replace(
            template, turn_id=f"turn_{n}", seq=n, parent=turns[-1].turn_id if turns else None, keep=keep,
            prompt_len=keep + count(template.bridge),
        )  # fmt: skip
        turns.append(turn)
        length = turn.prompt_len + count(turn.sampled)
    tracemalloc.start()
    made = build(FACTS, turns, frozenset())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    (trace,) = made.traces
    assert len(trace.loss_mask) == length
    assert made.untrained == {"stop_trim": 1999}
    assert peak < 40 * length + 2000 * 2000
