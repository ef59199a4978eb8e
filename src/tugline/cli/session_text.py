"""Sessions as people read them: local times, one line or a few. Pure: the time now is given."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

HEADER = ("session", "state", "reward", "group", "name", "since")


def ago(seconds: float) -> str:
    """`5 s`, `12 min`, `3 h` or `2 d`; a clock that was set back shows 0 s."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def listed(sessions: Sequence[Mapping[str, Any]], now: float) -> str:
    """A header and one line per session; columns are as wide as they need to be."""
    rows = [HEADER, *(_row(one, now) for one in sessions)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def described(view: Mapping[str, Any], now: float) -> dict[str, str]:
    """{label: text} of one session; what it does not have is left out."""
    state = " as ".join(filter(None, (view["state"], view["outcome"])))
    reward = "" if view["reward"] is None else f"{view['reward']:g}"
    parts = _pairs(view["parts"])
    rows = {
        "session": view["session"],
        "name": view["name"] or "",
        "group": f"{view['group']}#{view['index']}",
        "task": view["task"],
        "state": f"{state}, {ago(now - view['changed'])} ago ({_clock(view['changed'])})",
        "reason": view["reason"] or "",
        "reward": f"{reward} ({parts})" if parts else reward,
        "metadata": _pairs(view["metadata"]),
        **_usage(view.get("usage")),
        "asked for": _pairs(view.get("options") or {}),
        "history": "  ".join(f"{name} {_clock(wall)}" for name, wall in view.get("history") or ()),
    }
    return {label: text for label, text in rows.items() if text}


def _row(one: Mapping[str, Any], now: float) -> tuple[str, ...]:
    return (
        one["session"],
        one["outcome"] or one["state"],
        "" if one["reward"] is None else f"{one['reward']:g}",
        f"{one['group']}#{one['index']}",
        one["name"] or "",
        ago(now - one["changed"]),
    )


def _usage(usage: Mapping[str, Any] | None) -> dict[str, str]:
    if usage is None:
        return {}
    return {
        "calls": _pairs(usage["calls"]) or "none",
        "turns": f"{usage['turns']}",
        "tokens": f"{usage['sampled_tokens']} sampled, {usage['prompt_tokens']} in prompts",
        "drift": _pairs(usage["drift"]),
    }


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {_plain(v)}" for k, v in values.items())


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{k}={_plain(v)}" for k, v in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _clock(wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))
