"""Token columns: ids as little-endian int32 bytes, log-probabilities as little-endian float32 bytes.

Ids stay bytes from the moment an engine's reply is decoded until a trainer reads them: `bytes.startswith` compares
100k ids in 5 us where two lists need 1 ms, and a list of ints costs nine times the memory.
An unknown log-probability is NaN, never 0 (0 would mean probability one).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NewType, cast

import numpy as np
import numpy.typing as npt

Ids = NewType("Ids", bytes)
"""int32 little-endian token ids; length in bytes is 4 x number of tokens."""
Floats = NewType("Floats", bytes)
"""float32 little-endian values in nats; NaN = unknown."""

NO_IDS = Ids(b"")
NO_FLOATS = Floats(b"")
WIDTH = 4
"""Bytes per element of either column."""

_I32 = np.dtype("<i4")
_F32 = np.dtype("<f4")


def ids(values: Iterable[int]) -> Ids:
    """Pack token ids. Raises OverflowError for a value outside int32."""
    return Ids(np.asarray(list(values), dtype=_I32).tobytes())


def floats(values: Iterable[float]) -> Floats:
    """Pack log-probabilities (nats) as float32."""
    return Floats(np.asarray(list(values), dtype=_F32).tobytes())


def ids_array(column: Ids) -> npt.NDArray[np.int32]:
    """Read-only int32[n] view of the column; no copy."""
    return cast("npt.NDArray[np.int32]", np.frombuffer(column, dtype=_I32))


def floats_array(column: Floats) -> npt.NDArray[np.float32]:
    """Read-only float32[n] view of the column; no copy."""
    return cast("npt.NDArray[np.float32]", np.frombuffer(column, dtype=_F32))


def ids_list(column: Ids) -> list[int]:
    """Python ints, for libraries that take lists. Costs 36 bytes per token: keep it short-lived."""
    return cast("list[int]", ids_array(column).tolist())


def count(column: Ids | Floats) -> int:
    """Number of tokens or values in a column."""
    return len(column) // WIDTH


def take(column: Ids, start: int, stop: int | None = None) -> Ids:
    """Tokens start..stop (token indices, not bytes)."""
    return Ids(column[start * WIDTH : None if stop is None else stop * WIDTH])


def take_floats(column: Floats, start: int, stop: int | None = None) -> Floats:
    """Values start..stop (value indices, not bytes)."""
    return Floats(column[start * WIDTH : None if stop is None else stop * WIDTH])


def concat(parts: Sequence[Ids]) -> Ids:
    """Join id columns."""
    return Ids(b"".join(parts))


def concat_floats(parts: Sequence[Floats]) -> Floats:
    """Join value columns."""
    return Floats(b"".join(parts))


def last(column: Ids) -> int | None:
    """The last id, or None for an empty column."""
    return int.from_bytes(column[-WIDTH:], "little", signed=True) if column else None


def common_prefix(a: Ids, b: Ids) -> int:
    """Length in tokens of the longest common prefix."""
    if a.startswith(b):
        return count(b)
    if b.startswith(a):
        return count(a)
    n = min(len(a), len(b)) // WIDTH
    x, y = np.frombuffer(a, dtype=_I32, count=n), np.frombuffer(b, dtype=_I32, count=n)
    return int(np.argmax(x != y)) if n else 0


def nans(n: int) -> Floats:
    """n unknown values."""
    return Floats(np.full(n, np.nan, dtype=_F32).tobytes())
