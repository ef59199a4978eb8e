"""Ids of a prompt: what was sampled goes on by a bridge; where there is none, the conversation is rendered whole."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

from tugline.core.columns import NO_IDS, Ids, concat, count, take
from tugline.core.contracts import CallLog, Engine
from tugline.core.items import Request
from tugline.core.turn import Partial
from tugline.forest.attach import Attachment
from tugline.forest.forest import Forest
from tugline.gateway.faithful import strips_reasoning
from tugline.gateway.metrics import Metrics
from tugline.gateway.partial import keep_delivered
from tugline.gateway.upstream import RetryPolicy
from tugline.tokens.model import BridgeRefused, ChatModel

NO_BRIDGE = "no_bridge:"
"""In front of the reason why a request that attaches is rendered whole."""


@dataclass(frozen=True, slots=True)
class Deps:
    """What every call needs. `pool` runs rendering, encoding and parsing off the loop."""

    engine: Engine
    model: ChatModel
    log: CallLog
    metrics: Metrics
    pool: Executor
    retry: RetryPolicy
    rerender: bool = False
    """Control for tests only: never bridge, render every prompt anew. Breaks continuity on purpose."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The ids to send and where they come from."""

    ids: Ids
    keep: int
    bridge: Ids
    attached: Attachment
    drift: tuple[str, ...]
    root_reason: str | None
    partial: Partial | None = None

    def level(self, engine: str) -> str:
        """Capture level of a turn on this prompt. `engine`: the engine's. Without a bridge its ids are known but go on
        from nothing."""
        return min(engine, "L2") if (self.root_reason or "").startswith(NO_BRIDGE) else engine


def make_prompt(forest: Forest, request: Request, attached: Attachment, deps: Deps) -> Prompt:
    """Prompt ids for an attached request: full(parent) ++ bridge, or a full render for a root. Runs in a worker."""
    parent, model = attached.parent, deps.model
    root_reason = attached.root_reason
    part = None if deps.rerender else keep_delivered(forest, request, attached, model)
    if part is not None:
        ids = concat([take(forest.full(parent.turn_id), 0, part.keep) if parent else NO_IDS, part.bridge])
        return Prompt(ids, part.keep, part.bridge, attached, part.drift, root_reason, part.partial)
    if parent is not None and strips_reasoning(forest, request, attached, model):
        parent, root_reason = None, "root_reasoning_stripped"
    if parent is not None and not deps.rerender:
        full = forest.full(parent.turn_id)
        try:
            bridge = model.bridge(
                request.head,
                forest.history(parent.turn_id),
                attached.tail,
                last_id=None if not full else int.from_bytes(full[-4:], "little", signed=True),
                finish=parent.finish,
                sampled=parent.sampled,
                prompt=take(full, 0, parent.prompt_len),
            )
        except BridgeRefused as refused:
            root_reason = f"{NO_BRIDGE}{refused.reason}"
        else:
            keep = count(full) - bridge.drop
            ids = concat([take(full, 0, keep), bridge.ids])
            return Prompt(ids, keep, bridge.ids, attached, attached.drift + bridge.drift, None)
    rendered = model.render(request.head, request.items)
    rooted = attached.as_root(request, root_reason or "rerender")
    why = (root_reason,) if root_reason is not None and root_reason.startswith(NO_BRIDGE) else ()
    return Prompt(rendered.ids, 0, rendered.ids, rooted, attached.drift + rendered.drift + why, rooted.root_reason)
