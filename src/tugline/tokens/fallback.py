"""The bridge of the `renderers` library, for what a tail splice cannot serve.

That library writes each family's turns by hand. Its bridge keeps the ids that came before and adds what comes next. It
encodes with our codec, over text made harmless as everywhere here, so that harness text becomes no control token there
either. What it writes is its author's reading of a template, not the template: a trial compares the two, and where they
were seen to differ every such bridge says so (`format_differs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tugline.core.columns import NO_IDS, Ids, concat, count, ids, ids_list, last, take
from tugline.core.errors import Unsupported, boundary
from tugline.core.items import Assistant, Head, Item, Prefill, System, Tool, ToolCall, ToolResult, UserText
from tugline.core.turn import Finish
from tugline.tokens.codec import Codec, positions
from tugline.tokens.marks import Marks, unused
from tugline.tokens.messages import harness_strings, messages, rewritten
from tugline.tokens.render import Ask, Renderer
from tugline.tokens.splice import Bridge, BridgeRefused, Rules, kind_of

_SEEN = 512
"""Tokens of the prompt that the library is shown: it looks for how the assistant turn was opened."""
_NONCE = "TgNeutraL"
_BEFORE: tuple[Item, ...] = (UserText("."), Assistant("x"))
"""Stands for the history: what a tail becomes depends on there being one."""
_OWN_ENCODER = frozenset({"gpt-oss"})
"""Renderers that encode with a vocabulary of their own: text made harmless would not come back."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What is known of one hand-written bridge beside one template. `kinds`: items (user, tool, system) behind which
    it wrote what the template writes at least once. `why`: in what it fails, "" = in nothing."""

    name: str
    kinds: frozenset[str] = frozenset()
    compared: int = 0
    equal: int = 0
    why: str = ""
    example: str = ""

    @property
    def usable(self) -> bool:
        """Whether it may serve anything at all."""
        return bool(self.kinds)

    @property
    def differs(self) -> bool:
        """It was seen to write something else than the template."""
        return self.equal < self.compared


@dataclass(frozen=True, slots=True)
class Parent:
    """The sampled turn that a bridge goes on from. `prompt`: the ids that it was sampled on, or their end."""

    prompt: Ids
    sampled: Ids
    finish: Finish


def hand_bridge(
    renderer: Renderer, rules: Rules, name: str, asked: tuple[Head, Sequence[Item], Sequence[Item]], parent: Parent
) -> Bridge:
    """`name`: in `renderers`. `asked`: as in `splice.bridge`.

    Raises BridgeRefused where the library refuses, or writes what may not be: other ids in the place of sampled ones
    (`renderers_rewrites`), harness text that is no longer as it was (`renderers_unmarked`).
    """
    head, history, tail = asked
    if name in _OWN_ENCODER:
        raise BridgeRefused("renderers_own_encoder")
    if any(isinstance(item, Assistant | Prefill) for item in tail):
        raise BridgeRefused("renderers_assistant")
    names = {c.id: c.name for item in history if isinstance(item, Assistant) for c in item.calls}
    plan, drift = messages((*_BEFORE, *tail), replace(renderer.shape, parts=False), names)
    plan = plan[len(_BEFORE) :]
    marks: Marks | None = None
    strings = list(harness_strings(plan))
    if not all(renderer.screen.clean(s) for s in strings):
        marks = Marks(renderer.screen, unused(_NONCE, strings), {}, set())
        plan = rewritten(plan, marks.text, marks.deep)
    before = concat([take(parent.prompt, max(0, count(parent.prompt) - _SEEN)), parent.sampled])
    shown = len(before) - len(parent.sampled)
    try:
        with boundary(Unsupported, "renderers"):
            library = _library(_Tokenizer(renderer.codec, marks), name, head, renderer.template)
            made = library.bridge_to_next_turn(ids_list(Ids(before[:shown])), ids_list(parent.sampled), plan)
            stops = frozenset(library.get_stop_token_ids())
    except Unsupported as err:
        raise BridgeRefused("renderers_failed") from err
    if made is None:
        raise BridgeRefused("renderers_none")
    if marks is not None:
        if marks.nonce.lower() in renderer.codec.decode(made.token_ids).lower():
            raise BridgeRefused("renderers_unmarked")
        if marks.whole:
            drift.add("special_in_text")
    return _joined(ids(made.token_ids), before, rules.closes | stops, parent, (rules.stop | stops, drift))


def _joined(
    whole: Ids, before: Ids, closes: frozenset[int], parent: Parent, noted: tuple[frozenset[int], set[str]]
) -> Bridge:
    """What was added to `before`, all of which must stand in front but for one stop token."""
    stop, drift = noted
    drift.add("renderers_bridge")
    ended = last(parent.sampled) in stop
    drop = 0 if whole.startswith(before) else 1
    if drop and not (ended and whole.startswith(before[:-4])):
        raise BridgeRefused("renderers_rewrites")
    added = Ids(whole[len(before) - 4 * drop :])
    synthesised = 0
    if drop:
        drift.add("stop_trim")
    elif not ended:
        found = positions(added, closes)
        synthesised = int(found[0]) + 1 if len(found) else 0
        drift.add("truncated_extended" if parent.finish != "stop" else "stop_string_tail")
    return Bridge(drop, added, synthesised, tuple(sorted(drift)))


def _library(tokenizer: _Tokenizer, name: str, head: Head, template: str) -> Any:
    """The renderer of that name, told to keep reasoning: what was sampled is never taken out here.

    It refuses arguments that it does not know. One that the template never names changes nothing, and is left out.
    """
    from renderers.base import create_renderer, template_field_names
    from renderers.configs import config_from_name

    config = config_from_name(name)
    if config is None:
        raise Unsupported(f"{name!r} names no renderer of its own")
    given = msgspec.json.decode(head.template_kwargs, type=dict[str, Any])
    known = template_field_names(config)
    kwargs = {name: value for name, value in given.items() if name in known or name in template}
    keeping = type(config)(thinking_retention="all")
    return create_renderer(tokenizer, keeping, chat_template_kwargs=kwargs or None)


class _Tokenizer:
    """The little of a transformers tokenizer that `renderers` asks for. Text that it gives is the library's own but
    for the placeholders in it, which are encoded as the plain text that they stand for."""

    unk_token_id = None
    name_or_path = ""

    def __init__(self, codec: Codec, marks: Marks | None) -> None:
        self._codec = codec
        self._marks = marks

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return self._codec.decode(ids, specials=not skip_special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        # Never the stock encoding: normal forms of letters may spell a control token to it.
        return ids_list(self._codec.encode_marked(text, self._marks.restore if self._marks is not None else str))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._codec.token(token)


# ------------------------------------------------------------------------------------------------------------ trial

_TOOLS = tuple(
    Tool(
        name,
        f'{{"type":"function","function":{{"name":"{name}","description":"{name}s","parameters":'
        '{"type":"object","properties":{"cmd":{"type":"string"}}}}}',
    )
    for name in ("run", "read")
)
_HEAD = Head(_TOOLS)


def renderers_trial(renderer: Renderer, rules: Rules, name: str) -> Trial:
    """Try a hand-written bridge out beside the template. Never raises."""
    kinds: set[str] = set()
    compared = equal = 0
    why = example = ""
    for history, turn, tail in _talks():
        shapes = {kind_of(item) for item in tail}
        try:
            same, shown = _compare(renderer, rules, name, (history, turn, tail))
        except BridgeRefused as refused:
            why = why or ": ".join(filter(None, (refused.reason, str(refused.__cause__ or ""))))
            continue
        except Unsupported:  # the template takes no such conversation
            continue
        compared += 1
        equal += same
        if same:
            kinds |= shapes
        else:
            why, example = why or f"writes something else behind {'+'.join(sorted(shapes))}", example or shown
    return Trial(name, frozenset(kinds), compared, equal, why, example)


def _compare(
    renderer: Renderer, rules: Rules, name: str, talk: tuple[list[Item], Assistant, list[Item]]
) -> tuple[bool, str]:
    """Whether the bridge is how the one-pass render goes on, and else both ends. The turn is said to have been sampled
    as the template writes it, where that begins with the prompt; else only what stands behind it is compared."""
    history, turn, tail = talk
    prompt = renderer.encode(renderer.compose(Ask(_HEAD, tuple(history))))[0]
    whole = renderer.encode(renderer.compose(Ask(_HEAD, (*history, turn, *tail))))[0]
    asked = (_HEAD, [*history, turn], tail)
    made = NO_IDS
    if whole.startswith(prompt):
        rest = Ids(whole[len(prompt) :])
        candidates = [take(rest, 0, int(end) + 1) for end in positions(rest, rules.closes)[:6]]
    else:
        candidates = [ids((close,)) for close in sorted(rules.closes)]
    for sampled in candidates:
        bridge = hand_bridge(renderer, rules, name, asked, Parent(prompt, sampled, "stop"))
        made = concat([take(sampled, 0, -bridge.drop or None), bridge.ids])
        if whole.endswith(made):
            return True, ""
    ends = (renderer.codec.decode(Ids(column[-240:])) for column in (whole, made))
    return False, " against ".join(map(repr, ends))


def _talks() -> Iterator[tuple[list[Item], Assistant, list[Item]]]:
    """Conversations, a turn that is sampled, and what comes behind it."""
    start: list[Item] = [System("Be brief."), UserText("What is here?")]
    calls = tuple(ToolCall(f"functions.{n}:{i}", n, '{"cmd": "ls"}') for i, n in enumerate(("run", "read")))
    results = tuple(ToolResult(c.id, f"{c.name} says\n\n so", c.name) for c in calls)
    past: list[Item] = [*start, Assistant(None, "hm", calls[:1]), results[0]]
    yield start, Assistant("Hello.", "They greet."), [UserText(" Now  work.\n")]
    yield start, Assistant("Hello."), [UserText("Now work.")]
    for reasoning in (None, "I must look."):
        yield start, Assistant(None, reasoning, calls[:1]), [results[0]]
        yield start, Assistant(None, reasoning, calls), [*results]
        yield past, Assistant(None, reasoning, calls[1:]), [results[1]]
        yield past, Assistant("Done.", reasoning), [UserText("And now?")]
    yield start, Assistant("On it.", None, calls[:1]), [results[0]]
    yield past, Assistant("Both.", "I must look.", calls), [*results]
    yield start, Assistant(None, None, calls[:1]), [results[0], UserText("Also this.")]
    yield start, Assistant(None, None, (replace(calls[0], arguments="{}"),)), [replace(results[0], text="")]
    yield start, Assistant("Hello."), [System("A note."), UserText("Go on.")]
