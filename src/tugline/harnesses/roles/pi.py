"""pi: one conversation; summaries are asked for without tools, under a system text of their own."""

from __future__ import annotations

from collections.abc import Mapping

from tugline.core.items import Request
from tugline.core.roles import Hint
from tugline.harnesses.roles.marks import Opening, agent, system

NAME = "pi/"
SUMMARY = Opening(42, "5068355638062958")


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """The role alone."""
    if not agent(headers).startswith(NAME):
        return None
    return Hint("compaction" if not request.head.tools and SUMMARY.opens(system(request)) else None)
