"""Reading files that somebody else wrote: of bounded size, regular, and of the type that they should be."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TypeVar

import msgspec

from tugline.core.errors import ConfigError

SMALL = 16 << 20
"""Bytes of a settings file or template. The largest known, with every added token spelled out, has 1 MiB."""
LARGE = 512 << 20
"""Bytes of a tokenizer. The largest known has 33 MiB."""
_LFS = b"version https://git-lfs"

_T = TypeVar("_T")


def read(file: Path, limit: int = SMALL) -> bytes | None:
    """The file's bytes, or None when there is none. Raises ConfigError naming it."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for ever
            raise ConfigError("is no regular file", where=str(file))
        if found.st_size > limit:
            raise ConfigError(f"has {found.st_size} bytes; more than {limit} are not read", where=str(file))
        with file.open("rb") as opened:
            raw = opened.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as err:
        raise ConfigError(f"cannot be read: {err.strerror}", where=str(file)) from err
    if len(raw) > limit:
        raise ConfigError(f"has more than {limit} bytes", where=str(file))
    if raw.startswith(_LFS):
        raise ConfigError("is a Git LFS pointer: the file itself was not fetched (git lfs pull)", where=str(file))
    return raw


def text(file: Path) -> str | None:
    """A text file, or None when there is none. Raises ConfigError naming it."""
    raw = read(file)
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError as err:
        raise ConfigError(f"not UTF-8: {err}", where=str(file)) from err


def parsed(file: Path, raw: bytes, kind: type[_T]) -> _T:
    """JSON of a known type. Raises ConfigError naming the file."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise ConfigError(f"not valid: {err}", where=str(file)) from err


def optional(file: Path, kind: type[_T]) -> _T | None:
    """A JSON file, or None when there is none. Raises ConfigError naming it."""
    raw = read(file)
    return None if raw is None else parsed(file, raw, kind)
