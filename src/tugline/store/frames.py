"""Blobs as they lie in run.db: one codec byte, eight bytes of BLAKE2b, the payload.

The checksum covers where the blob belongs (table, column, row) as well as its bytes, so that a damaged blob and a blob
in the wrong row are both found before anything tries to decompress or decode them.
"""

from __future__ import annotations

import hashlib

import numpy as np
import zstandard

from tugline.core.errors import VerifyError

RAW, ZSTD, PLANES = 0, 1, 2
"""PLANES: 4-byte elements split into four byte planes, then zstd. A quarter smaller than ZSTD for token ids."""

SUM = 8
HEADER = 1 + SUM
SMALL = 64
"""Bytes below which compression does not pay for its frame."""


def checksum(place: str, codec: int, payload: bytes) -> bytes:
    """BLAKE2b-64 over place, codec and payload."""
    return hashlib.blake2b(b"%s\0%d\0" % (place.encode(), codec) + payload, digest_size=SUM).digest()


class Frames:
    """Packs and unpacks blobs. Owns zstd contexts, so an instance belongs to one thread at a time."""

    def __init__(self) -> None:
        self._compress = zstandard.ZstdCompressor(level=3).compress
        self._decompress = zstandard.ZstdDecompressor().decompress

    def pack(self, place: str, data: bytes) -> bytes:
        """Frame bytes that have no structure we know."""
        return self._frame(place, ZSTD, data, data)

    def pack_column(self, place: str, data: bytes) -> bytes:
        """Frame a column of 4-byte elements."""
        if len(data) % 4:
            return self.pack(place, data)
        return self._frame(place, PLANES, data, _planes(data) if len(data) >= SMALL else b"")

    def unpack(self, place: str, blob: object, where: str) -> bytes:
        """The bytes framed by either method. Raises VerifyError starting with `where` when they are not the same."""
        if not isinstance(blob, bytes) or len(blob) < HEADER:
            raise VerifyError(f"{where} is damaged: no valid frame")
        codec, payload = blob[0], blob[HEADER:]
        if checksum(place, codec, payload) != blob[1:HEADER]:
            raise VerifyError(f"{where} is damaged: its checksum does not match")
        if codec == RAW:
            return payload
        if codec not in (ZSTD, PLANES):
            raise VerifyError(f"{where} has codec {codec}, which this version does not know")
        data: bytes = self._decompress(payload)
        return data if codec == ZSTD else _elements(data)

    def _frame(self, place: str, codec: int, data: bytes, prepared: bytes) -> bytes:
        payload: bytes = self._compress(prepared) if len(data) >= SMALL else data
        if len(data) < SMALL or len(payload) >= len(data):
            codec, payload = RAW, data
        return bytes((codec,)) + checksum(place, codec, payload) + payload


def _planes(data: bytes) -> bytes:
    return np.frombuffer(data, np.uint8).reshape(-1, 4).T.tobytes()


def _elements(planes: bytes) -> bytes:
    return np.frombuffer(planes, np.uint8).reshape(4, -1).T.tobytes()
