"""Proofs: a turn against the engine's own journal, a row against its turns, all rows against all sampled tokens.

A finding names what contradicts what, and the first token position at which it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import fsum
from typing import get_args

import numpy as np

from tugline.core.columns import Floats, Ids, common_prefix, concat, count, floats_array, take
from tugline.core.contracts import JournalEntry
from tugline.core.errors import VerifyError
from tugline.core.session import Ended
from tugline.core.trace import Trace, Trajectory
from tugline.core.turn import Link, Turn
from tugline.trajectory.build import SessionFacts, build
from tugline.trajectory.merge import strategy_for
from tugline.trajectory.rows import Columns, drift_of, lay_out, level_of, path_to, trains_partly, why_untrained

WEIGHT_SLACK = 1e-6
"""How far the weights of a session's rows may be from 1: they pass through a store."""

SESSION_LABELS = ("session_id", "group_id", "outcome", "failure", "reward", "reward_parts", "untrained")
"""Fields of a trajectory that its session's end and turns give."""

ROW_LABELS = ("session_id", "group_id", "kind", "parent", "order", "sampling", "logprob_kind", "level", "links")
"""Fields of a row that they give, besides its columns."""

LINKS = frozenset(get_args(Link))


@dataclass(frozen=True, slots=True)
class Finding:
    """One contradiction. `position` is a token index: into the prompt or sample of a turn, or into a row."""

    kind: str
    session_id: str
    call_id: str | None
    turn_id: str | None
    trace_id: str | None
    position: int | None
    message: str


def verify_turn(turn: Turn, parent_full: Ids, entry: JournalEntry | None, call_id: str | None = None) -> list[Finding]:
    """Compare a stored turn with what the engine wrote down: prompt ids, sampled ids, log-probabilities bit for bit,
    finish, versions. `parent_full` is full(parent), empty for a root."""
    found: list[Finding] = []

    def add(kind: str, position: int | None, message: str) -> None:
        found.append(Finding(kind, turn.session_id, call_id, turn.turn_id, None, position, message))

    if not max(0, count(parent_full) - 1) <= turn.keep <= count(parent_full):
        add("not_an_extension", turn.keep, f"keeps {turn.keep} of its parent's {count(parent_full)} tokens")
    prompt = concat([take(parent_full, 0, turn.keep), turn.bridge])
    if count(prompt) != turn.prompt_len:
        add("prompt_length", None, f"the prompt has {count(prompt)} tokens, {turn.prompt_len} were recorded")
    if count(turn.logprobs) != count(turn.sampled):
        add("length_mismatch", None, f"{count(turn.sampled)} sampled ids, {count(turn.logprobs)} log-probabilities")
    if turn.routes is not None and (
        turn.routes.start != max(0, turn.keep - 1) or turn.routes.end != turn.prompt_len + count(turn.sampled) - 1
    ):
        rows = f"{turn.routes.start} to {turn.routes.end}"
        add("routes_length", turn.routes.end, f"{rows} of {turn.prompt_len + count(turn.sampled)} tokens have routes")
    if entry is None:
        return found
    if entry.prompt_ids != prompt:
        at = common_prefix(entry.prompt_ids, prompt)
        add("prompt_ids", at, _ids_differ("prompt", entry.prompt_ids, prompt, at))
    if entry.ids != turn.sampled:
        at = common_prefix(entry.ids, turn.sampled)
        add("sampled_ids", at, _ids_differ("sample", entry.ids, turn.sampled, at))
    at_value = _first_bit_difference(entry.logprobs, turn.logprobs)
    if at_value is not None:
        add("logprobs", at_value, f"log-probability {at_value} differs from the engine's journal")
    if entry.session_id != turn.session_id:
        add("session", None, f"the engine sampled this for session {entry.session_id}")
    if entry.finish != turn.finish:
        add("finish", None, f"finish is {turn.finish}, the engine's journal says {entry.finish}")
    if entry.version_runs != turn.version_runs:
        at_run = _first_run(entry.version_runs, turn.version_runs)
        add("versions", at_run, f"versions are {turn.version_runs}, the engine's journal says {entry.version_runs}")
    theirs = entry.routes.since(turn.keep - 1) if entry.routes is not None else None
    if theirs != turn.routes and (turn.routes is not None or turn.untrainable is None):
        add("routes", None, "the experts that tokens went to are not those of the engine's record")
    return found


