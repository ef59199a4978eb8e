"""Codex: threads, their parents and the kind of a request are in headers."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tugline.core.items import Request
from tugline.core.roles import Hint
from tugline.core.turn import Role

THREAD = "thread-id"
PARENT = "x-codex-parent-thread-id"
SUBAGENT = "x-openai-subagent"
WINDOW = "x-codex-window-id"
ABOUT = "x-codex-turn-metadata"


class _About(msgspec.Struct):
    request_kind: str = ""
    thread_id: str | None = None


_DECODER = msgspec.json.Decoder(_About)


def rule(headers: Mapping[str, str], request: Request) -> Hint | None:
    """Every thread has an id; the window, counted up by a compaction, begins with it."""
    if not any(name in headers for name in (WINDOW, ABOUT, PARENT, SUBAGENT)):
        return None
    about = _about(headers.get(ABOUT, ""))
    window = headers.get(WINDOW, "").rpartition(":")[0]
    thread = headers.get(THREAD) or about.thread_id or window or None
    return Hint(_role(headers, about.request_kind), thread, headers.get(PARENT))


def _role(headers: Mapping[str, str], kind: str) -> Role | None:
    sort = headers.get(SUBAGENT, "")
    if "compact" in (kind, sort):
        return "compaction"
    if "compaction" in kind:
        return "compaction"
    if sort.startswith("memor"):
        return "auxiliary"  # notes for later sessions
    if sort or PARENT in headers:
        return "subagent"
    return "main" if kind == "turn" else None


def _about(text: str) -> _About:
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return _About()
