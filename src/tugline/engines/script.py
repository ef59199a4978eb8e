"""Scripts for the scripted engine: read, checked field by field, never run half."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from tugline.core.errors import ConfigError
from tugline.engines.modeldir import ModelFiles

_T = TypeVar("_T")


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call. `arguments` is printed verbatim, valid JSON or not."""

    name: str
    arguments: str = "{}"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One generation."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[Call, ...] = ()
    ids: tuple[int, ...] | None = None
    """Exactly these ids instead of spelling text."""
    finish: Literal["stop", "length"] = "stop"
    cut: float | None = None
    """With finish `length`: how many tokens are sampled. Below 1, the share of the turn's tokens."""
    delay_s: float = 0.0
    fail_after_tokens: int | None = None
    """Fail once per session with a retryable error; the retry plays the step."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First line of a script."""

    noncanonical: float = 0.0
    """Share of ordinary tokens that are replaced by another spelling of the same bytes."""
    seed: int | None = None
    repeat: bool = False
    """Start again when the script ends."""


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    settings: Settings


@dataclass(frozen=True, slots=True)
class Script:
    """A checked script with at least one step."""

    steps: tuple[Step, ...]
    settings: Settings


def read_script(source: Path | Sequence[object], model: ModelFiles) -> Script:
    """A file, or its lines as objects (dicts or `Step`s). Raises ConfigError naming line and field."""
    name = str(source) if isinstance(source, Path) else "script"
    settings = Settings()
    steps: list[Step] = []
    for number, value in _lines(source, name):
        where = f"{name} line {number}"
        if not steps and isinstance(value, dict) and "settings" in value:
            settings = _convert(value, _Head, where).settings
            if not 0.0 <= settings.noncanonical <= 1.0:
                raise ConfigError("noncanonical must lie in [0, 1]", where=f"{where} [settings.noncanonical]")
            continue
        step = _convert(value, Step, where)
        check_step(step, model, where)
        steps.append(step)
    if not steps:
        raise ConfigError("the script has no generation", where=name)
    return Script(tuple(steps), settings)


def _lines(source: Path | Sequence[object], name: str) -> Iterator[tuple[int, object]]:
    if not isinstance(source, Path):
        yield from enumerate(map(msgspec.to_builtins, source), start=1)
        return
    try:
        lines: Iterable[bytes] = source.read_bytes().splitlines()
    except OSError as err:
        raise ConfigError(f"cannot be read: {err}", where=name) from err
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line)
        except msgspec.DecodeError as err:
            raise ConfigError(f"not JSON: {err}", where=f"{name} line {number}") from err


def _convert(value: object, kind: type[_T], where: str) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as err:
        raise ConfigError(str(err), where=where) from err


def check_step(step: Step, model: ModelFiles, where: str) -> None:
    """Raises ConfigError naming the field. Whether the model's format can hold the turn is not looked at."""
    if step.delay_s < 0:
        raise ConfigError("must not be negative", where=f"{where} [delay_s]")
    if step.fail_after_tokens is not None and step.fail_after_tokens < 0:
        raise ConfigError("must not be negative", where=f"{where} [fail_after_tokens]")
    if step.cut is not None and (step.finish != "length" or step.cut < 0):
        raise ConfigError('needs finish "length" and must not be negative', where=f"{where} [cut]")
    if step.ids is None:
        return
    if step.text or step.reasoning or step.calls:
        raise ConfigError("give either ids or text, reasoning and calls", where=f"{where} [ids]")
    bad = next((i for i in step.ids if not 0 <= i < model.vocab), None)
    if bad is not None:
        raise ConfigError(f"{bad} is outside the vocabulary of {model.vocab}", where=f"{where} [ids]")
    if step.finish == "stop" and (not step.ids or step.ids[-1] not in model.stop_ids):
        raise ConfigError(
            f'finish "stop" needs a stop token as the last id, one of {list(model.stop_ids)}', where=f"{where} [ids]"
        )
