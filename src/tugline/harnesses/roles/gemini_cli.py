"""Gemini CLI: no ids at all. Utility calls want JSON or go to the small model; sub-agents must report by a tool."""

from __future__ import annotations

from collections.abc import Mapping

from tugline.core.items import Request
from tugline.core.roles import Hint
from tugline.forest.quotes import last_user
from tugline.harnesses.roles.marks import agent, system

NAME = "GeminiCLI"
UTILITY = "flash-lite"
REPORT = "complete_task"
SNAPSHOT = "<state_snapshot>"
NOTES = ("scratchpad", "<analysis>")


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """The role alone."""
    if not agent(headers).startswith(NAME):
        return None
    told = last_user(request.items)
    if SNAPSHOT in f"{told}{system(request)}" and any(note in told for note in NOTES):
        return Hint("compaction")
    if not request.head.tools and (request.options.output is not None or UTILITY in request.model):
        return Hint("auxiliary")
    if any(tool.name == REPORT for tool in request.head.tools):
        return Hint("subagent")
    return Hint()
