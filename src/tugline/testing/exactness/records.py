"""What gateways keep of a session: calls with their ids, or training rows. Read from ours, and from any JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tugline.core.columns import Floats, Ids, common_prefix, concat, count, floats, floats_array, ids, take
from tugline.core.trace import Trace
from tugline.testing.exactness.fake import Made
from tugline.testing.exactness.talk import ReplyIds

CLOSE = 1e-4
"""Nats by which a log-probability may differ from what the engine said: records may round."""
NOTHING, NO_IDS_KEPT = "nothing is recorded", "the record has no ids"
NO_LOGPROBS = "its ids are recorded without log-probabilities"
EMPTY = (NOTHING, NO_IDS_KEPT, NO_LOGPROBS)
"""Problems of who keeps nothing, or too little, by design; what is kept is right."""
_PROMPT = ("prompt_token_ids", "prompt_ids", "input_ids")
_SAMPLED = ("completion_token_ids", "completion_ids", "response_ids", "response_token_ids", "output_ids", "token_ids")
_LOGPROBS = ("completion_logprobs", "response_logprobs", "output_logprobs", "logprobs")
_MASK = ("loss_mask", "completion_mask", "mask", "sampled_mask")


@dataclass(frozen=True, slots=True)
class Kept:
    """One piece of a record: ids of which those with mask 1 are said to be sampled. mask: one byte per id; logprobs
    float32 for every id, NaN = unknown, or None: the record has none. `row`: it is what trains, once per piece."""

    ids: Ids
    mask: bytes
    logprobs: Floats | None
    row: bool
    counted: frozenset[str] = frozenset()
    """Names of the deviations that the record itself tells of."""


def of_call(prompt: Ids, sampled: Ids, logprobs: Floats | None) -> Kept:
    """A call's prompt and sample."""
    mask = bytes(count(prompt)) + b"\1" * count(sampled)
    spread = None if logprobs is None else floats([math.nan] * count(prompt) + floats_array(logprobs).tolist())
    return Kept(concat([prompt, sampled]), mask, spread, row=False)


def of_reply(told: ReplyIds) -> Kept:
    """What a reply told its client."""
    return of_call(told.prompt, told.sampled, told.logprobs)


def of_trace(trace: Trace) -> Kept:
    """A row of ours."""
    return Kept(trace.token_ids, trace.loss_mask, trace.logprobs, True, frozenset(trace.drift))


def harvest(value: object) -> Iterator[Kept]:
    """Every call and every row in a JSON value, by the names that such fields have in the field. Records without ids
    come out empty."""
    if isinstance(value, list):
        for item in value:
            yield from harvest(item)
    elif isinstance(value, dict):
        found = _row(value) or _call(value) or _sglang(value)
        if found is not None:
            yield found
            return
        for item in value.values():
            yield from harvest(item)


def _row(value: dict[str, Any]) -> Kept | None:
    mask = next((value[k] for k in _MASK if _numbers(value.get(k))), None)
    column = next((value[k] for k in ("token_ids", "input_ids", "tokens") if _numbers(value.get(k))), None)
    if mask is None or column is None or len(mask) != len(column):
        return None
    given = next((value[k] for k in _LOGPROBS if isinstance(value.get(k), list)), None)
    logprobs = floats(math.nan if v is None else v for v in given) if given and len(given) == len(column) else None
    return Kept(ids(column), bytes(bool(m) for m in mask), logprobs, row=True)


def _call(value: dict[str, Any]) -> Kept | None:
    prompt = next((value[k] for k in _PROMPT if isinstance(value.get(k), list)), None)
    sampled = next((value[k] for k in _SAMPLED if isinstance(value.get(k), list)), None)
    if prompt is None or sampled is None:
        return None
    given = next((value[k] for k in _LOGPROBS if _numbers(value.get(k))), None)
    logprobs = floats(given) if given is not None and len(given) == len(sampled) else None
    return of_call(ids(prompt), ids(sampled), logprobs)


def _sglang(value: dict[str, Any]) -> Kept | None:
    """A request with `input_ids` beside its reply with `output_token_logprobs`."""
    prompt = _at(value, "request", "input_ids")
    choices = _at(value, "response", "choices")
    rows = _at(choices[0], "meta_info", "output_token_logprobs") if isinstance(choices, list) and choices else None
    if not _numbers(prompt) or not isinstance(rows, list):
        return None
    return of_call(ids(prompt), ids(row[1] for row in rows), floats(row[0] for row in rows))


def _at(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _numbers(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, int | float | None) for v in value)


# ------------------------------------------------------------------------------------------------------ judging


def call_problem(made: Made, kept: Sequence[Kept]) -> str:
    """Why a generation that a harness received is not in the records as it was, or ""."""
    if not kept:
        return NOTHING
    holding = [k for k in kept if _holds(k, made)]
    if not holding:
        return _nearest(made, kept)
    start, end = count(made.prompt), count(made.full)
    marked = [k for k in holding if any(k.mask[start:end])]
    if not marked:
        return "its ids are recorded, none of them as sampled"
    if marked[0].row and len(marked) > 1:
        return f"its ids train in {len(marked)} rows"
    one = marked[0]
    if one.logprobs is None:
        return NO_LOGPROBS
    ours = floats_array(made.logprobs)
    theirs = floats_array(one.logprobs)[start : start + len(ours)]
    trained = [n for n in range(len(theirs)) if one.mask[start + n]]
    bad = next((n for n in trained if not abs(float(theirs[n]) - float(ours[n])) <= CLOSE), None)
    if bad is not None:
        return f"the log-probability of sampled token {bad} is {theirs[bad]:.4f}, the engine said {ours[bad]:.4f}"
    return ""


def _holds(kept: Kept, made: Made) -> bool:
    """A row may have lost the stop token that the next prompt replaces."""
    full = made.full
    if kept.ids.startswith(full):
        return True
    return kept.row and made.finish == "stop" and kept.ids.startswith(take(full, 0, count(full) - 1))


def _nearest(made: Made, kept: Sequence[Kept]) -> str:
    full = made.full
    if not any(k.ids for k in kept):
        return NO_IDS_KEPT
    if all(k.ids and all(k.mask) for k in kept):
        return "the record has sampled ids and no prompt ids"
    best = max(kept, key=lambda k: common_prefix(k.ids, full))
    at, start = common_prefix(best.ids, full), count(made.prompt)
    where = f"prompt token {at}" if at < start else f"sampled token {at - start}"
    return f"no record holds its ids; the nearest one differs from {where} of {start} + {count(made.sampled)} on"


def untrue(kept: Sequence[Kept], made: Sequence[Made]) -> str:
    """Ids said to be sampled that the engine did not sample in that place, or ""."""
    for number, one in enumerate(kept, start=1):
        for start, end in _runs(one.mask):
            prompt, sampled = take(one.ids, 0, start), take(one.ids, start, end)
            if not any(m.prompt == prompt and m.sampled.startswith(sampled) for m in made):
                what = "row" if one.row else "call"
                return f"{what} {number}: the engine did not sample tokens {start} to {end} there, as is said"
    return ""


def _runs(mask: bytes) -> Iterator[tuple[int, int]]:
    start = None
    for n, value in enumerate(mask):
        if value and start is None:
            start = n
        elif not value and start is not None:
            yield start, n
            start = None
    if start is not None:
        yield start, len(mask)
