"""Where the assistant turns of an unattached tail come from: an edited turn of ours, or nobody.

A harness that changed what a turn says is obeyed: its words become context of a branch. If the turn that it changed is
plain to see (same prompt, and what it says resembles), the branch says so; anything else is foreign.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from tugline.core.items import Assistant, Head, Item, ToolResult
from tugline.core.turn import Turn
from tugline.forest.attach import Cut
from tugline.forest.edits import changes, edits
from tugline.forest.rules import DEFAULT, Rules

Children = Callable[[str | None], Sequence[Turn]]
"""The turns that extend one (None: the roots), in commit order."""


@dataclass(frozen=True, slots=True)
class Traced:
    """The assistant turns of a tail, each with the turn of ours that it was, if any; the last of those (else what the
    tail attached at), and the items behind it."""

    said: tuple[tuple[Assistant, Turn | None], ...]
    last: str | None
    rest: tuple[Item, ...]


def trace(parent: str | None, tail: Sequence[Item], children: Children, rules: Rules = DEFAULT) -> Traced:
    """Where the assistant turns of a tail that attached at `parent` (None: nowhere) come from."""
    said: list[tuple[Assistant, Turn | None]] = []
    at, between = parent, list[Item]()
    for index, item in enumerate(tail):
        if not isinstance(item, Assistant):
            between.append(item)
            continue
        origin = _origin(item, between, _Prompt(at is None, rules), children(at))
        if origin is None and at != parent:  # said behind words that the harness had changed before: it hangs there
            origin = _hanging(item, tail, index, _Prompt(parent is None, rules), children(parent))
        said.append((item, origin))
        if origin is None:
            between.append(item)
        else:
            at, between = origin.turn_id, []
    return Traced(tuple(said), at, tuple(between))


def drift_of_tail(
    parent: str | None, tail: Sequence[Item], children: Children, rules: Rules = DEFAULT
) -> tuple[str, ...]:
    """Drift names of a tail that attached at `parent` (None: nowhere): edit_honoured with what was changed,
    foreign_assistant, turn_deleted. Sorted, without repeats."""
    found: set[str] = set()
    traced = trace(parent, tail, children, rules)
    for item, origin in traced.said:
        if origin is None:
            found.add("foreign_assistant")
            continue
        changed = changes(origin.said, item) or tuple(rules.honoured.intersection(edits(origin.said, item)))
        found.update(("edit_honoured", *changed) if changed else ())
    prompt = _Prompt(traced.last is None, rules)
    if any(_left_out(turn, traced.rest, prompt) for turn in children(traced.last)):
        found.add("turn_deleted")
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Kept:
    """A turn of ours that a tail holds in other words which the rules do not obey. `index`: where in the tail."""

    turn: Turn
    index: int
    drift: tuple[str, ...]
    echoed: tuple[tuple[str, Assistant], ...] = ()
    """(turn id, those words) of each such turn on the way."""


def retained(parent: str | None, tail: Sequence[Item], children: Children, rules: Rules) -> Kept | None:
    """The deepest turn below `parent` that a tail goes on from, if the edits of `rules.retained` count for nothing."""
    found: set[str] = set()
    echoed: list[tuple[str, Assistant]] = []
    best: Kept | None = None
    at, between, followed = parent, list[Item](), True
    for index, item in enumerate(tail if rules.retained else ()):
        if not isinstance(item, Assistant):
            between.append(item)
            continue
        origin = _origin(item, between, _Prompt(at is None, rules), children(at)) if followed else None
        if origin is None and (at != parent or not followed):  # said behind words that were obeyed: it hangs there
            origin = _hanging(item, tail, index, _Prompt(parent is None, rules), children(parent))
            if origin is not None:
                at, between, followed, found, echoed = parent, list(tail[:index]), True, set(), []
        if origin is None:
            between.append(item)
            continue
        changed = changes(origin.said, item)
        spelled = () if changed else edits(origin.said, item)
        if not rules.retained.issuperset(changed) or rules.honoured.intersection(spelled):
            followed = False
            continue
        found.update(("edit_retained", *changed) if changed else spelled)
        found.update(rules.filtered(origin.items, between, start=0 if at is None else 1))
        if changed or spelled:
            echoed.append((origin.turn_id, item))
        best = Kept(origin, index, tuple(sorted(found)), tuple(echoed))
        at, between = origin.turn_id, []
    return best


def cut_short(
    parent: str | None, asked: tuple[Head, Sequence[Item]], children: Children, rules: Rules, delivered: Container[str]
) -> Cut | None:
    """The one assistant turn of a tail, where it is the beginning of a turn of ours on the same prompt: it ends early,
    or its calls are missing and its reply is not known to have arrived. Of several the newest that has not arrived."""
    head, tail = asked
    said = [n for n, item in enumerate(tail) if isinstance(item, Assistant)]
    if len(said) != 1:
        return None
    (index,) = said
    item, between, prompt = tail[index], tail[:index], _Prompt(parent is None, rules)
    assert isinstance(item, Assistant)
    found = [
        turn
        for turn in children(parent)
        if turn.head == head and turn.untrainable is None and turn.level == "L4"
        if prompt.same(turn.items, between) and _answered(turn.items) == _answered(between)
        if _begins(item, turn.said, turn.turn_id in delivered)
    ]
    origin = max(reversed(found), key=lambda turn: turn.turn_id not in delivered, default=None)
    if origin is None:
        return None
    dropped = rules.filtered(origin.items, between, start=0 if parent is None else 1)
    return Cut(origin, index, rules.train_partial, rules.honoured, dropped)


def _answered(items: Sequence[Item]) -> list[str]:
    """The calls that results answer, in order."""
    return [item.call_id for item in items if isinstance(item, ToolResult)]


def _begins(item: Assistant, said: Assistant, delivered: bool) -> bool:
    """Whether an echo without calls is how `said` begins, and not all of it."""
    ours, theirs = (said.text or "").strip(), (item.text or "").strip()
    if item.calls or not (theirs or item.reasoning):
        return False
    thought, echoed = (said.reasoning or "").strip(), (item.reasoning or "").strip()
    if echoed and echoed != thought:
        return not theirs and thought.startswith(echoed)
    if theirs == ours:
        return bool(said.calls) and not delivered  # else the harness took the calls out
    return ours.startswith(theirs)


def with_stored_ids(tail: tuple[Item, ...], echoed: Item, stored: Assistant) -> tuple[Item, ...]:
    """The tail with its results naming the calls of `stored` where the harness invented, renamed or dropped call ids:
    history and tail are rendered together, and templates look names up by id."""
    ours, theirs = [c.id for c in stored.calls], [c.id for c in echoed.calls] if isinstance(echoed, Assistant) else []
    if ours == theirs:
        return tail
    waiting: dict[str, list[str]] = {}
    for mine, other in zip(ours, theirs, strict=False):
        waiting.setdefault(other, []).append(mine)
    near = list(takewhile(lambda item: not isinstance(item, Assistant), tail))
    named: list[Item] = []
    for item in near:
        places = waiting.get(item.call_id) if isinstance(item, ToolResult) else None
        if places and isinstance(item, ToolResult):
            named.append(replace(item, call_id=places.pop(0) if len(places) > 1 else places[0]))
        else:
            named.append(item)
    return (*named, *tail[len(near) :])


@dataclass(frozen=True, slots=True)
class _Prompt:
    """How two prompts are compared: from the conversation's very start or not, without what the filters match."""

    first: bool
    rules: Rules

    def same(self, stored: Sequence[Item], incoming: Sequence[Item]) -> bool:
        start = 0 if self.first else 1
        return len(stored) == len(incoming) and all(
            (ours.text, ours.media) == (theirs.text, theirs.media)
            if isinstance(ours, ToolResult) and isinstance(theirs, ToolResult)
            else ours == theirs
            for ours, theirs in zip(self.rules.plain(stored, start), self.rules.plain(incoming, start), strict=True)
        )


