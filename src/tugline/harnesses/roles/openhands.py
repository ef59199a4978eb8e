"""OpenHands: its agents always have tools; what comes without any is the condenser's."""

from __future__ import annotations

from collections.abc import Mapping

from tugline.core.items import Request
from tugline.core.roles import Hint

TITLE, NAME = "x-title", "OpenHands"


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """The role alone."""
    if headers.get(TITLE) != NAME:
        return None
    return Hint(None if request.head.tools else "compaction")
