"""Template audit of a run (V4): prompts beside one whole render of the model's own chat template.

The last prompt of a conversation holds all of its bridges, so that one render checks them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tugline.core.columns import Ids, count, ids_list, take
from tugline.core.errors import Unsupported
from tugline.core.items import Item
from tugline.core.session import SessionState
from tugline.core.turn import Turn
from tugline.forest.forest import Forest
from tugline.tokens.model import ChatModel
from tugline.trajectory.audit import HARD, Deviation, Words, compare

MOST = 200
"""Prompts that an audit renders, spread over the run."""


class Records(Protocol):
    """The slice of a run store that an audit reads."""

    def sessions(self) -> list[tuple[SessionState, float]]: ...
    def iter_turns(self, session_id: str) -> Iterable[Turn]: ...


NEAR = 8
"""Tokens that are shown from where two columns part."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A whole render beside a prompt. `tokens`: its length. `parts_at`: first token in which they differ, None = equal.
    `ours`, `theirs`: the next few tokens of each."""

    tokens: int
    parts_at: int | None
    ours: tuple[str, ...]
    theirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """The first place of a kind of deviation."""

    session_id: str
    turn_id: str
    deviation: Deviation


@dataclass(slots=True)
class Audit:
    """What was found, by kind. `refused`: prompts that the template does not render whole."""

    prompts: int = 0
    same: int = 0
    refused: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Example] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Nothing in any context differs."""
        return not any(self.kinds[kind] for kind in HARD)

    def as_json(self) -> dict[str, object]:
        """The object under `audit`."""
        return {
            "ok": self.ok,
            "prompts": self.prompts,
            "same": self.same,
            "refused": self.refused,
            "deviations": dict(sorted(self.kinds.items())),
            "examples": [
                {
                    "kind": kind,
                    "session": e.session_id,
                    "turn": e.turn_id,
                    "position": e.deviation.position,
                    "prompt": e.deviation.prompt[:500],
                    "rendered": e.deviation.rendered[:500],
                }
                for kind, e in sorted(self.examples.items())
            ],
        }


def audit_run(records: Records, model_for: Callable[[str], ChatModel], most: int = MOST) -> Audit:
    """Render the newest prompts of conversations anew. `model_for`: chat model of an engine by its name, "" = policy.
    Raises VerifyError for damaged records."""
    leaves: list[tuple[str, str]] = []
    for state, _ in records.sessions():
        turns = list(records.iter_turns(state.key.session_id))
        extended = {turn.parent for turn in turns}
        leaves += [(turn.session_id, turn.turn_id) for turn in turns if turn.turn_id not in extended]
    step = max(1, -(-len(leaves) // most))
    out = Audit()
    forest: Forest | None = None
    for session_id, turn_id in leaves[::step]:
        if forest is None or forest.session_id != session_id:
            forest = Forest.restore(session_id, b"", list(records.iter_turns(session_id)))
        _audit_turn(forest, forest.turns[turn_id], model_for(forest.turns[turn_id].engine), out)
    return out


def _audit_turn(forest: Forest, turn: Turn, model: ChatModel, out: Audit) -> None:
    out.prompts += 1
    try:
        found = deviations(forest, turn, model)
    except Unsupported:
        out.refused += 1
        return
    out.same += not found
    for deviation in found:
        out.kinds[deviation.kind] += 1
        out.examples.setdefault(deviation.kind, Example(turn.session_id, turn.turn_id, deviation))


def deviations(forest: Forest, turn: Turn, model: ChatModel) -> tuple[Deviation, ...]:
    """Where a turn's prompt differs from one whole render of the same conversation. Raises Unsupported when the
    template does not render it."""
    return against(forest, turn, model, model.render(turn.head, conversation(forest, turn)).ids)


def against(forest: Forest, turn: Turn, model: ChatModel, rendered: Ids) -> tuple[Deviation, ...]:
    """Where a turn's prompt differs from a render."""
    words = Words(model.controls, model.reasoning, model.decode)
    return compare(forest.prompt(turn.turn_id), rendered, sampled_ranges(forest, turn), words)


def rendering(prompt: Ids, rendered: Ids, model: ChatModel) -> Rendering:
    """Token by token, up to where they part and a few tokens on."""
    ours, theirs = ids_list(prompt), ids_list(rendered)
    same = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))

    def near(column: Ids) -> tuple[str, ...]:
        end = min(count(column), same + NEAR)
        return tuple(model.decode(take(column, n, n + 1)) for n in range(same, end))

    if len(ours) == len(theirs) == same:
        return Rendering(len(theirs), None, (), ())
    return Rendering(len(theirs), same, near(prompt), near(rendered))


def conversation(forest: Forest, turn: Turn) -> tuple[Item, ...]:
    """The items that a turn answers: earlier turns as we said them, the rest as the harness wrote it."""
    return (*(forest.history(turn.parent) if turn.parent is not None else ()), *turn.items)


def sampled_ranges(forest: Forest, turn: Turn) -> Sequence[tuple[int, int]]:
    """Token ranges of a turn's prompt that earlier turns sampled, also of those that a broken stream cut short."""
    ranges: list[tuple[int, int]] = []
    below = turn
    while True:
        if below.partial is not None:
            begun = below.keep + below.partial.at
            ranges.append((begun, begun + below.partial.n))
        if below.parent is None:
            return ranges[::-1]
        parent = forest.turns[below.parent]
        ranges.append((parent.prompt_len, below.keep))
        below = parent
