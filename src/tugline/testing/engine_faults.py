"""What a server of an engine can do wrong, by name, and what it makes of a reply. See `engine_server`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec

from tugline.core.columns import floats, floats_array, ids, ids_list
from tugline.core.contracts import EngineInfo, Sample

Fault = Literal[
    "http_500",
    "http_503",
    "http_429",
    "hang",
    "hang_inside",
    "truncated",
    "reset",
    "wrong_echo",
    "no_echo",
    "no_logprobs",
    "nan",
    "infinite",
    "minus_infinite",
    "wrong_count",
    "too_many",
    "wrong_usage",
    "strange_id",
    "negative_id",
    "huge_id",
    "no_stop",
    "old_version",
    "other_reply",
    "duplicate",
    "empty",
    "wrong_logprob_ids",
    "positive",
    "no_versions",
    "drop",
    "no_finish",
    "strange_finish",
    "garbage",
    "short_routes",
    "wrong_routes",
    "not_json",
]
_NUMBERS: dict[str | None, str] = {"nan": "NaN", "infinite": "Infinity", "minus_infinite": "-Infinity"}


def logprobs_of(sample: Sample, fault: Fault | None) -> list[Any]:
    """A float per token, or what the fault makes of it."""
    values: list[Any] = [float(v) for v in floats_array(sample.logprobs)]
    if fault in _NUMBERS and values:
        values[0] = _NUMBERS[fault]
    if fault == "positive" and values:
        values[-1] = 0.5
    if fault == "wrong_count":
        values = values[:-1]
    return [*values, -1.0] if fault == "too_many" else values


def twisted(sample: Sample, fault: Fault | None, info: EngineInfo) -> Sample:
    """The sample that the inner engine drew, or what the fault makes of it."""
    said, values = ids_list(sample.ids), floats_array(sample.logprobs).tolist()
    strange = {"strange_id": info.vocab, "negative_id": -1}
    if fault in strange:
        said[len(said) // 2] = strange[fault]
    if fault == "no_stop" and sample.finish == "stop":
        said, values = said[:-1], values[:-1]
    return replace(sample, ids=ids(said), logprobs=floats(values))


def version_said(now: str, fault: Fault | None) -> str:
    """The label of the weights, or that of older ones."""
    return "1" if fault == "old_version" else now


def prompt_of(prompt: list[int], fault: Fault | None) -> list[int] | None:
    """The echo, or what the fault makes of it."""
    if fault == "wrong_echo":
        return [prompt[0], *prompt]
    return None if fault == "no_echo" else prompt


def as_python(value: Any) -> bytes:
    """As engines in Python write it: numbers that are none are bare words."""
    said = msgspec.json.encode(value)
    for word in _NUMBERS.values():
        said = said.replace(f'"{word}"'.encode(), word.encode())
    return said


def ids_said(sample: Sample, fault: Fault | None = None) -> list[int]:
    """As a JSON list."""
    said = ids_list(sample.ids)
    return [1 << 40, *said[1:]] if fault == "huge_id" else said
