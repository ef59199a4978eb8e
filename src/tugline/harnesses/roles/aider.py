"""aider: never any tools, no ids. Summaries and commit messages have system texts of their own."""

from __future__ import annotations

from collections.abc import Mapping

from tugline.core.items import Request
from tugline.core.roles import Hint
from tugline.harnesses.roles.marks import Opening, system

SUMMARY = Opening(63, "769f88d503373ea4")
COMMIT = Opening(59, "3d777042c9343b60")


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """The role alone."""
    if request.head.tools:
        return None
    who = system(request)
    if SUMMARY.opens(who):
        return Hint("compaction")
    return Hint("auxiliary") if COMMIT.opens(who) else None