def verify_trace(trace: Trace, turns: Mapping[str, Turn]) -> list[Finding]:
    """Re-prove a row: its ids are the path's, mask and log-probabilities stand where turns were sampled."""
    owned = {span.turn_id for span in trace.spans if span.trained}
    if not trace.spans:
        return [_row(trace, "no_spans", None, "the row has no sampled span")]
    try:
        path = path_to(trace.spans[-1].turn_id, turns)
    except VerifyError as err:
        return [_row(trace, "broken_path", None, err.message)]
    found = _columns_differ(trace, lay_out(path, owned, turns))
    if trace.drift != drift_of(path, owned) or trace.level != level_of(path):
        found.append(_row(trace, "row_labels", None, "drift or level are not the path's"))
    if any(turn.session_id != trace.session_id for turn in path):
        found.append(_row(trace, "row_labels", None, "the row's turns are another session's"))
    values, mask = floats_array(trace.logprobs), np.frombuffer(trace.loss_mask, np.uint8)
    if not found and len(values) == len(mask) and len(wrong := np.nonzero((mask != 0) & ~np.isfinite(values))[0]):
        at = int(wrong[0])
        found.append(_row(trace, "row_logprobs", at, f"token {at} is trained without a log-probability"))
    for turn_id in sorted(owned & turns.keys()):
        reason = turns[turn_id].untrainable
        if reason is not None:
            found.append(_row(trace, "untrainable_trained", None, f"turn {turn_id} is untrainable ({reason})"))
    return found


def _columns_differ(trace: Trace, fresh: Columns) -> list[Finding]:
    found: list[Finding] = []
    if trace.token_ids != fresh.token_ids:
        at = common_prefix(trace.token_ids, fresh.token_ids)
        found.append(_row(trace, "row_ids", at, _ids_differ("row", fresh.token_ids, trace.token_ids, at)))
    if trace.loss_mask != fresh.loss_mask:
        at = _first_difference(trace.loss_mask, fresh.loss_mask, "u1")
        found.append(_row(trace, "row_mask", at, f"the loss mask is wrong at token {at}"))
    at_value = _first_bit_difference(trace.logprobs, fresh.logprobs)
    if at_value is not None:
        found.append(_row(trace, "row_logprobs", at_value, f"log-probability {at_value} is not the sampled one"))
    if trace.spans != fresh.spans:
        found.append(_row(trace, "row_spans", None, "the spans are not the path's"))
    if trace.version_runs != fresh.version_runs:
        found.append(_row(trace, "row_versions", None, "the version runs are not the path's"))
    if trace.routed_experts != fresh.routes:
        found.append(_row(trace, "row_routes", None, "the experts that tokens went to are not the path's"))
    return found


def verify_masks(
    traces: Sequence[Trace], turns: Sequence[Turn], undelivered: frozenset[str] = frozenset()
) -> list[Finding]:
    """The masks of all rows add up: every trainable delivered turn is trained whole (but for a trimmed stop), once, and
    no other turn is trained."""
    owners: Counter[str] = Counter()
    found: list[Finding] = []
    by_id = {t.turn_id: t for t in turns}
    parts = _parts(turns, by_id, undelivered)
    for trace in traces:
        for span in trace.spans:
            if not span.trained:
                continue
            owners[span.turn_id] += 1
            known, length = by_id.get(span.turn_id), span.end - span.start
            missing = count(known.sampled) - length if known else 0
            whole = length in parts[span.turn_id] if span.turn_id in parts else 0 <= missing <= 1
            if known is None or not whole:
                found.append(_row(trace, "mask_sum", span.start, f"turn {span.turn_id} is not trained whole"))
            if sum(trace.loss_mask[span.start : span.end]) != span.end - span.start:
                found.append(_row(trace, "mask_sum", span.start, f"turn {span.turn_id}: mask and span disagree"))
    found += _untrained(turns, owners, parts, undelivered)
    for turn_id, times in owners.items():
        if times > 1:
            session = by_id[turn_id].session_id if turn_id in by_id else ""
            message = f"turn {turn_id} is trained in {times} rows"
            found.append(Finding("trained_twice", session, None, turn_id, None, None, message))
    if traces and not found and abs(fsum(trace.loss_weight for trace in traces) - 1) > WEIGHT_SLACK:
        found.append(_row(traces[0], "loss_weight", None, "the weights of the session's rows do not add up to 1"))
    return found


def verify_labels(
    stored: Trajectory, state: Ended, turns: Sequence[Turn], undelivered: frozenset[str]
) -> list[Finding]:
    """What a session's rows are trained with besides their tokens: reward, group, weights, sampling, and how rows
    belong to each other, compared with what its end and its turns give. Raises VerifyError for a broken path."""
    facts = SessionFacts(
        session_id=state.key.session_id,
        group_id=state.key.group_id,
        outcome=state.outcome,
        reward=state.reward,
        reward_parts=dict(state.reward_parts),
        logprob_kind=stored.traces[0].logprob_kind if stored.traces else "processed",
    )
    fresh = build(facts, turns, undelivered, strategy_for(turns))
    found = [
        Finding(
            "session_labels", facts.session_id, None, None, None, None, f"{name} of the rows is {ours!r}, not {own!r}"
        )
        for name, ours, own in _different(stored, fresh, SESSION_LABELS)
    ]
    rows = {trace.trace_id: trace for trace in fresh.traces}
    for trace in stored.traces:
        row = rows.pop(trace.trace_id, None)
        if row is None:
            found.append(_row(trace, "row_labels", None, "no turn ends such a row"))
            continue
        found += [
            _row(trace, "row_labels", None, f"{name} is {ours!r}, where turns and session give {own!r}")
            for name, ours, own in _different(trace, row, ROW_LABELS)
        ]
        if abs(trace.loss_weight - row.loss_weight) > WEIGHT_SLACK:
            found.append(_row(trace, "loss_weight", None, f"the row weighs {trace.loss_weight}, not {row.loss_weight}"))
    for trace_id in rows:
        message = f"the row {trace_id} is missing"
        found.append(Finding("row_labels", facts.session_id, None, None, trace_id, None, message))
    return found


