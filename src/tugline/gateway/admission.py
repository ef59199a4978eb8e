"""What a call may use: the operator's sampling, the session's budgets, the engine's window. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tugline.core.contracts import EngineInfo, Policy
from tugline.core.errors import ContextOverflow, Forbidden, Unsupported
from tugline.core.items import Assistant, Options, Request, ToolResult, UserMedia
from tugline.core.turn import Sampling


@dataclass(frozen=True, slots=True)
class Spent:
    """What a session has used so far."""

    turns: int = 0
    sampled_tokens: int = 0


def check_request(policy: Policy, request: Request) -> tuple[str, ...]:
    """What the policy cannot see or do: refused, or done without and named, as the operator wants it.

    Returns drift reasons. Raises Unsupported.
    """
    check_media(policy, request)
    drift = []
    for name, path, asked in _constraints(request.options):
        if policy.constraints == "refuse":
            raise Unsupported(f"{asked} needs constrained sampling, which this engine has not", path=path)
        drift.append(f"unconstrained_{name}")
    return tuple(drift)


def check_media(policy: Policy, request: Request) -> None:
    """Raises Unsupported for images and files where the operator wants them refused."""
    if policy.media != "refuse":
        return
    for i, item in enumerate(request.items):
        media = (item,) if isinstance(item, UserMedia) else item.media if isinstance(item, ToolResult) else ()
        if media:
            what = f"this policy reads text only, it cannot see {media[0].media_type}"
            why = "an engine is given token ids, and no image can be made of those"
            raise Unsupported(f"{what}: {why}", path=f"messages (item {i})")


def check_length(request: Request, context: int) -> None:
    """Refuse at once what cannot fit: every item, call and tool has at least a token of its own.

    Rendering a million empty messages to learn that takes minutes of workers that all sessions share. Raises
    ContextOverflow with that least number of tokens.
    """
    calls = sum(len(item.calls) for item in request.items if isinstance(item, Assistant))
    least = len(request.items) + calls + len(request.head.tools)
    if least > context:
        raise ContextOverflow(least, context)


def _constraints(options: Options) -> Iterator[tuple[str, str, str]]:
    """(name, wire path, words) of every constraint on the sample that the engine would have to keep."""
    if options.tool_choice not in ("auto", "none"):
        yield "tool_choice", "tool_choice", "a tool_choice other than 'auto' and 'none'"
    if options.output is not None:
        yield "output", "response_format", "structured output"


def engine_for(policy: Policy, model: str) -> str:
    """Name of the engine that a model's name means: that of the first route that fits, else "", the policy."""
    return next((r.engine for r in policy.routes if fnmatchcase(model, r.pattern)), "")


def check_budget(policy: Policy, spent: Spent) -> None:
    """Raises Forbidden when the session's own budget is used up."""
    if policy.max_turns is not None and spent.turns >= policy.max_turns:
        raise Forbidden(f"the session's budget of {policy.max_turns} turns is used up", code="budget_turns")
    limit = policy.max_session_tokens
    if limit is not None and spent.sampled_tokens >= limit:
        raise Forbidden(f"the session's budget of {limit} sampled tokens is used up", code="budget_tokens")


def admit(policy: Policy, request: Request, info: EngineInfo, prompt_len: int, spent: Spent) -> Sampling:
    """The sampling to use: the policy's, with max_tokens clamped to what was asked and to what is left.

    Raises ContextOverflow when not even one token fits behind the prompt.
    """
    room = info.context - prompt_len
    if room < 1:
        raise ContextOverflow(prompt_len, info.context)
    limits = [room, policy.sampling.max_tokens]
    if request.options.max_tokens is not None:
        limits.append(request.options.max_tokens)
    if policy.max_session_tokens is not None:
        limits.append(policy.max_session_tokens - spent.sampled_tokens)
    return replace(policy.sampling, max_tokens=max(1, min(limits)))


def admit_elsewhere(policy: Policy, request: Request, info: EngineInfo, prompt_len: int) -> Sampling:
    """The sampling of a call that another engine answers: nothing is trained there, so what is asked for counts.

    Raises ContextOverflow when not even one token fits behind the prompt.
    """
    asked, pinned = request.options, policy.sampling
    free = replace(policy, max_session_tokens=None)
    return replace(
        admit(free, request, info, prompt_len, Spent()),
        temperature=pinned.temperature if asked.temperature is None else asked.temperature,
        top_p=pinned.top_p if asked.top_p is None else asked.top_p,
        seed=asked.seed,
    )
