"""Items to the messages that chat templates read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from tugline.core.items import Assistant, Item, Prefill, System, ToolCall, ToolResult, UserMedia, UserText
from tugline.tokens.callids import sampled_id, short_id
from tugline.tokens.marks import JSON, strings

Message = dict[str, JSON]

_DEPTH = 64
"""Parsed arguments that nest deeper are given to the template as text: it would recurse without end."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a template accepts, as found by trying it."""

    arguments: Literal["string", "dict"] = "string"
    """`string`: call arguments are printed verbatim. `dict`: the template wants the parsed object."""
    developer: bool = False
    """The template knows the role `developer`; else it becomes `system`."""
    parts: bool = False
    """It reads content as a list of parts only."""
    fold_system: bool = False
    """The template refuses, drops or moves system messages behind the first: they become user messages."""
    no_system: bool = False
    """It refuses or drops the first one too."""
    join_users: bool = False
    """It refuses user messages in a row: they become one."""
    split_calls: bool = False
    """It refuses, or does not show, more than one call of a turn: each stands in a message of its own, with its result
    behind it."""
    reasoning: str = "reasoning_content"
    """The key of a message that it reads reasoning from."""
    lone_reasoning: bool = False
    """It refuses text and reasoning in one turn that calls tools: the text stands at the end of the reasoning."""
    full_tools: bool = False
    """It refuses tools without a description or parameters: what is missing is given as empty."""
    short_ids: bool = False
    """It refuses call ids that are not nine letters and digits: they are given as such."""
    null_text: bool = False
    """It shows the calls of a turn only where the text of that turn is null."""
    unseen: frozenset[str] = frozenset()
    """What it leaves out without a word: of `tools` offered, `calls` made, their `results`, the `text` of a turn that
    also calls."""


def messages(
    items: Sequence[Item], shape: Shape, names: dict[str, str] | None = None
) -> tuple[list[Message], set[str]]:
    """Template messages of `items`, and drift reasons.

    `names` (call id -> tool name) is read and grown: results carry the name of the call that they answer. A `Prefill`
    in front of an assistant turn is the beginning of its text; one at the end is an assistant message of its own.
    Media are named in the text, for templates here are of models that read text: drift `media_omitted`.
    """
    builder = _Builder(shape, {} if names is None else names)
    builder.feed(items)
    builder.flush()
    return builder.out, builder.drift


def messages_around(items: Sequence[Item], shape: Shape, at: int) -> tuple[list[Message], set[str], int]:
    """The same, with the drift of what stands behind item `at`, an assistant turn, and the place of its message."""
    builder = _Builder(shape, {})
    builder.feed(items[: at + 1])
    place = len(builder.out) - 1
    builder.drift.clear()
    builder.feed(items[at + 1 :])
    builder.flush()
    return builder.out, builder.drift, place


def harness_strings(plan: Sequence[Message]) -> Iterator[str]:
    """Every string of the messages that a harness or a model wrote. Roles and keys of ours are not among them."""
    for message in plan:
        for key, value in message.items():
            if key == "tool_calls":
                for call in cast("list[dict[str, JSON]]", value):
                    yield str(call["id"])
                    yield from strings(call["function"])
            elif key != "role":
                yield str(value)


def rewritten(plan: Sequence[Message], text: Callable[[str], str], deep: Callable[[JSON], JSON]) -> list[Message]:
    """The messages with each such string passed through `text` (parsed call arguments through `deep`)."""
    return [
        {
            k: v if k == "role" else _call_list(v, text, deep) if k == "tool_calls" else text(str(v))
            for k, v in m.items()
        }
        for m in plan
    ]


def in_parts(plan: Sequence[Message]) -> list[Message]:
    """The messages with their text as a list of one part."""
    return [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in plan]


def with_null(plan: Sequence[Message]) -> list[Message]:
    """The messages with null as the text of each that calls and says nothing."""
    return [{**m, "content": None} if m.get("tool_calls") and m["content"] == "" else m for m in plan]


def _call_list(value: JSON, text: Callable[[str], str], deep: Callable[[JSON], JSON]) -> JSON:
    out: list[JSON] = []
    for call in cast("list[dict[str, dict[str, JSON]]]", value):
        function = call["function"]
        arguments = function["arguments"]
        spelled = text(arguments) if isinstance(arguments, str) else deep(arguments)
        named: JSON = {"name": text(str(function["name"])), "arguments": spelled}
        out.append({"id": text(str(call["id"])), "type": "function", "function": named})
    return out


