"""The operator's credential: a fresh token per start, in a file that only its owner can read."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from tugline.core.errors import RunError, Unauthorized


class Token:
    """What every request but /healthz must bring. Only its digest is kept."""

    def __init__(self, clear: str) -> None:
        self._digest = _digest(clear)

    def check(self, authorization: str | None) -> None:
        """Compare an Authorization header in constant time. Raises Unauthorized."""
        scheme, _, given = (authorization or "").partition(" ")
        same = hmac.compare_digest(_digest(given.strip()), self._digest)
        if scheme.lower() != "bearer" or not same:
            raise Unauthorized(
                "send the control plane's token: Authorization: Bearer TOKEN (it is in RUN/control.token)"
            )


def create_token(file: Path) -> str:
    """A new token in a new file of mode 0600. A file left by a dead gateway is replaced; the run's lock is ours.

    Raises RunError.
    """
    clear = "tugctl-" + secrets.token_urlsafe(32)
    try:
        file.unlink(missing_ok=True)
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as out:
            out.write(clear + "\n")
    except OSError as err:
        raise RunError(f"{file} cannot be created: {err.strerror}") from err
    return clear


def read_token(file: Path) -> str:
    """Raises RunError when there is none or it may not be read."""
    try:
        return file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as err:
        raise RunError(f"{file} cannot be read ({err}); is the gateway of this run running, and yours?") from err


def _digest(clear: str) -> bytes:
    return hashlib.sha256(clear.encode("utf-8", "surrogateescape")).digest()
