"""Claude Code: sub-agents by header, compaction by the two tags that its instruction asks for, checks of hooks and
what users ask by the way by how their texts begin."""

from __future__ import annotations

from collections.abc import Mapping

from tugline.core.items import Request, System
from tugline.core.roles import Hint
from tugline.forest.quotes import last_user
from tugline.harnesses.roles.marks import Opening

SESSION = "x-claude-code-session-id"
AGENT = "x-claude-code-agent-id"
PARENT = "x-claude-code-parent-agent-id"
NESTED = "cc_is_subagent=true"
TAGS = ("<analysis>", "<summary>")
HOOK = Opening(20, "64d74c7a4e87a6d5")
RECAP = Opening(41, "ce92a6f08800504f")
ASIDE = "<system-reminder>This is a side question"
"""Asked behind the conversation, and forgotten by it: a recap for a user who was away, a question of his by the way,
which may stand behind another user text that still waits."""
FRONT = 3
"""System texts in front: a line about the program, who it is, what it is to do."""


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """The main agent's thread is the session; agents below it have ids of their own."""
    session, named = headers.get(SESSION), headers.get(AGENT)
    nested = named is not None or _marked(request)
    if session is None and not nested:
        return None
    told = last_user(request.items)
    compacts = all(tag in told for tag in TAGS)
    if not nested:
        judges = any(HOOK.opens(item.text) for item in request.items[:FRONT] if isinstance(item, System))
        aside = judges or RECAP.opens(told) or ASIDE in told
        return Hint("auxiliary" if aside else "compaction" if compacts else None, session)
    parent = headers.get(PARENT, session) if named is not None else None
    return Hint("compaction" if compacts else "subagent", named, parent)


def _marked(request: Request) -> bool:
    """A sub-agent says so in its first system texts."""
    return any(NESTED in item.text[:400] for item in request.items[:2] if isinstance(item, System))
