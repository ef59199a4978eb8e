"""What is shown of sessions: their state, what was said about them, what they have used. Never a secret."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tugline.core.columns import count
from tugline.core.errors import BadRequest
from tugline.core.session import Ended, SessionState, state_name
from tugline.core.turn import CallRecord, Turn

STATES = ("queued", "booting", "ready", "running", "judging", "ended")


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session. Times are Unix seconds. `outcome`, `reward`, `parts` and `reason` are known when it has ended."""

    session: str
    group: str
    task: str
    index: int
    attempt: int
    name: str | None
    state: str
    changed: float
    outcome: str | None
    reward: float | None
    parts: dict[str, float]
    reason: str | None
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a session has done so far. `calls` counts HTTP exchanges by outcome; tokens are sampled ones."""

    calls: dict[str, int]
    turns: int
    sampled_tokens: int
    prompt_tokens: int
    drift: dict[str, int]


@dataclass(frozen=True, slots=True)
class SessionReport:
    """A session with its use and its transitions [(state, Unix seconds)]."""

    view: SessionView
    usage: Usage
    history: tuple[tuple[str, float], ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """Some sessions; `next` is the `after` of the next page, or None."""

    sessions: tuple[SessionView, ...]
    next: str | None


def wants(state: str | None) -> Callable[[SessionState], bool]:
    """A filter for `open`, a state's name, or None for all. Raises BadRequest."""
    if state is None:
        return lambda _state: True
    if state == "open":
        return lambda s: not isinstance(s, Ended)
    if state not in STATES:
        raise BadRequest(f"{state[:100]!r} is not one of open, {', '.join(STATES)}", path="state")
    return lambda s: state_name(s) == state


def view_of(state: SessionState, wall: float, about: Mapping[str, Any]) -> SessionView:
    """`about` is what the opener said."""
    ended = state if isinstance(state, Ended) else None
    return SessionView(
        session=state.key.session_id,
        group=state.key.group_id,
        task=state.key.task_id,
        index=state.key.index,
        attempt=state.key.attempt,
        name=about.get("name"),
        state=state_name(state),
        changed=wall,
        outcome=ended.outcome.value if ended else None,
        reward=ended.reward if ended else None,
        parts=dict(ended.reward_parts) if ended else {},
        reason=ended.reason if ended else None,
        metadata=about.get("metadata") or {},
    )


def usage_of(calls: Iterable[CallRecord], turns: Iterable[Turn]) -> Usage:
    """Sums over a session's records."""
    outcomes = Counter(call.outcome.value for call in calls)
    drift: Counter[str] = Counter()
    number = sampled = prompt = 0
    for turn in turns:
        number += 1
        sampled += count(turn.sampled)
        prompt += turn.prompt_len
        drift.update(turn.drift)
    return Usage(dict(sorted(outcomes.items())), number, sampled, prompt, dict(sorted(drift.items())))
