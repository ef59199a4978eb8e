"""Who is calling: one credential per session, kept only as a digest, refusable."""

from __future__ import annotations

from tugline.core.errors import Forbidden, Unauthorized
from tugline.core.ident import new_secret, secret_digest


class SecretTable:
    """Maps live secrets to sessions. Ended secrets are remembered as digests so that their holder learns why."""

    def __init__(self) -> None:
        self._live: dict[bytes, str] = {}
        self._ended: set[bytes] = set()

    def issue(self, session_id: str) -> str:
        """A fresh 256-bit secret for a session. The clear text is returned once and not kept."""
        secret = new_secret()
        self._live[secret_digest(secret)] = session_id
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
        for digest in [d for d, s in self._live.items() if s == session_id]:
            del self._live[digest]
            self._ended.add(digest)
