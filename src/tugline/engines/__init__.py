"""Engines: token ids in, sampled ids and log-probabilities out. `make_engine` builds one from its name."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack

from tugline.core.contracts import Engine
from tugline.core.errors import ConfigError
from tugline.core.paths import expanded
from tugline.engines.api import LiveWeights, Scorer
from tugline.engines.modeldir import Asked, read_model_dir
from tugline.engines.remote.client import Remote, read_key, remote_url, shown_url

__all__ = ["REMOTE", "EngineOptions", "Far", "LiveWeights", "Scorer", "make_engine", "read_spec", "shown_url"]

REMOTE = ("vllm", "sglang", "openai")
"""Engines behind a URL."""
KINDS = "embedded, scripted:FILE, vllm:URL, sglang:URL, openai:URL"


class Far(TypedDict, total=False):
    """Settings of an engine behind a URL, as in `[engine]`."""

    served: str | None
    key_file: str | None
    key_env: str | None
    connect_timeout: float
    reply_timeout: float
    patience: float
    prices: tuple[str, ...]


class EngineOptions(TypedDict, total=False):
    """Settings that only some engines use."""

    device: str
    threads: int
    slots: int
    seed: int | None
    asked: Asked
    """What settings choose instead of the model directory's own."""
    far: Far


def make_engine(spec: str, *, model: Path | str | None, journal_dir: Path, **options: Unpack[EngineOptions]) -> Engine:
    """An engine, not started. `spec` is `embedded`, `scripted:FILE`, `vllm:URL`, `sglang:URL` or `openai:URL`; `model`
    is a model directory, for `openai` the model's name there.

    Raises ConfigError for an unknown name, a broken model directory, an invalid script, a missing key.
    """
    kind, argument = read_spec(spec)
    if model is None:
        raise ConfigError(f"{spec!r} needs a model {'name' if kind == 'openai' else 'directory'}", where="model")
    if kind in REMOTE:
        return _remote(kind, argument, model, journal_dir, options)
    if kind == "scripted":
        from tugline.engines.scripted import ScriptedEngine

        if not argument:
            raise ConfigError("name the script: scripted:FILE", where="engine")
        script, chosen = expanded(argument, "engine.spec"), options.get("asked") or Asked()
        return ScriptedEngine(script, Path(model), journal_dir, seed=options.get("seed"), asked=chosen)
    if argument:
        raise ConfigError(f"embedded takes no argument, got {argument!r}", where="engine")
    from tugline.engines.embedded.engine import EmbeddedEngine

    options.pop("far", None)
    return EmbeddedEngine(Path(model), journal_dir, **options)  # type: ignore[misc]  # `far` is gone


def read_spec(spec: str, where: str = "engine") -> tuple[str, str]:
    """(kind, what stands behind it). Raises ConfigError, which never repeats what may be a key."""
    kind, _, argument = spec.partition(":")
    if kind not in ("embedded", "scripted", *REMOTE):
        raise ConfigError(f"{shown_url(spec)!r} is no engine; there are: {KINDS}", where=where)
    if kind in REMOTE:
        if not argument:
            raise ConfigError(f"say where it listens: {kind}:http://HOST:PORT", where=where)
        remote_url(argument, where)
    return kind, argument


def _remote(kind: str, url: str, model: Path | str, journal_dir: Path, options: EngineOptions) -> Engine:
    asked, far = options.get("asked") or Asked(), options.get("far") or Far()
    remote = Remote(
        url=remote_url(url),
        key=read_key(far.get("key_file"), far.get("key_env"), asked.section),
        connect=far.get("connect_timeout", 10.0),
        reply=far.get("reply_timeout", 1800.0),
        patience=far.get("patience", 60.0),
        served=far.get("served"),
    )
    if kind == "vllm":
        from tugline.engines.vllm import VllmEngine

        return VllmEngine(remote, read_model_dir(Path(model), asked), journal_dir)
    if kind == "sglang":
        from tugline.engines.sglang import SglangEngine

        return SglangEngine(remote, read_model_dir(Path(model), asked), journal_dir)
    from tugline.engines.openai import OpenAiEngine
    from tugline.engines.spending import prices_of

    return OpenAiEngine(remote, str(model), journal_dir, asked.context, prices_of(far.get("prices", ()), asked.section))
