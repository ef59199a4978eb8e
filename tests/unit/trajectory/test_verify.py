"""Honest records give no finding; one changed id, bit, value or record is found, named and placed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tugline.core.columns import Floats, concat, count, ids, take, take_floats
from tugline.core.contracts import JournalEntry
from tugline.core.session import Outcome
from tugline.core.trace import Trace
from tugline.core.turn import Turn
from tugline.trajectory.build import SessionFacts, build
from tugline.trajectory.verify import continuous, verify_masks, verify_trace, verify_turn
from unit.trajectory.world import Said, World, bash, bits, poke, result, say, user

NAN, QUIET_NAN = 0x7FC00000, 0x7FC00001
START = (user("task"),)
FACTS = SessionFacts("ses", "grp", Outcome.COMPLETED, 1.0)


@dataclass(frozen=True)
class Built:
    """root -- middle -- main
    \\-- side (another sample of the same request)."""

    world: World
    root: Turn
    middle: Turn
    main: Turn
    side: Turn
    traces: tuple[Trace, ...]

    def __iter__(self):
        return iter((self.root, self.middle, self.main, self.side))


def built() -> Built:
    world = World()
    root = world.call(START, say("looking", bash("c1", '{"a": 1}')))
    middle = world.call(
        world.after(root, result("c1", "one")), Said(say("more", bash("c2", "{}")), versions=((0, 3), (2, 4)))
    )
    request = world.after(middle, result("c2", "two"))
    main = world.call(request, Said(say("done"), trim=True))
    side = world.call(request, Said(say("over"), trim=True, finish="length"))
    made = build(FACTS, world.turns, frozenset())
    return Built(world, root, middle, main, side, made.traces)


def test_untouched_records_give_no_finding() -> None:
    b = built()
    for turn in b:
        assert verify_turn(turn, b.world.parent_full(turn), b.world.entry(turn)) == []
    assert [verify_trace(t, b.world.forest.turns) for t in b.traces] == [[], []]
    assert verify_masks(b.traces, b.world.turns) == []
    assert all(continuous(t, b.world.forest.turns) for t in b.traces)


TurnEdit = Callable[[Turn], Turn]
EntryEdit = Callable[[JournalEntry], JournalEntry]

TURN_EDITS: dict[str, tuple[TurnEdit, str, int | None]] = {
    "an id of the bridge": (lambda t: replace(t, bridge=poke(t.bridge, 3, 99)), "prompt_ids", -1),
    "a sampled id": (lambda t: replace(t, sampled=poke(t.sampled, 2, 99)), "sampled_ids", 2),
    "a sampled id lost at the end": (
        lambda t: replace(t, sampled=take(t.sampled, 0, 4), logprobs=take_floats(t.logprobs, 0, 4)),
        "sampled_ids",
        4,
    ),
    "the lowest bit of a log-probability": (
        lambda t: replace(t, logprobs=flip(t.logprobs, 5)),
        "logprobs",
        5,
    ),
    "a log-probability made unknown": (lambda t: replace(t, logprobs=bits(t.logprobs, 1, NAN)), "logprobs", 1),
    "finish": (lambda t: replace(t, finish="length"), "finish", None),
    "a version": (lambda t: replace(t, version_runs=((0, 3), (2, 5))), "versions", 2),
    "where a version starts": (lambda t: replace(t, version_runs=((0, 3), (3, 4))), "versions", 2),
    "the prompt's length": (lambda t: replace(t, prompt_len=t.prompt_len + 1), "prompt_length", None),
    "a missing log-probability": (
        lambda t: replace(t, logprobs=take_floats(t.logprobs, 0, count(t.sampled) - 1)),
        "length_mismatch",
        None,
    ),
}


def flip(column: Floats, index: int) -> Floats:
    return bits(column, index, int(np.frombuffer(column, "<u4")[index]) ^ 1)


@pytest.mark.parametrize("what", TURN_EDITS)
def test_a_changed_turn_is_found(what: str) -> None:
    b = built()
    edit, kind, at = TURN_EDITS[what]
    if at == -1:  # the bridge stands behind the parent's tokens
        at = b.middle.keep + 3
    found = verify_turn(edit(b.middle), b.world.parent_full(b.middle), b.world.entry(b.middle), "call_7")
    assert (found[0].kind, found[0].position) == (kind, at)
    assert (found[0].session_id, found[0].call_id, found[0].turn_id) == ("ses", "call_7", b.middle.turn_id)
    allowed = {"length_mismatch", "logprobs"} if kind == "length_mismatch" else {kind}
    assert {f.kind for f in found} <= allowed | ({"logprobs"} if "lost" in what else set())


@pytest.mark.parametrize("field", ["prompt_ids", "ids", "logprobs", "finish", "version_runs"])
def test_a_changed_journal_is_found(field: str) -> None:
    b = built()
    entry = b.world.entry(b.middle)
    new: dict[str, object] = {
        "prompt_ids": poke(entry.prompt_ids, 0, 99),
        "ids": concat([entry.ids, ids([7])]),
        "logprobs": flip(entry.logprobs, 0),
        "finish": "abort",
        "version_runs": ((0, 9),),
    }
    kinds = {"ids": "sampled_ids", "version_runs": "versions"}
    places = {"prompt_ids": 0, "ids": count(entry.ids), "logprobs": 0, "version_runs": 0}
    found = verify_turn(b.middle, b.world.parent_full(b.middle), replace(entry, **{field: new[field]}))
    assert [(f.kind, f.position) for f in found] == [(kinds.get(field, field), places.get(field))]


def test_the_payload_of_a_nan_counts() -> None:
    b = built()
    quiet = replace(b.middle, logprobs=bits(b.middle.logprobs, 3, NAN))
    entry = replace(b.world.entry(b.middle), logprobs=bits(b.middle.logprobs, 3, NAN))
    assert verify_turn(quiet, b.world.parent_full(quiet), entry) == []
    loud = replace(entry, logprobs=bits(b.middle.logprobs, 3, QUIET_NAN))
    found = verify_turn(quiet, b.world.parent_full(quiet), loud)
    assert [(f.kind, f.position) for f in found] == [("logprobs", 3)]


def test_a_changed_parent_shows_in_the_prompt() -> None:
    b = built()
    found = verify_turn(b.middle, poke(b.world.parent_full(b.middle), 6, 99), b.world.entry(b.middle))
    assert [(f.kind, f.position) for f in found] == [("prompt_ids", 6)]


@pytest.mark.parametrize("keep", [-1, 3, 10_000])
def test_a_turn_that_does_not_extend_its_parent_is_found(keep: int) -> None:
    b = built()
    turn = replace(b.middle, keep=keep)
    found = verify_turn(turn, b.world.parent_full(turn), None)
    assert (found[0].kind, found[0].position) == ("not_an_extension", keep)


def test_without_a_journal_only_the_structure_is_proved() -> None:
    b = built()
    assert verify_turn(b.middle, b.world.parent_full(b.middle), None) == []


# -------------------------------------------------------------------------------------------------- rows

RowEdit = Callable[[Trace], Trace]


def masked(trace: Trace, at: int, value: int) -> Trace:
    mask = bytearray(trace.loss_mask)
    mask[at] = value
    return replace(trace, loss_mask=bytes(mask))


def respan(trace: Trace, n: int, **changed: object) -> Trace:
    spans = list(trace.spans)
    spans[n] = replace(spans[n], **changed)
    return replace(trace, spans=tuple(spans))


ROW_EDITS: dict[str, tuple[RowEdit, str, int | None]] = {
    "an id": (lambda t: replace(t, token_ids=poke(t.token_ids, 4, 99)), "row_ids", 4),
    "an id added": (lambda t: replace(t, token_ids=concat([t.token_ids, ids([1])])), "row_ids", None),
    "a mask bit set on the prompt": (lambda t: masked(t, 0, 1), "row_mask", 0),
    "a mask bit cleared": (lambda t: masked(t, t.spans[0].start, 0), "row_mask", -1),
    "a mask byte above one": (lambda t: masked(t, t.spans[0].start, 2), "row_mask", -1),
    "a bit of a log-probability": (
        lambda t: replace(t, logprobs=flip(t.logprobs, t.spans[0].start)),
        "row_logprobs",
        -1,
    ),
    "a value where nothing was sampled": (lambda t: replace(t, logprobs=bits(t.logprobs, 0, 0)), "row_logprobs", 0),
    "another NaN where nothing was sampled": (
        lambda t: replace(t, logprobs=bits(t.logprobs, 0, QUIET_NAN)),
        "row_logprobs",
        0,
    ),
    "a span's end": (lambda t: respan(t, 0, end=t.spans[0].end - 1), "row_spans", None),
    "a span's finish": (lambda t: respan(t, 0, finish="abort"), "row_spans", None),
    "a span's turn": (lambda t: respan(t, 0, turn_id="turn_unknown"), "row_spans", None),
    "a version": (lambda t: replace(t, version_runs=((t.version_runs[0][0], 8),)), "row_versions", None),
    "drift": (lambda t: replace(t, drift={"ws_trim": 1}), "row_labels", None),
    "level": (lambda t: replace(t, level="L2"), "row_labels", None),
    "session": (lambda t: replace(t, session_id="other"), "row_labels", None),
}


@pytest.mark.parametrize("what", ROW_EDITS)
def test_a_changed_row_is_found(what: str) -> None:
    b = built()
    trace = b.traces[0]
    edit, kind, at = ROW_EDITS[what]
    found = [f for f in verify_trace(edit(trace), b.world.forest.turns) if f.kind == kind]
    assert len(found) == 1
    expected = trace.spans[0].start if at == -1 else count(trace.token_ids) if what == "an id added" else at
    assert found[0].position == expected
    assert found[0].trace_id == trace.trace_id


def test_a_row_of_unknown_turns_and_a_row_without_spans_are_found() -> None:
    b = built()
    lost = {k: v for k, v in b.world.forest.turns.items() if k != b.root.turn_id}
    assert [f.kind for f in verify_trace(b.traces[0], lost)] == ["broken_path"]
    assert not continuous(b.traces[0], lost)
    assert [f.kind for f in verify_trace(replace(b.traces[0], spans=()), lost)] == ["no_spans"]


def test_a_row_that_trains_an_untrainable_turn_is_found() -> None:
    b = built()
    turns = {**b.world.forest.turns, b.middle.turn_id: replace(b.middle, untrainable="engine_echo_mismatch")}
    assert [f.kind for f in verify_trace(b.traces[0], turns)] == ["untrainable_trained"]


def test_a_row_that_jumps_is_not_continuous() -> None:
    b = built()
    turns = {**b.world.forest.turns, b.middle.turn_id: replace(b.middle, keep=b.middle.keep - 2)}
    assert not continuous(b.traces[0], turns)


# ------------------------------------------------------------------------------------------------- masks


def kinds(traces: tuple[Trace, ...], b: Built, undelivered: frozenset[str] = frozenset()) -> list[str]:
    return [f.kind for f in verify_masks(traces, b.world.turns, undelivered)]


def test_a_missing_row_leaves_its_turns_untrained() -> None:
    b = built()
    found = verify_masks(b.traces[:1], b.world.turns)
    assert [(f.kind, f.turn_id) for f in found] == [("not_trained", b.side.turn_id)]


def test_an_undelivered_leaf_need_not_be_trained_and_must_not_be() -> None:
    b = built()
    gone = frozenset({b.side.turn_id})
    without = build(FACTS, b.world.turns, gone).traces
    assert kinds(without, b, gone) == []
    assert kinds(without, b) == ["not_trained"]
    assert kinds(b.traces, b, gone) == ["context_trained"]


def test_a_turn_trained_in_two_rows_is_found() -> None:
    b = built()
    second = b.traces[1]
    spans = tuple(replace(s, trained=True) for s in second.spans)
    mask = bytearray(second.loss_mask)
    for span in spans:
        mask[span.start : span.end] = b"\1" * (span.end - span.start)
    twice = replace(second, spans=spans, loss_mask=bytes(mask))
    assert kinds((b.traces[0], twice), b) == ["trained_twice", "trained_twice"]


def test_a_mask_bit_that_its_span_denies_is_found() -> None:
    b = built()
    start = b.traces[0].spans[0].start
    found = verify_masks((masked(b.traces[0], start, 0), b.traces[1]), b.world.turns)
    assert [(f.kind, f.position, f.trace_id) for f in found] == [("mask_sum", start, b.traces[0].trace_id)]


def test_a_turn_trained_in_part_or_unknown_is_found() -> None:
    b = built()
    short = respan(b.traces[0], 0, end=b.traces[0].spans[0].end - 2)
    assert "mask_sum" in kinds((short, b.traces[1]), b)
    stranger = respan(b.traces[0], 0, turn_id="turn_unknown")
    assert set(kinds((stranger, b.traces[1]), b)) == {"mask_sum", "not_trained"}


def test_weights_that_do_not_count_the_session_once_are_found() -> None:
    b = built()
    heavy = replace(b.traces[0], loss_weight=1.0)
    assert kinds((heavy, b.traces[1]), b) == ["loss_weight"]


def test_findings_say_what_the_engine_had() -> None:
    b = built()
    turn = replace(b.middle, sampled=poke(b.middle.sampled, 2, 99))
    (found,) = verify_turn(turn, b.world.parent_full(turn), b.world.entry(b.middle))
    true = int.from_bytes(take(b.middle.sampled, 2, 3), "little")
    assert found.message == f"sample id 2 is 99, the engine had {true}"
