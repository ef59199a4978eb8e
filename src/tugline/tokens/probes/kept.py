"""Verdicts that are kept: the same files give the same verdict, so that a start takes no second.

This layer reads no files. Where the bytes lie is for whoever hands in the `VerdictCache`; it adds to the key what it
knows of the code at work (versions of libraries).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tugline.tokens.fallback import Trial
from tugline.tokens.messages import Shape
from tugline.tokens.probes.verdict import SCHEMA, Verdict
from tugline.tokens.splice import Rules


class VerdictCache(Protocol):
    """Bytes by key. Neither method raises; two processes may use one at once."""

    def get(self, key: str) -> bytes | None:
        """What was put, or None. It may be damaged or another's: `unpack` tells."""
        ...

    def put(self, key: str, value: bytes) -> None:
        """Keep it if that is possible."""
        ...


@dataclass(frozen=True, slots=True)
class Judged:
    """All that the trials of one model found out."""

    verdict: Verdict
    rules: Rules
    shape: Shape
    hand: Trial | None = None
    """The family's bridge in `renderers`, where no tail can be spliced."""


class _Kept(msgspec.Struct):
    schema: int
    key: str
    judged: Judged


def key_of(parts: Iterable[bytes]) -> str:
    """sha256 over everything that a verdict depends on, in order."""
    digest = hashlib.sha256(f"tugline verdict {SCHEMA}".encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def pack(key: str, judged: Judged) -> bytes:
    """sha256 of the JSON behind it, a line break, JSON."""
    body = msgspec.json.encode(_Kept(SCHEMA, key, judged))
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def unpack(key: str, stored: bytes | None) -> Judged | None:
    """None for what is damaged, of another schema or of another key."""
    if stored is None:
        return None
    total, _, body = stored.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != total:
        return None
    try:
        kept = msgspec.json.decode(body, type=_Kept)
    except msgspec.DecodeError:
        return None
    return kept.judged if kept.schema == SCHEMA and kept.key == key else None
