"""opencode: sessions and their parents are in headers; titles and summaries have agents of their own."""

from __future__ import annotations

from collections.abc import Mapping

from tugline.core.items import Request
from tugline.core.roles import Hint
from tugline.harnesses.roles.marks import Opening, agent, system

SESSION = "x-session-id"
PARENT = "x-parent-session-id"
NAME = "opencode/"
TITLE = Opening(25, "626a38ce07a6da56")
SUMMARY = Opening(38, "20cf23f5661f9bcd")


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """A session is a thread; a sub-agent's names its parent."""
    if not agent(headers).startswith(NAME) and PARENT not in headers:
        return None
    thread, parent = headers.get(SESSION), headers.get(PARENT)
    if not request.head.tools:
        if TITLE.opens(system(request)):
            return Hint("auxiliary", thread, parent)
        if SUMMARY.opens(system(request)):
            return Hint("compaction", thread, parent)
    return Hint(None if parent is None or not request.head.tools else "subagent", thread, parent)
