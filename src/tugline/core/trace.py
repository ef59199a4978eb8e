"""Training rows and what they add up to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tugline.core.columns import Floats, Ids
from tugline.core.routes import Routes
from tugline.core.session import Failure, Outcome
from tugline.core.turn import Finish, Role, Sampling


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, end) of a trace that one turn sampled. `trained` = this row owns them (mask 1)."""

    start: int
    end: int
    turn_id: str
    role: Role
    finish: Finish
    trained: bool


@dataclass(frozen=True, slots=True)
class Trace:
    """One training row: a root-to-leaf path.

    token_ids int32[T]; loss_mask uint8[T] (1 = train); logprobs float32[T] (NaN where not sampled);
    version_runs [(start, version)] over sampled tokens' positions in the row.
    """

    trace_id: str
    session_id: str
    group_id: str
    kind: Role
    """Role of the first turn that the row trains; `spans` have the role of each."""
    parent: str | None
    """trace_id of the row that this one branches from, or None."""
    order: int
    token_ids: Ids
    loss_mask: bytes
    logprobs: Floats
    version_runs: tuple[tuple[int, int], ...]
    spans: tuple[Span, ...]
    sampling: Sampling
    logprob_kind: Literal["raw", "processed"] = "processed"
    loss_weight: float = 1.0
    level: str = "L4"
    drift: dict[str, int] = field(default_factory=dict)
    routed_experts: Routes | None = None
    """[T - 1, layers, picks] from position 0, where the engine said them for every token of the row: see Routes."""
    links: tuple[tuple[str, str], ...] = ()
    """(name, trace_id): rows that this one belongs to besides its parent, by the links of the turns that it trains."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """All rows of a session with its reward. `reward` is None when nothing valid was judged (never 0 instead)."""

    session_id: str
    group_id: str
    outcome: Outcome
    failure: Failure
    reward: float | None
    reward_parts: dict[str, float]
    traces: tuple[Trace, ...]
    untrained: dict[str, int] = field(default_factory=dict)
    """Sampled tokens that no row trains, by reason (stop_trim, undelivered, auxiliary, ...)."""
