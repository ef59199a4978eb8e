"""What a harness itself says of a request: which of its agents sends it, and what for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tugline.core.items import Request
from tugline.core.turn import Role

MAX_THREAD = 200
"""Characters of a thread's name that count: it comes from the agent."""


@dataclass(frozen=True, slots=True)
class Hint:
    """None = the request does not say. A thread is the conversation of one agent, by the name that its harness gives
    it; `parent_thread` is the thread that started it."""

    role: Role | None = None
    thread: str | None = None
    parent_thread: str | None = None
    carrying: Role | None = None
    """The role of a root that carries turns of the main conversation: an agent that was handed all of it."""


NO_HINT = Hint()


def first_hint(
    rules: Iterable[Callable[[Mapping[str, str], Request], Hint | None]], headers: Mapping[str, str], request: Request
) -> Hint:
    """What the first rule says that knows the request; NO_HINT when none does. Header names are lower case."""
    for rule in rules:
        found = rule(headers, request)
        if found is not None:
            return replace(found, thread=_named(found.thread), parent_thread=_named(found.parent_thread))
    return NO_HINT


def _named(thread: str | None) -> str | None:
    return None if thread is None else thread[:MAX_THREAD]
