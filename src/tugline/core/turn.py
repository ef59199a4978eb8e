"""Sampled turns (nodes of the forest) and calls (every exchange, successful or not)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from tugline.core.columns import Floats, Ids
from tugline.core.items import Assistant, Head, Item, Prefill
from tugline.core.routes import Routes

Finish = Literal["stop", "length", "abort"]
"""The engine's raw reason. A stop means the last sampled id is in the stop set."""

Role = Literal["main", "subagent", "auxiliary", "compaction"]
"""What a turn is for: the task; a part of it, given to another agent; a side job such as a title; a summary that takes
the place of a conversation."""

Link = Literal["compaction_of", "spawned_by", "resample_of", "aux_of"]
"""compaction_of  of a compaction: the newest turn that it sums up. Of the conversation behind it: the compaction
spawned_by     of a sub-agent's first turn: the turn that called for it
resample_of    the same request was answered before by that turn, and its reply delivered
aux_of         of an auxiliary turn: the newest main turn"""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling as used, not as asked. Temperature 0 is greedy. top_k 0 and top_p 1.0 mean the whole vocabulary."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Partial:
    """The beginning of another turn's sample inside a bridge: bridge[at:at + n] are the first `n` ids that turn
    `turn_id` sampled. Tokens. `train`: they train here if that turn itself does not."""

    turn_id: str
    at: int
    n: int
    train: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One sampled model turn: a node of the forest. Immutable after commit.

    prompt = full(parent)[:keep] ++ bridge, full = prompt ++ sampled. A root has parent None and keep 0: its bridge is
    the full render. `keep` counts tokens; it is less than len(full(parent)) only by one trimmed stop.
    """

    turn_id: str
    session_id: str
    seq: int
    """Commit order inside the session, from 0."""
    parent: str | None
    keep: int
    bridge: Ids
    sampled: Ids
    logprobs: Floats
    """float32[len(sampled)], nats, of the distribution the token was drawn from."""
    version_runs: tuple[tuple[int, int], ...]
    """(start index into sampled, policy version), ascending; the first start is 0."""
    finish: Finish
    prompt_len: int
    head: Head
    items: tuple[Item, ...]
    """Only the tail: the request's items behind the parent's assistant item (all items for a root)."""
    echo: Assistant
    """Our own reply fed back through the dialect as if echoed verbatim."""
    key_exact: bytes
    key_lenient: bytes
    sampling: Sampling
    level: str = "L4"
    role: Role = "main"
    drift: tuple[str, ...] = ()
    untrainable: str | None = None
    """Reason why no row may train this turn's tokens, or None."""
    engine: str = ""
    """Name of the engine that sampled it when that is not the policy: such turns never train."""
    thread: str = ""
    """The conversation that its harness says it belongs to, in the harness's own words; "" = it does not say."""
    links: tuple[tuple[str, str], ...] = ()
    """(name, turn id), besides the parent: see `Link`."""
    partial: Partial | None = None
    """Of a turn whose harness echoed only the beginning of another: what of the bridge was sampled for that."""

    routes: Routes | None = None
    """Which experts tokens went to, where the engine says so: from the last kept token (which the parent's pass never
    reached) up to the last sampled one but one."""

    def link(self, name: Link) -> str | None:
        """The turn that a link leads to, or None."""
        return next((turn_id for known, turn_id in self.links if known == name), None)

    @property
    def said(self) -> Assistant:
        """The turn as clients echo it: the fragment that it was to continue, if there was one, in front."""
        last = self.items[-1] if self.items else None
        return replace(self.echo, text=last.text + (self.echo.text or "")) if isinstance(last, Prefill) else self.echo


class CallOutcome(StrEnum):
    """How a call ended. Exactly one per call; the sums appear in the report."""

    ANSWERED = "answered"
    """A turn was committed, the reply's last byte was handed over, and the client did not leave it unread."""
    UNDELIVERED = "undelivered"
    """The client was gone, or left before it had read all. Without a turn: before its reply was sampled."""
    REPLAYED = "replayed"
    """The stored reply of an undelivered identical call was sent again; nothing was sampled."""
    COALESCED = "coalesced"
    """Joined an identical running call whose client was gone."""
    REJECTED = "rejected"
    """Refused before the engine (4xx), or still running when its session ended."""
    ENGINE_FAILED = "engine_failed"
    """The engine gave no usable sample within the retry budget."""
    STORE_FAILED = "store_failed"
    """The commit failed; the reply was not served."""
    SIDE = "side"
    """Models, token counts: never training data."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One HTTP exchange of a session. Times are Unix seconds (wall) and seconds (durations)."""

    call_id: str
    session_id: str
    seq: int
    dialect: str
    path: str
    turn_id: str | None
    outcome: CallOutcome
    status: int
    started: float
    duration: float
    asked_model: str = ""
    asked: str = "{}"
    """Canonical JSON of the options as the harness sent them."""
    engine_ref: str | None = None
    """The engine's own name for this generation: the key of its journal record."""
    root_reason: str | None = None
    drift: tuple[str, ...] = ()
    error: str | None = None
    engine: str = ""
    """Where the call went when that is not the policy."""
    ignored: tuple[str, ...] = ()
    """What the request held without effect here: keys by path, tools and content dropped by name."""
    echoed: tuple[tuple[str, Assistant], ...] = ()
    """(turn id, the agent's words for it) of turns whose ids stayed though the agent changed their words: the newest,
    or earlier ones where only they changed since."""
    fingerprint: str = ""
    """Of a call that began a turn: equal for requests that ask for the same generation. Hex."""
    cached: int = 0
    """Of a call that began a turn: prompt tokens that the engine had at hand, as the reply tells."""
    settled: bool = False
    """Whether the outcome was set again once the delivery was known. Until then it is what was to be expected."""
