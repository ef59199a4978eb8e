"""Reading files that people wrote by hand: regular, not too large, UTF-8 without NUL, else a TaskError names it."""

from __future__ import annotations

from pathlib import Path

from tugline.core.errors import TaskError


def read_text(file: Path, where: str, limit: int) -> str:
    """Content of a text file of at most `limit` bytes. Raises TaskError."""
    try:
        if not file.is_file():
            raise TaskError("is not a regular file" if file.exists() else "is missing", where=where)
        with file.open("rb") as f:
            data = f.read(limit + 1)
        if len(data) > limit:
            raise TaskError(f"is larger than {limit} bytes", where=where)
        if b"\0" in data:
            raise TaskError("holds a NUL byte", where=where)
        return data.decode("utf-8")
    except UnicodeDecodeError as err:
        raise TaskError(f"is not UTF-8 text: {err.reason} at byte {err.start}", where=where) from err
    except OSError as err:
        raise TaskError(f"cannot be read: {err.strerror}", where=where) from err
