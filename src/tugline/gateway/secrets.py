"""Who is calling: one credential per session, kept only as a digest, refusable."""

from __future__ import annotations

from tugline.core.errors import Forbidden, Unauthorized
from tugline.core.ident import new_secret, secret_digest

REMEMBERED = 65_536
"""Ended secrets whose holders learn that their session has ended; older ones are unknown again."""


class SecretTable:
    """Maps live secrets to sessions. Ended secrets are remembered as digests so that their holder learns why."""

    def __init__(self) -> None:
        self._live: dict[bytes, str] = {}
        self._of: dict[str, list[bytes]] = {}
        self._ended: dict[bytes, None] = {}

    def issue(self, session_id: str) -> str:
        """A fresh 256-bit secret for a session. The clear text is returned once and not kept."""
        secret = new_secret()
        digest = secret_digest(secret)
        self._live[digest] = session_id
        self._of.setdefault(session_id, []).append(digest)
        return secret

    def session_of(self, secret: str | None) -> str:
        """The session of a credential. Raises Unauthorized (unknown or absent) or Forbidden (ended)."""
        if not secret:
            raise Unauthorized("no session credential: send the session's key as the API key")
        digest = secret_digest(secret)
        session = self._live.get(digest)
        if session is not None:
            return session
        if digest in self._ended:
            raise Forbidden("this session has ended; its key is no longer valid")
        raise Unauthorized("unknown session credential")

    def revoke(self, session_id: str) -> None:
        """End every secret of a session."""
        for digest in self._of.pop(session_id, ()):
            del self._live[digest]
            self._ended[digest] = None
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
