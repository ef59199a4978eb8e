"""What a driver makes of an engine's reply, before it is a Sample. Pure."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from tugline.core.columns import NO_IDS, Floats, Ids, count, floats, floats_array, ids, ids_array
from tugline.core.contracts import Sample
from tugline.core.errors import EngineError
from tugline.core.routes import read_npy
from tugline.core.turn import Finish

UNKNOWN = -9998.0
"""At and below it a log-probability is none: vLLM writes -9999 for NaN, for minus infinity and for one it has not."""
FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length", "abort": "abort"}
_WORD = re.compile(r"[^A-Za-z0-9]+")
_NUMBERED = re.compile(r"(?:.*\D)?(\d{1,9})")
_NOT_JSON = re.compile(
    rb'((?:[^"\-NI]++|"(?:[^"\\]++|\\.)*+(?:"|\Z)|(?!-?(?:NaN|Infinity)\b)[\-NI])*+)-?(?:NaN|Infinity)\b', re.DOTALL
)
"""What stands before the next bare word that is no JSON, and the word. Nothing is tried twice: replies may be broken
anywhere, and large."""
MENDED = 16 << 20
"""Bytes of the largest reply in which bare words are looked for: some 60,000 sampled tokens."""
KNOWN_ENDS = frozenset({"none", "error", "repetition", "content_filter", "tool_calls", "function_call", "eos"})
"""Ends by which faults are counted beside `other`: an engine could name a new one with every reply."""

Label = tuple[str, int]
"""(the engine's name of the weights, index of the first token that they sampled)."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One generation as it stood on the wire."""

    ids: Ids
    logprobs: Floats
    finish: Finish
    prompt_ids: Ids | None
    labels: tuple[Label, ...] | None
    """None: the reply does not say which weights sampled."""
    cached: int = 0
    fault: str | None = None
    experts: bytes | None = None
    """Routes as the engine spells them: a NumPy file's bytes."""
    name: str | None = None
    """The engine's name for the request; None: the reply does not say it."""


def decode_json(body: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """A JSON body as `kind`; NaN and infinities, which are no JSON, count as null. Raises EngineError."""
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.DecodeError as err:
            if isinstance(err, msgspec.ValidationError):
                raise
            return msgspec.json.decode(_mended(body), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise EngineError(f"the engine's reply cannot be read: {err}", fault="unreadable") from err


def _mended(body: bytes) -> bytes:
    """Bare words that are no JSON as null; texts stay as they are. Only in what can be gone through in a moment."""
    if len(body) > MENDED or not (b"NaN" in body or b"Infinity" in body):
        return body
    parts, at = [], 0
    while (found := _NOT_JSON.match(body, at)) is not None:
        parts += [found[1], b"null"]
        at = found.end()
    return b"".join([*parts, body[at:]])


def ids_of(values: Sequence[int]) -> Ids:
    """int32[n]. Raises EngineError for a number that can be no id; which ids there are is checked on the sample."""
    if not values:
        return NO_IDS
    try:
        column = ids(values)
    except OverflowError as err:
        raise EngineError("the engine answered with an id that is none", fault="unreadable") from err
    if int(ids_array(column).min()) < 0:
        raise EngineError("the engine answered with an id below 0", fault="unreadable")
    return column


def finish_of(raw: str | None) -> Finish:
    """The engine's word for how it ended. Raises EngineError for one that means nothing here."""
    known = FINISHES.get(raw or "")
    if known is None:
        raise EngineError(f"the engine ended with {raw!r}"[:300], fault=finish_fault(raw))
    return known


def finish_fault(raw: str | None) -> str:
    """The fault of an end that means nothing here. Metrics count by it, so there are few."""
    word = _WORD.sub("_", (raw or "none")[:40]).lower()
    return f"finish_{word if word in KNOWN_ENDS else 'other'}"


def known_floats(values: Sequence[float | None]) -> Floats:
    """float32[n] of log-probabilities; NaN for those that the engine did not know."""
    return floats(float("nan") if value is None or value <= UNKNOWN else value for value in values)


def version_of(label: str) -> int | None:
    """The number of a label: `default` is 0, else the digits at its end (`step-7` is 7). None: it has none."""
    if label == "default":
        return 0
    match = _NUMBERED.fullmatch(label)
    return int(match.group(1)) if match else None


def runs_of(labels: Sequence[Label], n: int) -> tuple[tuple[int, int], ...]:
    """Version runs of a sample of n tokens, without repeats. Empty, which makes a call untrainable, when a label has no
    number or the runs leave tokens out."""
    runs: list[tuple[int, int]] = []
    for label, start in labels:
        version = version_of(label)
        if version is None:
            return ()
        if start >= n or (runs and runs[-1][1] == version):
            continue
        runs.append((start, version))
    return tuple(runs) if runs and runs[0][0] == 0 else ()


def all_known(values: Floats) -> bool:
    """Whether there are values and all of them are known."""
    return bool(values) and bool(np.isfinite(floats_array(values)).all())


def base64_bytes(text: str | None) -> bytes | None:
    """Raises EngineError."""
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as err:
        raise EngineError("the engine's routed experts are not base64", fault="unreadable") from err


def count_fault(ids: Ids, said: int | None) -> str | None:
    """The fault of a reply whose own count of sampled tokens is not that of its ids."""
    return "usage_mismatch" if said is not None and said != count(ids) else None


def sample_of(taken: Taken, runs: tuple[tuple[int, int], ...], engine_ref: str, prompt_ids: Ids) -> Sample:
    """The sample that a reply to a prompt is."""
    routes, fault = None, taken.fault
    if taken.experts is not None and taken.ids:
        try:
            routes = read_npy(taken.experts, count(prompt_ids) + count(taken.ids) - 1)
        except ValueError:
            fault = fault or "routes_unreadable"
    return Sample(
        ids=taken.ids,
        logprobs=taken.logprobs,
        finish=taken.finish,
        version_runs=runs,
        prompt_ids=taken.prompt_ids,
        engine_ref=engine_ref,
        cached_tokens=taken.cached,
        fault=fault,
        routes=routes,
    )
