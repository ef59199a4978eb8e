"""Paths as people write them."""

from __future__ import annotations

from pathlib import Path

from tugline.core.errors import ConfigError


def expanded(path: str | Path, where: str) -> Path:
    """The path with `~` and `~user` replaced. Raises ConfigError, naming the setting or argument, when there is no such
    user or no home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as err:
        raise ConfigError(f"{path}: {err}", where=where) from err
