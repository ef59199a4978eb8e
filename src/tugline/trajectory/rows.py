"""Row columns of one root-to-leaf path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from tugline.core.columns import Floats, Ids, concat, concat_floats, count, nans, take, take_floats
from tugline.core.errors import VerifyError
from tugline.core.routes import Routes, joined
from tugline.core.trace import Span
from tugline.core.turn import CallOutcome, CallRecord, Partial, Turn

CONTEXT_ONLY = ("auxiliary",)
"""Roles whose turns are context, never trained."""

NONE: Mapping[str, Turn] = MappingProxyType({})

SERVED = (CallOutcome.ANSWERED, CallOutcome.REPLAYED, CallOutcome.COALESCED)
"""Outcomes of calls whose client got the reply."""


@dataclass(frozen=True, slots=True)
class Columns:
    """token_ids int32[T], loss_mask uint8[T], logprobs float32[T] (NaN where not sampled), spans and version runs."""

    token_ids: Ids
    loss_mask: bytes
    logprobs: Floats
    spans: tuple[Span, ...]
    version_runs: tuple[tuple[int, int], ...]
    trimmed: int
    """Sampled stops that a following prompt replaced: in no row, trained nowhere."""
    routes: Routes | None = None
    """See `routes_of`."""


def path_to(leaf: str, turns: Mapping[str, Turn]) -> list[Turn]:
    """Root-to-leaf turns. Raises VerifyError when a parent is missing or the chain loops."""
    path: list[Turn] = []
    at: str | None = leaf
    while at is not None:
        turn = turns.get(at)
        if turn is None or len(path) > len(turns):
            raise VerifyError(f"the path to turn {leaf} is broken at {at}")
        path.append(turn)
        at = turn.parent
    path.reverse()
    return path


def lay_out(path: Sequence[Turn], owned: Collection[str], others: Mapping[str, Turn] = NONE) -> Columns:
    """The row of a path. Turns in `owned` are trained here; the others are masked context. `others`: turns beside the
    path, of which it may hold and train the beginning."""
    mask = bytearray()
    parts: list[Ids] = []
    values: list[Floats] = []
    spans: list[Span] = []
    runs: list[tuple[int, int]] = []
    length = trimmed = 0
    for turn in path:
        if turn.keep < length:
            trimmed += length - turn.keep
            _cut_columns(parts, values, length - turn.keep)
            length = turn.keep
            del mask[length:]
            _cut_spans(spans, runs, length)
        start = length + count(turn.bridge)
        end = start + count(turn.sampled)
        trained = turn.turn_id in owned
        parts += [turn.bridge, turn.sampled]
        values += [nans(count(turn.bridge)), _logprobs_of(turn)]
        mask += bytes(count(turn.bridge)) + (b"\1" if trained else b"\0") * count(turn.sampled)
        part, origin = turn.partial, others.get(turn.partial.turn_id) if turn.partial else None
        if part is not None and origin is not None and part.train and part.at + part.n <= count(turn.bridge):
            at, mine = length + part.at, origin.turn_id in owned
            values[-2] = concat_floats(
                [
                    nans(part.at),
                    take_floats(_logprobs_of(origin), 0, part.n),
                    nans(count(turn.bridge) - part.at - part.n),
                ]
            )
            mask[at : at + part.n] = (b"\1" if mine else b"\0") * part.n
            spans.append(Span(at, at + part.n, origin.turn_id, origin.role, "abort", mine))
            _add_runs(runs, origin, at, part.n)
        spans.append(Span(start, end, turn.turn_id, turn.role, turn.finish, trained))
        _add_runs(runs, turn, start, count(turn.sampled))
        length = end
    columns = concat(parts), bytes(mask), concat_floats(values)
    return Columns(*columns, tuple(spans), tuple(runs), trimmed, routes_of(path))


def routes_of(path: Sequence[Turn]) -> Routes | None:
    """Which experts the tokens of a row went to, all but the last; None unless every turn of the path says it. Tokens
    count as they were passed over when the turn that holds them was sampled, not as later prompts had them again."""
    return joined(turn.routes for turn in path)


def _add_runs(runs: list[tuple[int, int]], turn: Turn, start: int, n: int) -> None:
    """The versions of the first `n` tokens that a turn sampled, which stand at `start`."""
    for offset, version in turn.version_runs:
        if offset < n and (not runs or runs[-1][1] != version):
            runs.append((start + offset, version))


def _logprobs_of(turn: Turn) -> Floats:
    """A turn whose engine gave too few or too many values is untrainable context: its values are unknown."""
    return turn.logprobs if len(turn.logprobs) == len(turn.sampled) else nans(count(turn.sampled))


def _cut_columns(parts: list[Ids], values: list[Floats], surplus: int) -> None:
    """Take `surplus` tokens off the end of both columns."""
    while surplus > 0 and parts:
        ids, floats = parts.pop(), values.pop()
        if count(ids) > surplus:
            parts.append(take(ids, 0, count(ids) - surplus))
            values.append(take_floats(floats, 0, count(floats) - surplus))
        surplus -= count(ids)


def _cut_spans(spans: list[Span], runs: list[tuple[int, int]], length: int) -> None:
    """Shorten what reaches behind `length`, from the end."""
    index = len(spans) - 1
    while index >= 0 and spans[index].end > length:
        spans[index] = replace(spans[index], start=min(spans[index].start, length), end=length)
        index -= 1
    while runs and runs[-1][0] >= length:
        runs.pop()


def drift_of(path: Sequence[Turn], owned: Collection[str]) -> dict[str, int]:
    """Drift reasons of the turns that the row owns."""
    found: Counter[str] = Counter()
    for turn in path:
        if turn.turn_id in owned:
            found.update(turn.drift)
    if any(turn.routes is not None for turn in path) and routes_of(path) is None:
        found["routes_incomplete"] += 1
    return dict(sorted(found.items()))


def level_of(path: Sequence[Turn]) -> str:
    """The weakest capture level on a path."""
    return min((turn.level for turn in path), default="L4")


def mask_sum(mask: bytes) -> int:
    """Trained tokens of a mask."""
    return int(np.frombuffer(mask, dtype=np.uint8).sum(dtype=np.int64))


def why_untrained(turn: Turn, undelivered: frozenset[str]) -> str | None:
    """Why no row trains a turn's tokens, or None. `undelivered`: replies that no harness has seen."""
    if turn.engine:
        return "other_engine"
    if turn.untrainable is not None:
        return turn.untrainable
    if turn.turn_id in undelivered:
        return "undelivered"
    return turn.role if turn.role in CONTEXT_ONLY else None


def trains_partly(part: Partial, turns: Mapping[str, Turn], undelivered: frozenset[str]) -> bool:
    """Whether the beginning of a turn trains inside another's bridge: asked for, and nothing keeps that turn from
    training but that its reply was lost."""
    origin = turns.get(part.turn_id)
    return (
        part.train
        and origin is not None
        and origin.role not in CONTEXT_ONLY
        and why_untrained(origin, undelivered) == "undelivered"
    )


def undelivered_turns(turns: Sequence[Turn], calls: Sequence[CallRecord]) -> frozenset[str]:
    """Turns whose reply no harness has seen. One that a later turn extends was seen, whatever the socket said."""
    extended = {turn.parent for turn in turns}
    served = {call.turn_id for call in calls if call.outcome in SERVED}
    return frozenset(t.turn_id for t in turns if t.turn_id not in served and t.turn_id not in extended)
