"""What a harness holds: a conversation whose model turns remember which generation they came from. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import msgspec

from tugline.core.columns import Floats, Ids
from tugline.core.items import Assistant, Item, System, Tool, ToolCall, ToolResult, UserText


@dataclass(frozen=True, slots=True)
class ReplyIds:
    """Token ids that a reply itself told. logprobs float32, one per sampled id, or None."""

    prompt: Ids
    sampled: Ids
    logprobs: Floats | None


@dataclass(frozen=True, slots=True)
class Heard:
    """A reply as a client of its API understands it."""

    said: Assistant
    finish: str
    """stop | tool_calls | length"""
    raw: tuple[Any, ...] = ()
    """Elements of the API's list that echo the turn as it came."""
    ids: ReplyIds | None = None


@dataclass(frozen=True, slots=True)
class Echo:
    """A model turn in the conversation."""

    said: Assistant
    """As the harness sends it."""
    of: int | None = None
    """Number of the generation that it is; None: the harness made it up."""
    meaning: bool = True
    """It still means what was sampled."""
    raw: tuple[Any, ...] = ()
    """While it was not edited: the turn as it came."""
    new: tuple[str, ...] = ()
    """Words of the harness's own that the model must read, because the meaning changed."""
    gone: tuple[str, ...] = ()
    """Words of the model's that it must not read any more."""

    def edited(self, said: Assistant) -> Echo:
        """In other words of the same meaning."""
        return replace(self, said=said, raw=())

    def changed(self, said: Assistant, *, new: Sequence[str], gone: Sequence[str] = ()) -> Echo:
        """With another meaning."""
        return replace(self, said=said, raw=(), meaning=False, new=tuple(new), gone=tuple(gone))


Entry: TypeAlias = System | UserText | ToolResult | Echo
"""What a conversation is made of."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a harness, before an API spells it."""

    talk: tuple[Entry, ...]
    tools: tuple[Tool, ...] = ()
    stream: bool = False
    model: str = "policy"
    key: str = ""
    max_tokens: int = 4000


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request as an API spells it."""

    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


def tool(name: str, description: str = "") -> Tool:
    """A function of one text parameter and one number."""
    parameters = {
        "type": "object",
        "properties": {"command": {"type": "string"}, "n": {"type": "number"}},
        "required": ["command"],
    }
    function = {"name": name, "description": description or f"Runs {name}.", "parameters": parameters}
    return Tool(name, msgspec.json.encode({"type": "function", "function": function}).decode())


def function_of(one: Tool) -> dict[str, Any]:
    """{"name", "description", "parameters"} of a tool."""
    function: dict[str, Any] = msgspec.json.decode(one.spec)["function"]
    return function


def as_messages(items: Sequence[Entry | Item]) -> list[dict[str, Any]]:
    """The conversation as chat templates read it; call arguments are text."""
    out: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for item in items:
        said = item.said if isinstance(item, Echo) else item
        match said:
            case System():
                role = said.role if said.role in ("system", "developer") else "system"
                out.append({"role": role, "content": said.text})
            case UserText():
                if said.joined and out and out[-1]["role"] == "user":
                    out[-1]["content"] += said.text
                else:
                    out.append({"role": "user", "content": said.text})
            case ToolResult():
                name = said.name or names.get(said.call_id, "")
                out.append({"role": "tool", "tool_call_id": said.call_id, "name": name, "content": said.text})
            case Assistant():
                names |= {call.id: call.name for call in said.calls}
                out.append(_turn(said))
    return out


def _turn(said: Assistant) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": said.text or ""}
    if said.reasoning:
        made["reasoning"] = made["reasoning_content"] = said.reasoning
    if said.calls:
        made["tool_calls"] = [_call(call) for call in said.calls]
    return made


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
