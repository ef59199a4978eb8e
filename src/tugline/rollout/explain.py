"""One call explained from its records: where it attached and why, what the harness changed, what it was sampled on.

Read from the store alone; a chat model, where the run's own is at hand, adds texts and the template's own render.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np

from tugline.core.columns import Ids, count, floats_array, ids_list, take
from tugline.core.errors import NotFound, Unsupported
from tugline.core.turn import CallRecord, Turn
from tugline.forest.audit import root_overlap
from tugline.forest.forest import Forest
from tugline.forest.told import Edited, Parting, as_sent, echoed_turns, edited_turns, head_changes, match_of, parting
from tugline.rollout.audit import Rendering, against, rendering
from tugline.tokens.model import ChatModel
from tugline.trajectory.audit import Deviation


class Records(Protocol):
    """The slice of a run store that explaining reads."""

    def session_of(self, name: str) -> str | None: ...
    def iter_calls(self, session_id: str) -> Iterable[CallRecord]: ...
    def iter_turns(self, session_id: str) -> Iterable[Turn]: ...


@dataclass(frozen=True, slots=True)
class Nearest:
    """The earlier turn whose ids the prompt of a new root shares most with. `parting`: the first item that differs."""

    turn_id: str
    tokens: int
    prompt_tokens: int
    parting: Parting | None
    head: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call attached. `depth`: turns above it. `siblings`: other turns with the same parent, earlier ones; of a
    root the conversations begun before it. `links`: (name, turn id) besides the parent."""

    parent: str | None
    match: str
    depth: int
    root_reason: str | None
    drift: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    siblings: tuple[str, ...]
    edited: tuple[Edited, ...]
    nearest: Nearest | None
    not_stored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt: `kept` tokens of the parent, then `new` ones. Texts are None without a chat model.

    `part_of`, `part`: the turn whose first `part` sampled ids stand among the new ones (`partial_echo`). `trimmed`: the
    parent's sampled stop that the new tokens replace. The rest holds the prompt against one whole render of what the
    agent sent. `rendering`: in tokens. `template`: whether it reads the same, `deviations`: where not. `refused`: the
    template does not render this conversation.
    """

    tokens: int
    kept: int
    new: int
    new_ids: tuple[int, ...]
    new_text: str | None
    part_of: str | None
    part: int
    trimmed: str | None
    rendering: Rendering | None
    template: bool | None
    deviations: tuple[Deviation, ...]
    refused: str | None


@dataclass(frozen=True, slots=True)
class Sampled:
    """The sample. Log-probabilities in nats: sum, mean, least and the token that had it."""

    tokens: int
    ids: tuple[int, ...]
    text: str | None
    finish: str
    logprob_sum: float | None
    logprob_mean: float | None
    logprob_min: float | None
    least_likely: str | None
    least_position: int | None
    versions: tuple[tuple[int, int], ...]
    untrainable: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """A call and, where it has one, its turn. `calls`: all calls that this turn answered."""

    call: CallRecord | None
    turn_id: str | None
    role: str | None
    level: str | None
    engine: str
    calls: tuple[tuple[str, str], ...] = ()
    place: Place | None = None
    prompt: Prompt | None = None
    sampled: Sampled | None = None
    sampling: dict[str, object] = field(default_factory=dict)
    asked: dict[str, object] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> object:
        """Plain values for `--json`."""
        return msgspec.to_builtins(self)


def explain(records: Records, name: str, model_for: Callable[[str], ChatModel] | None) -> Explanation:
    """`name`: a call id, a turn id, or SESSION:N, the session's N-th call in order of arrival, from 0.

    `model_for`: chat model of an engine by its name; None: ids only. Raises NotFound, and VerifyError for damage.
    """
    call, turns, calls = _find(records, name)
    turn_id = call.turn_id if call is not None else name
    at = next((n for n, turn in enumerate(turns) if turn.turn_id == turn_id), None)
    asked = msgspec.json.decode(call.asked, type=dict[str, object]) if call is not None else {}
    if at is None:
        engine, ignored = (call.engine, call.ignored) if call is not None else ("", ())
        return Explanation(call, None, None, None, engine, asked=asked, ignored=ignored)
    turn = turns[at]
    # The forest as it was then: what came later explains nothing.
    forest = Forest.restore(turn.session_id, b"", [t for t in turns[: at + 1] if t.engine == turn.engine])
    model = model_for(turn.engine) if model_for is not None else None
    served = tuple((c.call_id, c.outcome.value) for c in calls if c.turn_id == turn.turn_id)
    return Explanation(
        call=call,
        turn_id=turn.turn_id,
        role=turn.role,
        level=turn.level,
        engine=turn.engine,
        calls=served,
        place=_place(forest, turn, call, calls),
        prompt=_prompt(forest, turn, call, model),
        sampled=_sampled(turn, model),
        sampling=msgspec.to_builtins(turn.sampling),
        asked=asked,
        ignored=call.ignored if call is not None else (),
        notes=() if model is not None else ("without the run's chat model there are ids only",),
    )


def _find(records: Records, name: str) -> tuple[CallRecord | None, list[Turn], list[CallRecord]]:
    session_id, colon, number = name.rpartition(":")
    if colon:
        calls = list(records.iter_calls(session_id))
        numbered = [c for c in calls if str(c.seq) == number]
        if len(numbered) > 1:  # a gateway that was started again counts anew
            raise NotFound(f"{name[:80]!r} is several calls: {', '.join(c.call_id for c in numbered[:10])}")
        if not numbered:
            known = "no call of such a session is on record here"
            if calls:
                last = max(c.seq for c in calls)
                known = f"{len(calls)} are on record, numbered up to {last}; a request that cannot be read is not"
            raise NotFound(f"no call {number[:20]!r} in session {session_id[:80]!r}: {known}")
        return numbered[0], list(records.iter_turns(session_id)), calls
    known_session = records.session_of(name)
    if known_session is None:
        raise NotFound(f"{name[:80]!r} is no call or turn of this run; SESSION:N names the N-th call of a session")
    calls = list(records.iter_calls(known_session))
    found = next((c for c in calls if c.call_id == name), None)
    first = next((c for c in calls if c.turn_id == name and c.engine_ref is not None), None)
    return found or first, list(records.iter_turns(known_session)), calls


def _place(forest: Forest, turn: Turn, call: CallRecord | None, calls: Iterable[CallRecord]) -> Place:
    parent = forest.turns[turn.parent] if turn.parent is not None else None
    match = match_of(turn, parent)
    echoed = call.echoed if call is not None else ()
    not_stored = []
    if "tools_respelled" in turn.drift:
        not_stored.append("how the agent wrote the tools this time (tools_respelled)")
    if dropped := [name for name in turn.drift if name.startswith("filtered:")]:
        not_stored.append(f"the text that was left out of matching this time ({', '.join(dropped)})")
    return Place(
        parent=turn.parent,
        match=match,
        depth=len(forest.path(turn.parent)),
        # a call that joined another's generation has no reason of its own
        root_reason=next((c.root_reason for c in calls if c.turn_id == turn.turn_id and c.root_reason), None),
        drift=turn.drift,
        links=turn.links,
        siblings=tuple(t for t in forest.children(turn.parent) if t != turn.turn_id),
        edited=(*echoed_turns(forest, echoed), *edited_turns(forest, turn)),
        nearest=_nearest(forest, turn) if parent is None else None,
        not_stored=tuple(not_stored),
    )


def _nearest(forest: Forest, turn: Turn) -> Nearest | None:
    overlap = root_overlap(forest, turn.turn_id)
    if overlap is None:
        return None
    other = forest.turns[overlap.turn_id]
    apart = parting(forest.history(other.turn_id), turn.items)
    return Nearest(other.turn_id, overlap.tokens, overlap.prompt, apart, head_changes(other.head, turn.head))


def _prompt(forest: Forest, turn: Turn, call: CallRecord | None, model: ChatModel | None) -> Prompt:
    before = forest.full(turn.parent) if turn.parent is not None else Ids(b"")
    trimmed = take(before, turn.keep)
    template: bool | None = None
    beside: Rendering | None = None
    found: tuple[Deviation, ...] = ()
    refused: str | None = None
    if model is not None:
        try:
            sent = as_sent(forest, turn, call.echoed if call is not None else ())
            rendered = model.render(turn.head, sent).ids
            beside = rendering(forest.prompt(turn.turn_id), rendered, model)
            found = against(forest, turn, model, rendered)
            template = not found
        except Unsupported as err:
            refused = err.message
    return Prompt(
        tokens=turn.prompt_len,
        kept=turn.keep,
        new=count(turn.bridge),
        new_ids=tuple(ids_list(turn.bridge)),
        new_text=model.decode(turn.bridge) if model is not None else None,
        part_of=turn.partial.turn_id if turn.partial is not None else None,
        part=turn.partial.n if turn.partial is not None else 0,
        trimmed=None if not trimmed else model.decode(trimmed) if model is not None else str(ids_list(trimmed)[0]),
        rendering=beside,
        template=template,
        deviations=found,
        refused=refused,
    )


def _sampled(turn: Turn, model: ChatModel | None) -> Sampled:
    values = floats_array(turn.logprobs).astype(np.float64)
    known = len(values) == count(turn.sampled) > 0 and bool(np.isfinite(values).all())
    least = int(values.argmin()) if known else None
    return Sampled(
        tokens=count(turn.sampled),
        ids=tuple(ids_list(turn.sampled)),
        text=model.decode(turn.sampled) if model is not None else None,
        finish=turn.finish,
        logprob_sum=float(values.sum()) if known else None,
        logprob_mean=float(values.mean()) if known else None,
        logprob_min=float(values[least]) if least is not None else None,
        least_likely=_token(turn, least, model),
        least_position=least,
        versions=turn.version_runs,
        untrainable=turn.untrainable,
    )


def _token(turn: Turn, at: int | None, model: ChatModel | None) -> str | None:
    if at is None:
        return None
    one = take(turn.sampled, at, at + 1)
    return model.decode(one) if model is not None else str(ids_list(one)[0])