def _deep(value: JSON, levels: int) -> bool:
    """Whether a value nests deeper than `levels`."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deep(v, levels - 1) for v in inner)


def _split(items: Sequence[Item], builder: _Builder) -> Iterator[Item]:
    """The items with each turn of several calls taken apart: call, its result, the next call, ..."""
    n = 0
    while n < len(items):
        turn = items[n]
        n += 1
        if not isinstance(turn, Assistant) or len(turn.calls) < 2:
            yield turn
            continue
        builder.drift.add("calls_split")
        results: list[ToolResult] = []
        while n < len(items) and isinstance(found := items[n], ToolResult):
            results.append(found)
            n += 1
        for place, call in enumerate(turn.calls):
            yield Assistant(turn.text if not place else None, turn.reasoning if not place else None, (call,))
            own = [r for r in results if r.call_id == call.id][:1] if place < len(turn.calls) - 1 else results
            yield from own
            results = [r for r in results if r not in own]


class _Builder:
    def __init__(self, shape: Shape, names: dict[str, str]) -> None:
        self.out: list[Message] = []
        self.drift: set[str] = set()
        self._shape = shape
        self._names = names
        self._prefill: str | None = None

    def feed(self, items: Sequence[Item]) -> None:
        for item in _split(items, self) if self._shape.split_calls else items:
            self.add(item)

    def add(self, item: Item) -> None:
        if self._prefill is not None and not isinstance(item, Assistant | Prefill):
            self.flush()
        match item:
            case System():
                self._system(item)
            case UserText():
                self._user(item)
            case ToolResult():
                self.out.append(self._result(item))
            case Assistant():
                self._assistant(item)
            case Prefill():
                self._prefill = (self._prefill or "") + item.text
            case UserMedia():
                self._user(UserText(self._omitted(item), item.joined))

    def flush(self) -> None:
        if self._prefill is not None:
            self.out.append({"role": "assistant", "content": self._prefill})
            self._prefill = None

    def _system(self, item: System) -> None:
        if self._shape.no_system:
            self.drift.add("system_as_user")
            self._said(item.text)
            return
        if self._shape.fold_system and self.out:
            if all(m["role"] in ("system", "developer") for m in self.out):
                self.out[-1]["content"] = f"{self.out[-1]['content']}\n\n{item.text}"
                self.drift.add("system_joined")
            else:
                self.drift.add("system_as_user")
                self._said(item.text)
            return
        keep = item.role == "developer" and self._shape.developer
        self.out.append({"role": "developer" if keep else "system", "content": item.text})

    def _user(self, item: UserText) -> None:
        if item.joined and self.out and self.out[-1]["role"] == "user":
            self.out[-1]["content"] = f"{self.out[-1]['content']}{item.text}"
        else:
            self._said(item.text)

    def _said(self, text: str) -> None:
        """A user message of its own, where the template has such."""
        if self._shape.join_users and self.out and self.out[-1]["role"] == "user":
            self.out[-1]["content"] = f"{self.out[-1]['content']}\n\n{text}"
            self.drift.add("users_joined")
        else:
            self.out.append({"role": "user", "content": text})

    def _omitted(self, item: UserMedia) -> str:
        self.drift.add("media_omitted")
        return f"[{item.media_type} omitted: this model reads text only]"

    def _result(self, item: ToolResult) -> Message:
        text = "\n".join(part for part in (item.text, *map(self._omitted, item.media)) if part)
        message: Message = {"role": "tool", "content": text, "tool_call_id": self._id(item.call_id)}
        name = item.name or self._names.get(item.call_id)
        if name is not None:
            message["name"] = name
        return message

    def _assistant(self, item: Assistant) -> None:
        text, reasoning = (self._prefill or "") + (item.text or ""), item.reasoning
        self._prefill = None
        if text and reasoning and item.calls and self._shape.lone_reasoning:
            text, reasoning = "", f"{reasoning}\n\n{text}"
            self.drift.add("text_in_reasoning")
        message: Message = {"role": "assistant", "content": text}
        if reasoning:
            message[self._shape.reasoning] = reasoning
        if item.calls:
            message["tool_calls"] = [self._call(call) for call in item.calls]
        self.out.append(message)

    def _call(self, call: ToolCall) -> JSON:
        self._names[call.id] = call.name
        function: JSON = {"name": call.name, "arguments": self._arguments(call)}
        return {"id": self._id(call.id), "type": "function", "function": function}

    def _id(self, wire: str) -> str:
        """What the template shows of a call's id: what was sampled as one, where the model samples them."""
        return short_id(wire) if self._shape.short_ids else sampled_id(wire)

    def _arguments(self, call: ToolCall) -> JSON:
        """Verbatim where the template allows it; else parsed. Text that is no JSON object is wrapped, never refused."""
        text = call.arguments
        if self._shape.arguments == "string":
            return text if text.strip() else "{}"
        try:
            value: JSON = msgspec.json.decode(text) if text.strip() else {}
        except (msgspec.DecodeError, RecursionError):
            value = text
        if _deep(value, _DEPTH):
            value = text
        if isinstance(value, dict):
            return value
        self.drift.add("args_not_object")
        return {"arguments": value}