def verify_links(turns: Sequence[Turn]) -> list[Finding]:
    """Links of turns lead to turns of the session that came before, by names that are known."""
    known: set[str] = set()
    found: list[Finding] = []
    for turn in turns:
        for name, other in turn.links:
            if name not in LINKS or other not in known:
                message = f"turn {turn.turn_id}: its link {name} leads to {other}, which is no earlier turn"
                found.append(Finding("bad_link", turn.session_id, None, turn.turn_id, None, None, message))
        known.add(turn.turn_id)
    return found


def _different(stored: object, fresh: object, names: Sequence[str]) -> Iterator[tuple[str, object, object]]:
    for name in names:
        ours, own = getattr(stored, name), getattr(fresh, name)
        if ours != own:
            yield name, ours, own


def _parts(turns: Sequence[Turn], by_id: Mapping[str, Turn], undelivered: frozenset[str]) -> dict[str, set[int]]:
    """Turns whose beginning trains inside other bridges -> lengths of those beginnings."""
    parts: dict[str, set[int]] = {}
    for part in (turn.partial for turn in turns):
        if part is not None and trains_partly(part, by_id, undelivered):
            parts.setdefault(part.turn_id, set()).add(part.n)
    return parts


def _untrained(
    turns: Sequence[Turn], owners: Mapping[str, int], parts: Mapping[str, set[int]], undelivered: frozenset[str]
) -> list[Finding]:
    """Turns that no row trains and one should, and the other way round."""
    found: list[Finding] = []
    echoed = {turn.partial.turn_id for turn in turns if turn.partial and turn.turn_id in owners}
    for turn in turns:
        reason = why_untrained(turn, undelivered)
        if turn.turn_id not in owners and reason is None:
            message = f"turn {turn.turn_id} was sampled and delivered, but no row trains it"
            found.append(Finding("not_trained", turn.session_id, None, turn.turn_id, None, None, message))
        elif turn.turn_id in parts:
            if turn.turn_id in echoed and turn.turn_id not in owners:
                message = f"the beginning of turn {turn.turn_id} was echoed, but no row trains it"
                found.append(Finding("not_trained", turn.session_id, None, turn.turn_id, None, None, message))
        elif turn.turn_id in owners and reason is not None and turn.untrainable is None:  # that one is verify_trace's
            message = f"turn {turn.turn_id} is trained although it is {reason}"
            found.append(Finding("context_trained", turn.session_id, None, turn.turn_id, None, None, message))
    return found


def continuous(trace: Trace, turns: Mapping[str, Turn]) -> bool:
    """Every prompt of the row extends the whole turn before it (at most a trimmed stop)."""
    length = 0
    try:
        path = path_to(trace.spans[-1].turn_id, turns) if trace.spans else []
    except VerifyError:
        return False
    for turn in path:
        if turn.keep not in (length, length - 1):
            return False
        length = turn.prompt_len + count(turn.sampled)
    return True


def _first_run(a: Sequence[tuple[int, int]], b: Sequence[tuple[int, int]]) -> int:
    """Token at which two different lists of version runs part."""
    parted = next((pair for pair in zip_longest(a, b) if pair[0] != pair[1]), ())
    return min((run[0] for run in parted if run is not None), default=0)


def _first_bit_difference(a: Floats, b: Floats) -> int | None:
    """Index of the first value whose bits differ, or None; NaN equals NaN of the same bits."""
    return None if a == b else _first_difference(a, b, "<u4")


def _first_difference(a: bytes, b: bytes, dtype: str) -> int:
    """Index of the first element that differs; the shorter length if one column is a prefix of the other."""
    n = min(len(a), len(b)) // np.dtype(dtype).itemsize
    where = np.nonzero(np.frombuffer(a, dtype, n) != np.frombuffer(b, dtype, n))[0]
    return int(where[0]) if len(where) else n


def _ids_differ(what: str, expected: Ids, actual: Ids, at: int) -> str:
    return f"{what} id {at} is {_at(actual, at)}, the engine had {_at(expected, at)}"


def _at(column: Ids, index: int) -> str:
    if index >= count(column):
        return "missing"
    return str(int.from_bytes(take(column, index, index + 1), "little", signed=True))


def _row(trace: Trace, kind: str, position: int | None, message: str) -> Finding:
    return Finding(kind, trace.session_id, None, None, trace.trace_id, position, message)
