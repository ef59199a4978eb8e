"""Which experts of a mixture-of-experts model tokens went to: a column beside the ids."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

Kind = Literal["uint8", "uint16", "int16", "int32"]


@dataclass(frozen=True, slots=True)
class Routes:
    """`data`: little-endian `kind`[rows, layers, picks], the experts' numbers.

    Row i is of the pass over the token at position `start` + i, which gives the distribution of the token behind it. So
    a prompt with n sampled tokens has routes up to its last token but one: the last one was never passed over.
    """

    start: int
    layers: int
    picks: int
    kind: Kind
    data: bytes

    @property
    def width(self) -> int:
        """Bytes per row."""
        return self.layers * self.picks * np.dtype(self.kind).itemsize

    @property
    def end(self) -> int:
        """Position behind the last row's."""
        return self.start + len(self.data) // self.width

    def array(self) -> npt.NDArray[Any]:
        """Read-only [rows, layers, picks] view."""
        dtype = np.dtype(self.kind).newbyteorder("<")
        return np.frombuffer(self.data, dtype).reshape(-1, self.layers, self.picks)

    def since(self, position: int) -> Routes:
        """Without the rows in front of a position."""
        surplus = min(max(0, position - self.start), self.end - self.start)
        return replace(self, start=self.start + surplus, data=self.data[surplus * self.width :]) if surplus else self


def read_npy(data: bytes, end: int) -> Routes:
    """The rows in front of position `end` out of a NumPy file's bytes. Raises ValueError for anything else than a
    whole-numbered array of three dimensions, none of the last two empty."""
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (EOFError, TypeError, OverflowError, MemoryError) as err:
        raise ValueError(f"no array: {err}") from err
    if array.ndim != 3 or 0 in array.shape[1:] or array.dtype.name not in get_args(Kind):
        raise ValueError(f"an array of {array.dtype} {array.shape}, not of whole numbers [rows, layers, picks]")
    rows, layers, picks = array.shape
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return Routes(end - rows, layers, picks, cast("Kind", array.dtype.name), little.tobytes())


def write_npy(routes: Routes) -> bytes:
    """As engines send them; the position of the first row is not in it."""
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(routes.array()), allow_pickle=False)
    return out.getvalue()


def joined(parts: Iterable[Routes | None]) -> Routes | None:
    """Rows from position 0 on out of parts in order, each from its own start. None where some are missing: a part that
    is None, begins behind the end of those before it, or is of another shape."""
    whole: Routes | None = None
    data = bytearray()
    for part in parts:
        if part is None:
            return None
        if whole is None:
            whole = replace(part, data=b"")
        if (part.layers, part.picks, part.kind) != (whole.layers, whole.picks, whole.kind) or whole.start != 0:
            return None
        if not 0 <= part.start * part.width <= len(data):
            return None
        del data[part.start * part.width :]
        data += part.data
    return replace(whole, data=bytes(data)) if whole is not None else None
