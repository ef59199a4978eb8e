"""The bridge: ids between a sampled turn and the next generation, by *tail splice* on the model's own template.

The last assistant turn is rendered with a sentinel where the template writes its last word. What follows the sentinel
is cut at the first close token: that is the rest of the prompt as the template would write it behind any such turn. It
is encoded alone, from a control token on, so that no merge crosses into what was sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tugline.core.columns import NO_IDS, Ids, concat, count, ids, ids_array, last, take
from tugline.core.errors import Unsupported
from tugline.core.items import Assistant, Head, Item, Prefill, System, ToolCall, ToolResult, UserMedia, UserText
from tugline.core.turn import Finish
from tugline.tokens.codec import positions
from tugline.tokens.render import Ask, Composed, Renderer, sentinel_turn


class BridgeRefused(Exception):
    """No bridge here: render the whole conversation anew. `reason` is a short word for counters."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Bridge:
    """prompt = full(parent) without its last `drop` tokens, then `ids`.

    The first `synthesised` of `ids` close a turn that the model did not close itself; nobody sampled them.
    """

    drop: int
    ids: Ids
    synthesised: int
    drift: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """What the probes found out about one template and tokenizer. Ids are token ids."""

    stop: frozenset[int]
    closes: frozenset[int]
    """Stop ids and the id that the template itself writes behind an assistant turn."""
    appendable: frozenset[str]
    """Kinds of items (user, tool, system, assistant) whose text comes behind the assistant turn."""
    fixed_context: frozenset[str]
    """Template arguments (JSON) under which the tail was shown not to depend on the history."""
    reasoning: tuple[int | None, int | None] = (None, None)
    calls: tuple[tuple[int | None, int | None], ...] = ()
    """Nested regions that a call stands in, outermost first: what opens and closes each."""
    after_reasoning: Ids = NO_IDS
    """What the template writes between the end of reasoning and the text."""
    inner: frozenset[int] | None = None
    """Control tokens that the template writes between the last word of a turn and its end, e.g. `</tool_call>`. Any
    other one there opens what comes next: the turn has no end of its own. None: not found out."""

    moves: bool = False
    """The template drops or moves the text of a turn that calls tools."""

    def begins_next(self, token: int) -> bool:
        """Whether a control token behind the last word of a turn can only open what follows it."""
        return self.inner is not None and token not in self.inner and token not in self.closes


@dataclass(frozen=True, slots=True)
class Opened:
    """Regions that a sampled turn left open. `calls`: levels of `Rules.calls`, outermost first."""

    reasoning: bool = False
    calls: tuple[int, ...] = ()


_CONTEXT: tuple[Item, ...] = (System("."), UserText("."))


def bridge(
    renderer: Renderer,
    rules: Rules,
    asked: tuple[Head, Sequence[Item], Sequence[Item]],
    state: tuple[int | None, Finish, Ids],
) -> Bridge:
    """`asked` = (head, history ending with the parent's echo, tail).
    `state` = (last id of full(parent), finish, sampled).

    Raises BridgeRefused when this template cannot be trusted with this shape.
    """
    head, history, tail = asked
    for item in tail:
        if (kind := kind_of(item)) not in rules.appendable:
            raise BridgeRefused(f"role_{kind}")
    composed, start = tail_of(renderer, rules, head, history, tail)
    column, drift = renderer.encode(composed, start)
    opened = open_regions(rules, state[2], lambda: _prompt_thinks(renderer, rules, head, history))
    turn = history[-1]
    if "text" in renderer.shape.unseen and isinstance(turn, Assistant) and turn.calls and turn.text:
        drift |= {"text_kept"}
    return _join(rules, column, set(drift), state, opened)


def kind_of(item: Item) -> str:
    """The word used in `Rules.appendable`; a prefill is fine wherever a generation prompt is."""
    match item:
        case UserText() | Prefill() | UserMedia():
            return "user"
        case ToolResult():
            return "tool"
        case System():
            return "system"
        case Assistant():
            return "assistant"


def tail_of(
    renderer: Renderer, rules: Rules, head: Head, history: Sequence[Item], tail: Sequence[Item]
) -> tuple[Composed, int]:
    """The rendered text and where its first close token behind the sentinel begins. Raises BridgeRefused."""
    if not history or not isinstance(history[-1], Assistant):
        raise BridgeRefused("history_open")
    if rules.moves and history[-1].text and history[-1].calls:
        raise BridgeRefused("parts_moved")
    if renderer.shape.split_calls and len(history[-1].calls) > 1:
        # In the template's eyes results stand between the calls, not behind what was sampled.
        raise BridgeRefused("parallel_calls")
    fixed = head.template_kwargs in rules.fixed_context
    before = _CONTEXT if fixed else tuple(history[:-1])
    items = (*before, sentinel_turn(history[-1]), *_named(tail, history))
    try:
        # The tool list stands in front of the conversation: with a fixed context it is not needed either.
        composed = renderer.compose(Ask(head, items, sentinel_at=len(before), tools=not fixed))
    except Unsupported as err:
        raise BridgeRefused("template_error") from err
    if composed.inside < 0:
        raise BridgeRefused("sentinel_lost")
    for match in renderer.codec.pattern.finditer(composed.text, composed.inside):
        token = renderer.codec.control_id(match.group())
        if token in rules.closes or rules.begins_next(token):
            return composed, match.start()
    raise BridgeRefused("no_close")


