"""The model's own chat template, run by transformers' renderer (no torch), with harness text made harmless."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec

from tugline.core.columns import Ids
from tugline.core.errors import Unsupported, boundary
from tugline.core.items import Assistant, Head, Item, Prefill, ToolCall
from tugline.tokens.codec import Codec
from tugline.tokens.marks import JSON, Marks, Screen, strings, unused
from tugline.tokens.messages import Message, Shape, harness_strings, messages, rewritten

_SENTINEL = "zQseNtineLQz"
_NONCE = "TgNeutraL"
_ESCAPE = re.compile(r"\\[u/]")
"""A JSON escape that can hide a control token from a search of the raw text."""


@dataclass(frozen=True, slots=True)
class Composed:
    """Template output. Where harness text spelled a control token it carries placeholders; `marks` None: nowhere."""

    text: str
    marks: Marks | None = None
    sentinel: str = ""
    drift: frozenset[str] = field(default_factory=frozenset)

    def literal(self, start: int = 0) -> str:
        """text[start:] as a reader would see it, placeholders replaced by what they stand for."""
        return self.text[start:] if self.marks is None else self.marks.restore(self.text[start:])


@dataclass(frozen=True, slots=True)
class Ask:
    """What to render. `sentinel`: put a marker where the template writes the last word of assistant `at` (index into
    items); `generation`: end with the generation prompt."""

    head: Head
    items: tuple[Item, ...]
    sentinel_at: int | None = None
    generation: bool = True
    tools: bool = True


class Renderer:
    """One template with one tokenizer. Immutable; safe to share between threads."""

    def __init__(self, codec: Codec, template: str, specials: dict[str, str], shape: Shape) -> None:
        self.codec = codec
        self.template = template
        self.shape = shape
        self._specials = specials
        self.screen = Screen(codec.control)

    def compose(self, ask: Ask) -> Composed:
        """Run the template. Raises Unsupported when the template refuses the conversation."""
        try:
            return self._composed(ask)
        except RecursionError as err:
            raise Unsupported("tools or arguments nest too deeply to be shown to a model") from err

    def _composed(self, ask: Ask) -> Composed:
        items = list(ask.items)
        prefill = isinstance(items[-1], Prefill) if items else False
        plan, drift = messages(items, self.shape)
        tools = self._tools(ask.head) if ask.tools else None
        kwargs = _kwargs(ask.head)
        marks = self._screen(plan, tools, kwargs, ask.head)
        if marks is not None:
            plan = rewritten(plan, marks.text, marks.deep)
            tools = cast("list[JSON] | None", marks.deep(tools))
            kwargs = cast("dict[str, JSON]", marks.deep(kwargs))
        sentinel = ""
        if ask.sentinel_at is not None:
            sentinel = unused(_SENTINEL, harness_strings(plan))
            position = _message_index(items, ask.sentinel_at, self.shape)
            _plant(plan[position], sentinel, self.shape)
        if prefill:
            return self._prefilled(plan, tools, kwargs, Composed("", marks, sentinel, frozenset(drift)))
        text = self._run(plan, tools, kwargs, ask.generation)
        return self._checked(Composed(text, marks, sentinel, frozenset(drift)))

    def encode(self, composed: Composed, start: int = 0) -> tuple[Ids, frozenset[str]]:
        """Ids of composed.text[start:], and drift. `start` must be where a control token begins, or 0.

        Equal to the stock one-pass encoding when no harness text spells a control token.
        """
        text, marks = composed.text[start:], composed.marks
        if marks is None:
            column = self.codec.encode(text)
            if self.codec.controls_in(column) == len(self.codec.pattern.findall(text)):
                return column, composed.drift
            marks = Marks(self.screen, unused(_NONCE, (text,)), {}, set())
        drift = composed.drift
        found = marks.placeholder.findall(text) if marks.literals else []
        if any(name in marks.whole for name in found):
            drift |= {"special_in_text"}
        return self.codec.encode_marked(text, marks.restore), drift

    def _screen(
        self, plan: list[Message], tools: list[JSON] | None, kwargs: dict[str, JSON], head: Head
    ) -> Marks | None:
        """Marks to use, or None when nothing in the request spells a control token (the usual case)."""
        clean, free = self.screen.clean, self.screen.free
        dirty = any(not clean(s) for s in harness_strings(plan)) or any(not free(s) for s in strings(kwargs))
        if not dirty and tools is not None:
            # Raw text first: walking a large tool list costs more than all the rest.
            raw_ok = all(not _ESCAPE.search(t.spec) and free(t.spec) for t in head.tools)
            dirty = not raw_ok and any(not free(s) for s in strings(cast("JSON", tools)))
        if not dirty:
            return None
        everything = [*harness_strings(plan), *strings(cast("JSON", tools)), *strings(kwargs)]
        return Marks(self.screen, unused(_NONCE, everything), {}, set())

    def _tools(self, head: Head) -> list[JSON] | None:
        with boundary(Unsupported, "tools"):
            return [msgspec.json.decode(t.spec) for t in head.tools] or None

    def _prefilled(
        self, plan: list[Message], tools: list[JSON] | None, kwargs: dict[str, JSON], base: Composed
    ) -> Composed:
        """A prompt that ends inside an assistant message: render it whole, cut behind its text."""
        end = unused("zQprefilLQz", harness_strings(plan))
        plan[-1] = {**plan[-1], "content": f"{plan[-1]['content']}{end}"}
        text = self._run(plan, tools, kwargs, False)
        cut = text.rfind(end)
        if cut < 0:
            raise Unsupported("this chat template cannot continue an assistant message", path="messages")
        return self._checked(Composed(text[:cut], base.marks, base.sentinel, base.drift))

    def _checked(self, composed: Composed) -> Composed:
        if composed.marks is not None and composed.marks.altered(composed.text):
            return Composed(composed.text, composed.marks, composed.sentinel, composed.drift | {"text_transformed"})
        return composed

    def _run(self, plan: list[Message], tools: list[JSON] | None, kwargs: dict[str, JSON], generation: bool) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        with boundary(Unsupported, "the chat template refuses this conversation"):
            rendered, _ = render_jinja_template(
                conversations=[plan],
                tools=tools,
                chat_template=self.template,
                add_generation_prompt=generation,
                **{**self._specials, **kwargs},
            )
        return str(rendered[0])


def _kwargs(head: Head) -> dict[str, JSON]:
    if head.template_kwargs == "{}":
        return {}
    with boundary(Unsupported, "chat_template_kwargs"):
        return cast("dict[str, JSON]", msgspec.json.decode(head.template_kwargs, type=dict[str, object]))


def _message_index(items: Sequence[Item], at: int, shape: Shape) -> int:
    """Index of the message that item `at`, an assistant turn, became."""
    return len(messages(items[: at + 1], shape)[0]) - 1


def _plant(message: Message, sentinel: str, shape: Shape) -> None:
    """Put the sentinel where the template writes last: the last argument of the last call, else the text."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        message["content"] = sentinel
        return
    message["content"] = ""
    last = cast("dict[str, dict[str, JSON]]", calls[-1])
    last["function"]["arguments"] = {"zz": sentinel} if shape.arguments == "dict" else f'{{"zz": "{sentinel}"}}'


def sentinel_turn(turn: Assistant) -> Assistant:
    """`turn` without the parts that a bridge must not depend on: only call ids and names stay."""
    calls = tuple(ToolCall(c.id, c.name, "{}") for c in turn.calls)
    return Assistant(text=None if calls else "x", reasoning=None, calls=calls)