def _origin(item: Assistant, between: Sequence[Item], prompt: _Prompt, siblings: Sequence[Turn]) -> Turn | None:
    """The newest of the turns sampled on the same prompt that `item` resembles most. A call's id is ours alone: a turn
    that shares one is meant."""
    ids = {call.id for call in item.calls if call.id}
    same = [t for t in siblings if prompt.same(t.items, between) and _resembles(t.said, item)]

    def distance(turn: Turn) -> tuple[bool, int]:
        return not ids & {call.id for call in turn.said.calls}, len(changes(turn.said, item))

    return min(reversed(same), key=distance, default=None)


def _hanging(
    item: Assistant, tail: Sequence[Item], index: int, prompt: _Prompt, siblings: Sequence[Turn]
) -> Turn | None:
    """As `_origin`, of the answers to everything that stands before `item` in its tail. Cheap where there is none: a
    hostile tail has very many items."""
    answers = [turn for turn in siblings if len(turn.items) == index]
    return _origin(item, tail[:index], prompt, answers) if answers else None


def _left_out(turn: Turn, between: Sequence[Item], prompt: _Prompt) -> bool:
    """Whether the harness goes on as if this turn had never answered."""
    n = len(turn.items)
    return 0 < n < len(between) and not isinstance(between[n], Assistant) and prompt.same(turn.items, between[:n])


def _resembles(stored: Assistant, incoming: Assistant) -> bool:
    """Same calls, same reasoning, or at least a third of the text kept at its ends."""
    if {c.id for c in stored.calls if c.id} & {c.id for c in incoming.calls}:
        return True
    if stored.calls and [c.name for c in stored.calls] == [c.name for c in incoming.calls]:
        return True
    if stored.reasoning and stored.reasoning == incoming.reasoning:
        return True
    ours, theirs = (stored.text or "").strip(), (incoming.text or "").strip()
    if not ours or not theirs:
        return False
    head = _common(ours, theirs)
    tail = _common(ours[head:][::-1], theirs[head:][::-1])
    return 3 * (head + tail) >= max(len(ours), len(theirs))


def _common(a: str, b: str) -> int:
    """Length of the common prefix, by bisection: texts may be long and slices are cheap."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[:middle] == b[:middle] else (low, middle - 1)
    return low
