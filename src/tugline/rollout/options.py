"""What the opener of a session may ask for, and what he says at its end. Checked field by field, pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

import msgspec

from tugline.core.contracts import EditPolicy, ModelRoute, Policy
from tugline.core.errors import BadRequest
from tugline.core.session import FAILURE_OF, Failure, Outcome

TEXT = 200
"""Characters of a name, a group, a task or the name of a reward's part."""
REASON = 500
METADATA = 16 << 10
"""Bytes of a session's metadata as JSON."""
PARTS = 100
ROUTES = 100
TTL = 30 * 86_400.0
"""Seconds that a session may stay open at most."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """A session to open. None = as the run's settings say."""

    name: str | None = None
    """For people."""
    group: str | None = None
    """Sessions to compare with each other; None = a group of its own."""
    task: str | None = None
    """What is to be solved, in the opener's words; None = as the group's first session said, else "manual"."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    """Per turn."""
    max_turns: int | None = None
    max_tokens_per_session: int | None = None
    ttl: float | None = None
    """Seconds after which the session, still open, is ended as agent_timeout. None = never."""
    engine: str | None = None
    """Name of another engine that all calls go to; they are recorded and never trained."""
    routes: tuple[ModelRoute, ...] = ()
    media: Literal["omit", "refuse"] | None = None
    constraints: Literal["ignore", "refuse"] | None = None
    streaming: Literal["buffered", "live"] | None = None
    history_reasoning: Literal["keep", "template"] | None = None
    edits: Mapping[str, object] = field(default_factory=dict)
    """Fields of `EditPolicy` that differ from the run's."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    """Small JSON kept with the session."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a session went, in the words of whoever ran it. A reward needs an outcome that is not infrastructure's."""

    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    outcome: Outcome = Outcome.COMPLETED
    reason: str | None = None

    def same(self, other: Ending) -> bool:
        """Whether both say the same; the reason's words do not matter."""
        return (self.reward, dict(self.parts), self.outcome) == (other.reward, dict(other.parts), other.outcome)


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_p", 1e-9, 1.0),
    ("top_k", 0, 10_000_000),
    ("max_tokens", 1, 10_000_000),
    ("max_turns", 1, 1_000_000),
    ("max_tokens_per_session", 1, 1e12),
    ("ttl", 0.001, TTL),
)
_WHOLE = frozenset({"top_k", "max_tokens", "max_turns", "max_tokens_per_session"})


def check_options(options: SessionOptions, engines: Collection[str]) -> None:
    """Raises BadRequest naming the field. `engines`: those that calls can be routed to."""
    for name, text in (("name", options.name), ("group", options.group), ("task", options.task)):
        if text is not None:
            _check_text(name, text, TEXT)
    for name, low, high in _RANGES:
        _check_number(name, getattr(options, name), low, high)
    if len(options.routes) > ROUTES:
        raise BadRequest(f"at most {ROUTES} routes", path="routes")
    if options.engine is not None and options.routes:
        raise BadRequest("give either engine or routes: engine routes every model name", path="engine")
    _check_engine("engine", options.engine, engines)
    for i, route in enumerate(options.routes):
        _check_text(f"routes[{i}].pattern", route.pattern, TEXT)
        _check_engine(f"routes[{i}].engine", route.engine, engines)
    for name, value, allowed in (
        ("media", options.media, ("omit", "refuse")),
        ("constraints", options.constraints, ("ignore", "refuse")),
        ("streaming", options.streaming, ("buffered", "live")),
        ("history_reasoning", options.history_reasoning, ("keep", "template")),
    ):
        if value is not None and value not in allowed:
            raise BadRequest(f"{value!r} is not one of {', '.join(allowed)}", path=name)
    _check_edits(options.edits)
    _check_metadata(options.metadata)


