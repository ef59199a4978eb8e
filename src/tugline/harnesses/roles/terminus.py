"""Terminus-2: one conversation; the three calls of a summary have names made of the session's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tugline.core.items import Request
from tugline.core.roles import Hint

SESSION = "x-session-id"
_STEP = re.compile(r".*-summarization-\d+-(?:summary|questions|answers)", re.DOTALL)


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """The role alone: the conversation goes on under the session's own name."""
    return Hint("compaction") if _STEP.fullmatch(headers.get(SESSION, "")) else None
