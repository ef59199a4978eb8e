"""Engines: token ids in, sampled ids and log-probabilities out. `make_engine` builds one from its name."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack

from tugline.core.contracts import Engine
from tugline.core.errors import ConfigError
from tugline.core.paths import expanded
from tugline.engines.api import LiveWeights, Scorer
from tugline.engines.modeldir import Asked

__all__ = ["EngineOptions", "LiveWeights", "Scorer", "make_engine"]


class EngineOptions(TypedDict, total=False):
    """Settings that only some engines use."""

    device: str
    threads: int
    slots: int
    seed: int | None
    asked: Asked
    """What settings choose instead of the model directory's own."""


def make_engine(spec: str, *, model: Path | str | None, journal_dir: Path, **options: Unpack[EngineOptions]) -> Engine:
    """An engine, not started. `spec` is `embedded` or `scripted:FILE`; `model` is a model directory.

    Raises ConfigError for an unknown name, a broken model directory or an invalid script.
    """
    kind, _, argument = spec.partition(":")
    if kind not in ("embedded", "scripted"):
        later = kind in ("vllm", "sglang", "openai")
        raise ConfigError(
            f"{spec!r} is {'not there yet' if later else 'no engine'}; there are: embedded, scripted:FILE",
            where="engine",
        )
    if model is None:
        raise ConfigError(f"{spec!r} needs a model directory", where="model")
    if kind == "scripted":
        from tugline.engines.scripted import ScriptedEngine

        if not argument:
            raise ConfigError("name the script: scripted:FILE", where="engine")
        script, chosen = expanded(argument, "engine.spec"), options.get("asked") or Asked()
        return ScriptedEngine(script, Path(model), journal_dir, seed=options.get("seed"), asked=chosen)
    if argument:
        raise ConfigError(f"embedded takes no argument, got {argument!r}", where="engine")
    from tugline.engines.embedded.engine import EmbeddedEngine

    return EmbeddedEngine(Path(model), journal_dir, **options)
