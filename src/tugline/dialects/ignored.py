"""What of a request has no effect: named, never silent."""

from __future__ import annotations

MAX_NAMES = 64
"""Names listed; a hostile body may hold thousands. Also the longest part of a name, in characters."""


class Names:
    """Grows while a request is read: each name once, at most MAX_NAMES."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, where: str, what: str = "") -> None:
        """`what` is the wire's own word, cut to a bounded length."""
        if len(self._found) < MAX_NAMES:
            self._found[where + what[:MAX_NAMES]] = None

    def all(self) -> tuple[str, ...]:
        """In the order found."""
        return tuple(self._found)
