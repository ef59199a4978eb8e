"""Qwen Code: no ids by default. Compaction by the two tags that it asks for; memory is extracted by an agent that is
given the whole conversation under a system text of its own."""

from __future__ import annotations

from collections.abc import Mapping

from tugline.core.items import Request
from tugline.core.roles import Hint
from tugline.forest.quotes import last_user
from tugline.harnesses.roles.marks import Opening, agent, system

NAME = "QwenCode/"
TAGS = ("<analysis>", "<state_snapshot>")
MEMORY = Opening(60, "676ee282ee7e5b1a")
NESTED = " subagent "
FIRST_WORDS = 120
"""Characters of a system text in which an agent says what it is."""


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """The role alone."""
    if not agent(headers).startswith(NAME):
        return None
    if all(tag in last_user(request.items) for tag in TAGS):
        return Hint("compaction")
    who = system(request)
    if MEMORY.opens(who):
        return Hint("auxiliary")
    # Its sub-agents call themselves so too; they begin with a task of their own.
    return Hint(carrying="auxiliary" if NESTED in who[:FIRST_WORDS] else None)
