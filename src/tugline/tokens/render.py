"""The model's own chat template, run by transformers' renderer (no torch), with harness text made harmless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import msgspec

from tugline.core.columns import Ids
from tugline.core.errors import Unsupported, boundary
from tugline.core.items import Assistant, Head, Item, Prefill, ToolCall, ToolResult
from tugline.tokens import clock
from tugline.tokens.codec import Codec
from tugline.tokens.marks import JSON, Marks, Screen, strings, unused
from tugline.tokens.messages import (
    Message,
    Shape,
    harness_strings,
    in_parts,
    messages,
    messages_around,
    rewritten,
    with_null,
)

RESERVED = frozenset(
    (
        *("messages", "conversations", "tools", "chat_template", "self", clock.VARIABLE),
        *("add_generation_prompt", "continue_final_message", "return_assistant_tokens_mask"),
    )
)
"""Arguments of a template that are not for settings or requests to give: each prompt says them itself."""
_SENTINEL = "zQseNtineLQz"
_NONCE = "TgNeutraL"


@dataclass(frozen=True, slots=True)
class Composed:
    """Template output. Where harness text spelled a control token it carries placeholders; `marks` None: nowhere."""

    text: str
    marks: Marks | None = None
    inside: int = -1
    """Where the text behind the sentinel begins. -1: the sentinel is not there, or none was asked for."""
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

    def __init__(self, codec: Codec, template: str, specials: dict[str, JSON], shape: Shape) -> None:
        self.codec = codec
        self.template = template
        self.shape = shape
        self.specials = specials
        self.screen = Screen(codec.control)
        self.clocked = clock.reads(template)
        """The template prints the time: it is told the instant of `Head.clock`, whenever it is run."""
        self._source = clock.MACRO + template if self.clocked else template

    def compose(self, ask: Ask) -> Composed:
        """Run the template. Raises Unsupported when the template refuses the conversation."""
        try:
            made = self._composed(ask)
            return self._unforged(ask, made)
        except RecursionError as err:
            raise Unsupported("tools or arguments nest too deeply to be shown to a model") from err

    def _unforged(self, ask: Ask, made: Composed) -> Composed:
        """`made`, unless a word of the harness became a control token by the letters that the template puts around it
        (`<` KEY `>`): then without such words, counted. Words are left alone at first: templates compare them."""
        sources = [t.spec for t in ask.head.tools] if ask.tools else []
        if self.shape.arguments == "dict":
            sources += [c.arguments for item in ask.items if isinstance(item, Assistant) for c in item.calls]
        words: set[str] = set()
        for source in (ask.head.template_kwargs, *sources):
            words |= self.screen.words_in(source)
        tokens = [token for token in self.screen.around(words) if token in made.text] if words else []
        if not tokens:
            return made
        other = self._composed(ask, frozenset(word for word in words if any(word in token for token in tokens)))
        if all(other.text.count(token) == made.text.count(token) for token in tokens):
            return made
        return replace(other, drift=other.drift | {"special_in_text"})

    def _composed(self, ask: Ask, words: frozenset[str] = frozenset()) -> Composed:
        items = list(ask.items)
        prefill = isinstance(items[-1], Prefill) if items else False
        tools = self._tools(ask.head) if ask.tools else None
        at = -1
        if ask.sentinel_at is None:
            plan, drift = messages(items, self.shape)
            drift |= self._unseen(items, tools)
        else:  # what stands in front has been counted when it was said
            plan, drift, at = messages_around(items, self.shape, ask.sentinel_at)
        kwargs = _kwargs(ask.head)
        marks = self._screen(plan, tools, kwargs, (ask.head, words))
        if marks is not None:
            plan = rewritten(plan, marks.text, marks.deep)
            tools = cast("list[JSON] | None", marks.deep(tools))
            kwargs = cast("dict[str, JSON]", marks.deep(kwargs))
        base = Composed("", marks, -1, frozenset(drift))
        run = _Run(tools, kwargs, ask.head.clock, ask.generation)
        if prefill:
            # A prompt that ends inside an assistant message: rendered whole, cut behind its text.
            run = replace(run, generation=False, cut=unused("zQprefilLQz", harness_strings(plan)))
            plan[-1] = {**plan[-1], "content": f"{plan[-1]['content']}{run.cut}"}
        if at >= 0:
            return self._checked(self._marked(plan, run, base, at))
        return self._checked(replace(base, text=self._run(plan, run)))

    def _marked(self, plan: list[Message], run: _Run, base: Composed, at: int) -> Composed:
        """With a sentinel as the last word of message `at`.

        A call without arguments has none to carry it: there its name does, as a template may write such a call in a
        way of its own. Where names are not shown, it gets an argument after all.
        """
        sentinel = unused(_SENTINEL, harness_strings(plan))
        name = _bare_call(plan[at])
        if name is not None:
            try:
                text = self._run([*plan[:at], _renamed(plan[at], sentinel), *plan[at + 1 :]], run)
            except Unsupported:
                text = ""
            if sentinel in text:
                inside = text.find(sentinel) + len(sentinel)
                return replace(base, text=text[:inside] + text[inside:].replace(sentinel, name), inside=inside)
        _plant(plan[at], sentinel, self.shape)
        text = self._run(plan, run)
        found = text.rfind(sentinel)
        return replace(base, text=text, inside=-1 if found < 0 else found + len(sentinel))

    def encode(self, composed: Composed, start: int = 0) -> tuple[Ids, frozenset[str]]:
        """Ids of composed.text[start:], and drift. `start` must be where a control token begins, or 0.

        Equal to the stock one-pass encoding when no harness text spells a control token.
        """
        text, marks = composed.text[start:], composed.marks
        if marks is None:
            return self.codec.encode_marked(text, str), composed.drift
        drift = composed.drift
        found = marks.placeholder.findall(text) if marks.literals else []
        if any(name in marks.whole for name in found):
            drift |= {"special_in_text"}
        return self.codec.encode_marked(text, marks.restore), drift

    def _screen(
        self,
        plan: list[Message],
        tools: list[JSON] | None,
        kwargs: dict[str, JSON],
        asked: tuple[Head, frozenset[str]],
    ) -> Marks | None:
        """Marks to use, or None when nothing in the request spells a control token (the usual case). `asked`: the head,
        and words that are to be swapped wherever they stand."""
        head, words = asked
        clean = self.screen.clean
        dirty = (
            bool(words)
            or any(not clean(s) for s in harness_strings(plan))
            or any(not clean(s, words=False) for s in strings(kwargs))
        )
        if not dirty and tools is not None:
            # Raw text first: walking a large tool list costs more than all the rest.
            raw_ok = all(self.screen.free_json(t.spec) for t in head.tools)
            dirty = not raw_ok and any(not clean(s, words=False) for s in strings(cast("JSON", tools)))
        if not dirty:
            return None
        everything = [*harness_strings(plan), *strings(cast("JSON", tools)), *strings(kwargs)]
        return Marks(self.screen, unused(_NONCE, everything), {}, set(), words)

    def _unseen(self, items: Sequence[Item], tools: list[JSON] | None) -> set[str]:
        """Drift of what the template leaves out."""
        if not self.shape.unseen:
            return set()
        held = {
            "tools_unseen": bool(tools),
            "calls_unseen": any(isinstance(i, Assistant) and i.calls for i in items),
            "results_unseen": any(isinstance(i, ToolResult) for i in items),
            "text_unseen": any(isinstance(i, Assistant) and i.calls and i.text for i in items),
        }
        return {drift for drift, there in held.items() if there and drift.partition("_")[0] in self.shape.unseen}

    def _tools(self, head: Head) -> list[JSON] | None:
        with boundary(Unsupported, "tools"):
            specs: list[JSON] = [msgspec.json.decode(t.spec) for t in head.tools]
        return (list(map(_filled, specs)) if self.shape.full_tools else specs) or None

    def _checked(self, composed: Composed) -> Composed:
        if composed.marks is not None and composed.marks.altered(composed.text):
            return replace(composed, drift=composed.drift | {"text_transformed"})
        return composed

    def _run(self, plan: list[Message], run: _Run) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        if self.shape.null_text:
            plan = with_null(plan)
        told: dict[str, JSON] = {clock.VARIABLE: clock.told(run.clock)} if self.clocked else {}
        with boundary(Unsupported, "the chat template refuses this conversation"):
            rendered, _ = render_jinja_template(
                conversations=[in_parts(plan) if self.shape.parts else plan],
                tools=run.tools,
                chat_template=self._source,
                add_generation_prompt=run.generation,
                **{**self.specials, **run.kwargs, **told},
            )
        text = str(rendered[0])
        if not run.cut:
            return text
        if run.cut not in text:
            raise Unsupported("this chat template cannot continue an assistant message", path="messages")
        return text[: text.rfind(run.cut)]


@dataclass(frozen=True, slots=True)
class _Run:
    """What a template gets besides messages. `clock`: Unix seconds. `cut`: where its output is to end, if in a word."""

    tools: list[JSON] | None
    kwargs: dict[str, JSON]
    clock: int
    generation: bool
    cut: str = ""


def _filled(spec: JSON) -> JSON:
    """A tool with an empty description and parameters where it has none."""
    function = spec.get("function") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(function, dict):
        return spec
    nothing: dict[str, JSON] = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return {**spec, "function": {**function, **{k: v for k, v in nothing.items() if function.get(k) is None}}}


def _kwargs(head: Head) -> dict[str, JSON]:
    if head.template_kwargs == "{}":
        return {}
    with boundary(Unsupported, "chat_template_kwargs"):
        kwargs = cast("dict[str, JSON]", msgspec.json.decode(head.template_kwargs, type=dict[str, object]))
    if taken := sorted(RESERVED & kwargs.keys()):
        raise Unsupported(f"{', '.join(taken)} cannot be set: every prompt has its own", path="chat_template_kwargs")
    return kwargs


def _plant(message: Message, sentinel: str, shape: Shape) -> None:
    """Put the sentinel where the template writes last: the last argument of the last call, else the text."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        message["content"] = sentinel
        return
    message["content"] = ""
    last = cast("dict[str, dict[str, JSON]]", calls[-1])
    last["function"]["arguments"] = {"zz": sentinel} if shape.arguments == "dict" else f'{{"zz": "{sentinel}"}}'


def _bare_call(message: Message) -> str | None:
    """The name of the last call, if that call has no arguments."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return None
    function = cast("dict[str, dict[str, JSON]]", calls[-1])["function"]
    return str(function["name"]) if function["arguments"] in ({}, "{}") else None


def _renamed(message: Message, name: str) -> Message:
    """The message with another name in its last call."""
    *before, last = cast("list[dict[str, dict[str, JSON]]]", message["tool_calls"])
    call: JSON = {**last, "function": {**last["function"], "name": name}}
    return {**message, "tool_calls": [*cast("list[JSON]", before), call]}


def sentinel_turn(turn: Assistant) -> Assistant:
    """`turn` without the parts that a bridge must not depend on: only ids and names of calls stay, and whether each
    has arguments."""
    calls = tuple(ToolCall(c.id, c.name, "{}" if no_arguments(c) else '{"zz":"z"}') for c in turn.calls)
    return Assistant(text=None if calls else "x", reasoning=None, calls=calls)


def no_arguments(call: ToolCall) -> bool:
    """Whether a call has no arguments, as models write that."""
    return call.arguments.strip() in ("", "{}", "null")