def check_ending(ending: Ending) -> None:
    """Raises BadRequest naming the field."""
    if ending.outcome not in list(Outcome):
        raise BadRequest(f"{ending.outcome!r} is not one of {', '.join(Outcome)}", path="outcome")
    _check_number("reward", ending.reward, -math.inf, math.inf)
    if len(ending.parts) > PARTS:
        raise BadRequest(f"at most {PARTS} parts", path="parts")
    for name, value in ending.parts.items():
        _check_text("parts", name, TEXT)
        if value is None:
            raise BadRequest("needs a number", path=f"parts.{name}")
        _check_number(f"parts.{name}", value, -math.inf, math.inf)
    if ending.reason is not None:
        _check_text("reason", ending.reason, REASON)
    if (ending.reward is not None or ending.parts) and FAILURE_OF[ending.outcome] is Failure.INFRA:
        raise BadRequest(
            f"a session that ends as {ending.outcome} is not judged: leave the reward out, or end it as completed, "
            "agent_failed or agent_timeout",
            path="reward" if ending.reward is not None else "parts",
        )


def policy_for(options: SessionOptions, base: Policy) -> Policy:
    """The run's policy with what this session asks for."""
    own = {name: getattr(options, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    changes: dict[str, object] = {
        "max_turns": options.max_turns,
        "max_session_tokens": options.max_tokens_per_session,
        "media": options.media,
        "constraints": options.constraints,
        "streaming": options.streaming,
        "history_reasoning": options.history_reasoning,
        "edits": replace(base.edits, **options.edits) if options.edits else None,  # type: ignore[arg-type]
        "routes": (ModelRoute("*", options.engine),) if options.engine is not None else options.routes or None,
    }
    sampling = replace(base.sampling, **{k: v for k, v in own.items() if v is not None})
    return replace(base, sampling=sampling, **{k: v for k, v in changes.items() if v is not None})  # type: ignore[arg-type]


def _check_text(path: str, text: object, limit: int) -> None:
    if not isinstance(text, str):
        raise BadRequest("is not text", path=path)
    if not text.strip() or len(text) > limit:
        raise BadRequest(f"needs 1 to {limit} characters", path=path)
    if not text.isprintable():  # also refuses line breaks, control characters and halves of surrogate pairs
        raise BadRequest("holds characters that cannot be printed", path=path)


def _check_number(path: str, value: object, low: float, high: float) -> None:
    if value is None:
        return
    whole = path in _WHOLE
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise BadRequest(f"is not a {'whole ' if whole else ''}number", path=path)
    try:
        finite = math.isfinite(value)
    except OverflowError:
        finite = False
    if not finite:
        raise BadRequest("is not a finite number", path=path)
    if not low <= value <= high:
        raise BadRequest(f"{value!r} is outside {low:g} .. {high:g}", path=path)


def _check_engine(path: str, name: str | None, engines: Collection[str]) -> None:
    if name is not None and name not in engines:
        known = f"there are: {', '.join(sorted(engines))}" if engines else "this run has none but the policy's"
        raise BadRequest(f"no engine {str(name)[:TEXT]!r}; {known}", path=path)


def _check_edits(edits: object) -> None:
    if not isinstance(edits, Mapping):
        raise BadRequest("is not an object", path="edits")
    known = {f.name: f.default for f in fields(EditPolicy)}
    for name, value in edits.items():
        if name not in known:
            raise BadRequest(f"unknown; there are: {', '.join(known)}", path=f"edits.{str(name)[:TEXT]}")
        if isinstance(known[name], bool):
            if not isinstance(value, bool):
                raise BadRequest("is not true or false", path=f"edits.{name}")
        elif value not in ("retain", "honour"):
            raise BadRequest(f"{str(value)[:TEXT]!r} is not one of retain, honour", path=f"edits.{name}")


def _check_metadata(value: object) -> None:
    if not isinstance(value, Mapping):
        raise BadRequest("is not an object", path="metadata")
    try:
        size = len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as err:
        raise BadRequest(f"cannot be written as JSON: {err}", path="metadata") from err
    if size > METADATA:
        raise BadRequest(f"has {size} bytes as JSON, the limit is {METADATA}", path="metadata")