def _named(tail: Sequence[Item], history: Sequence[Item]) -> list[Item]:
    """The tail with each result named after its call, for results that answer an older turn than the last."""
    recent = {c.id for item in (history[-1], *tail) if isinstance(item, Assistant) for c in item.calls}
    return [_with_name(i, history) if isinstance(i, ToolResult) and i.call_id not in recent else i for i in tail]


def _with_name(item: ToolResult, history: Sequence[Item]) -> ToolResult:
    if item.name is not None:
        return item
    for turn in reversed(history):
        for call in turn.calls if isinstance(turn, Assistant) else ():
            if call.id == item.call_id:
                return replace(item, name=call.name)
    return item


def _join(rules: Rules, t: Ids, notes: set[str], state: tuple[int | None, Finish, Ids], opened: Opened) -> Bridge:
    """Fit the tail t = [close, ...] to what the model really ended with."""
    s, finish, _ = state
    c = last(take(t, 0, 1))
    written = c in rules.closes
    """Else the tail begins with what opens the next message: the template ends no turn."""
    if s is not None and s in rules.stop:
        if opened.reasoning:
            notes.add("stop_in_reasoning")
        elif opened.calls:
            notes.add("stop_in_call")
        if s == c:
            return Bridge(0, take(t, 1), 0, tuple(sorted(notes)))
        if written and c not in rules.stop:
            return Bridge(0, take(t, 1), 0, tuple(sorted(notes | {"close_alias"})))
        return Bridge(1, t, 0, tuple(sorted(notes | {"stop_trim"})))
    if s == c:
        return Bridge(0, take(t, 1), 0, tuple(sorted(notes)))
    close = concat([*closing(rules, opened), take(t, 0, int(written))])
    notes.add("truncated_extended" if finish != "stop" else "stop_string_tail")
    return Bridge(0, concat([close, take(t, int(written))]), count(close), tuple(sorted(notes)))


def closing(rules: Rules, opened: Opened) -> list[Ids]:
    """What closes the regions that a cut turn left open, the innermost first. Nobody sampled it."""
    parts: list[Ids] = []
    if opened.reasoning and rules.reasoning[1] is not None:
        parts += [ids([rules.reasoning[1]]), rules.after_reasoning]
    ends = (rules.calls[level][1] for level in reversed(opened.calls))
    return parts + [ids([end]) for end in ends if end is not None]


def open_regions(rules: Rules, sampled: Ids, prompt_thinks: Callable[[], bool]) -> Opened:
    """Which regions a sampled turn left open. `prompt_thinks`: whether its prompt had opened reasoning."""
    think, unthink = rules.reasoning
    wanted = {m for pair in (rules.reasoning, *rules.calls) for m in pair if m is not None}
    seen: list[int] = ids_array(sampled)[positions(sampled, wanted)].tolist() if wanted else []
    begun = {pair[0]: level for level, pair in enumerate(rules.calls)}
    ended = {pair[1]: level for level, pair in enumerate(rules.calls)}
    levels: list[int] = []
    for token in seen:
        level = begun.get(token, ended.get(token))
        if level is not None:  # whatever stood open at this level or inside it is over
            levels = [outer for outer in levels if outer < level]
            levels += [level] if token in begun else []
    # A call ends reasoning that was never closed: the reply parsers read it so.
    closed = unthink in seen or any(token in begun for token in seen)
    reasoning = think is not None and not closed and (think in seen or prompt_thinks())
    return Opened(reasoning, tuple(levels))


def _prompt_thinks(renderer: Renderer, rules: Rules, head: Head, history: Sequence[Item]) -> bool:
    """Whether the prompt of the turn that ends `history` had opened reasoning itself."""
    prefill = [history[-2]] if len(history) > 1 and isinstance(history[-2], Prefill) else []
    try:
        composed = renderer.compose(Ask(head, (*_CONTEXT, *prefill), tools=False))
    except Unsupported:
        return False
    values: list[int] = ids_array(renderer.encode(composed)[0]).tolist()
    return _rfind(values, rules.reasoning[0]) > _rfind(values, rules.reasoning[1])


def _rfind(values: list[int], wanted: int | None) -> int:
    return next((i for i in range(len(values) - 1, -1, -1) if values[i] == wanted), -1)


_RESULT = "zQresultQz"


def inner_tokens(renderer: Renderer, closes: frozenset[int], head: Head) -> frozenset[int] | None:
    """`Rules.inner`, found out: what stands between the last word of a turn and its end, for text, for a call and for
    a call without arguments. None where the template shows none of them."""
    found: set[int] = set()
    shown = False
    shapes: list[tuple[Assistant, Item]] = [(Assistant("x"), UserText(_RESULT))]
    shapes += [
        (Assistant(calls=(ToolCall("c1", "run", arguments),)), ToolResult("c1", _RESULT))
        for arguments in ('{"cmd": "x"}', "{}")
    ]
    for turn, tail in shapes:
        items = (*_CONTEXT, sentinel_turn(turn), tail)
        try:
            composed = renderer.compose(Ask(head, items, sentinel_at=len(_CONTEXT)))
        except Unsupported:
            continue
        end = composed.text.find(_RESULT, max(0, composed.inside))
        if composed.inside < 0 or end < 0:
            continue
        matches = renderer.codec.pattern.finditer(composed.text[:end], composed.inside)
        tokens = [renderer.codec.control_id(m.group()) for m in matches]
        closed = next((n for n, token in enumerate(tokens) if token in closes), None)
        if closed is not None:
            shown = True
            found.update(tokens[:closed])
    return frozenset(found) if shown else None
