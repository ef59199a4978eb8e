"""Identifiers and secrets."""

from __future__ import annotations

import hashlib
import os
import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def _base32(value: int, width: int) -> str:
    out = []
    for _ in range(width):
        value, digit = divmod(value, 32)
        out.append(_ALPHABET[digit])
    return "".join(reversed(out))


def new_id(prefix: str) -> str:
    """`prefix_` + 9 time characters + 12 random ones: unique, sorts by creation time, safe as a file name."""
    return f"{prefix}_{_base32(time.time_ns() // 1_000_000, 9)}{_base32(int.from_bytes(os.urandom(8), 'big'), 12)}"


def new_secret() -> str:
    """256 random bits for one session, as a key that looks like a provider's. Never derived from an id."""
    return "tug-" + secrets.token_urlsafe(32)


def secret_digest(secret: str) -> bytes:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).digest()
