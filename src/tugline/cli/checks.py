"""What a start would refuse, found without starting anything."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tugline.cli.wiring import check_routes, engine_for, other_engine, served_dialects, text_model
from tugline.config.load import Loaded
from tugline.core.errors import ConfigError
from tugline.harnesses import harness

_KEYS = {"engine": "spec", "model": "model"}
"""What engines call their settings -> the name in `[engine]` or `[engines.NAME]`."""


def check_start(loaded: Loaded) -> None:
    """Engines, their models and scripts, routes, harness and plugins. Raises ConfigError naming the setting's place."""
    settings = loaded.settings
    try:
        check_routes(settings, ())
        harness(settings.harness.name)
    except ConfigError as err:
        raise _placed(err, "harness.name" if err.where == "harness" else err.where, loaded) from err
    served_dialects()
    with tempfile.TemporaryDirectory(prefix="tugline-check-") as scratch:
        for name in (None, *settings.engines):
            try:
                run = Path(scratch)
                engine = engine_for(settings, run) if name is None else other_engine(settings, name, run)
                one = settings.engine if name is None else settings.engines[name]
                text_model(one, engine.info.model_dir, name or "")
            except ConfigError as err:
                raise _placed(err, _engine_key(err, name, loaded), loaded) from err


def _engine_key(err: ConfigError, name: str | None, loaded: Loaded) -> str:
    """The setting that an engine's error is about. Errors inside a script or a model directory name that file."""
    section = "engine" if name is None else f"engines.{name}"
    if err.where.startswith(f"{section}."):
        return err.where
    settings = loaded.settings
    model = settings.engine.model if name is None else settings.engines[name].model
    in_model = model is not None and err.where.startswith(str(Path(model).expanduser()))
    return f"{section}.{_KEYS.get(err.where, 'model' if in_model else 'spec')}"


def _placed(err: ConfigError, key: str, loaded: Loaded) -> ConfigError:
    """The same error at the file and line, variable or flag that set the setting."""
    named = err.where in (*_KEYS, "harness", key)
    text = err.message.removeprefix(f"{err.where}: ") if named else err.message
    place = loaded.sources.get(key)
    return ConfigError(f"{key}: {text}" if place else text, where=place or key)
