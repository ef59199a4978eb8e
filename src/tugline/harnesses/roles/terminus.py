"""Terminus-2: one conversation without tools. The calls of a summary are known by how they begin, or by a name made of
their session's."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tugline.core.items import Request
from tugline.core.roles import Hint
from tugline.forest.quotes import last_user
from tugline.harnesses.roles.marks import Opening

SESSION = "x-session-id"
_STEP = re.compile(r".*-summarization-\d+-(?:summary|questions|answers)", re.DOTALL)
SUMMARY: tuple[Opening, ...] = (
    Opening(35, "3a1ef84f474357f9"),
    Opening(48, "d20857cfa874ec37"),
    Opening(42, "8c864b0599d831fa"),
    Opening(27, "639c6ec2e69865d1"),
)
"""A summary, questions about it, the answers; what is asked for if that fails."""


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """The role alone: the conversation goes on under the session's own name."""
    if request.head.tools:
        return None
    asks = any(opening.opens(last_user(request.items)) for opening in SUMMARY)
    return Hint("compaction") if asks or _STEP.fullmatch(headers.get(SESSION, "")) else None
