"""What the form of a root says of it: side job, summary, another agent, or the main conversation without its tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tugline.core.items import Assistant, Item, Request, System, ToolResult, UserText
from tugline.core.turn import Turn
from tugline.forest import quotes

WHO = 80
"""Characters of a system text that say whose it is. What follows may change: dates, states of repositories."""


@dataclass(frozen=True, slots=True)
class Main:
    """The main conversation so far: its turns, and those of them that begin one."""

    turns: tuple[Turn, ...]
    roots: tuple[Turn, ...]

    @classmethod
    def of(cls, turns: Sequence[Turn], newest: int) -> Main:
        """Among the turns of a session; of those only the newest are compared with what a request says."""
        mine = [turn for turn in turns if turn.role == "main"]
        return cls(tuple(mine[-newest:]), tuple(turn for turn in mine if turn.parent is None))


def without_tools(request: Request, main: Main) -> Literal["main", "compaction", "auxiliary"]:
    """The role of a root without tools in a session that has them.

    What is to be JSON is a side job. A wish for a summary of the conversation makes it a compaction, and so does the
    conversation with an instruction behind it. With results behind it, under its own system text, it goes on without
    tools. What quotes single words of it is a side job.
    """
    if request.options.output is not None:
        return "auxiliary"
    own = _same_agent(request.items, main.roots)
    if quotes.asks_for_summary(request.items, systems=not own):
        return "compaction"
    if quotes.asks_for_title(request.items):
        return "auxiliary"
    if any(isinstance(item, Assistant) for item in request.items):
        goes_on = own and isinstance(request.items[-1], ToolResult) and quotes.repeats(request.items, main.turns)
        return "main" if goes_on else "compaction"
    return "compaction" if quotes.retells(request.items, main.turns, main.roots) else "auxiliary"


def another_agent(request: Request, main: Main) -> bool:
    """Whether a root is the first request of an agent besides the main one: other tools under another system text, and
    nothing said yet."""
    if not main.roots or any(isinstance(item, Assistant) for item in request.items):
        return False
    names = {tool.name for tool in request.head.tools}
    return not _same_agent(request.items, main.roots) and all(
        names != {tool.name for tool in root.head.tools} for root in main.roots
    )


def handed_over(request: Request, main: Main, others: Iterable[Turn]) -> bool:
    """Whether a root carries turns of the main conversation and none of another: an agent that was given all of it."""
    return quotes.repeats(request.items, main.turns) and not quotes.repeats(request.items, others)


def _same_agent(items: Sequence[Item], roots: Sequence[Turn]) -> bool:
    return any(_who(items) == _who(root.items) for root in roots)


def _who(items: Sequence[Item]) -> str:
    """How the longest system text in front begins: harnesses put short lines of changing numbers before it."""
    front: list[str] = []
    for item in items:
        if isinstance(item, UserText):
            break
        if isinstance(item, System):
            front.append(item.text.strip())
    return max(front, key=len, default="")[:WHO]
