"""One conversation, written as four APIs have it. A wire is a list of whatever the API's list holds."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

Raw = msgspec.Raw
IMAGES = (b"\x89PNG one", b"\x89PNG two")
Wire = list[Any]


@dataclass(frozen=True)
class Tool:
    name: str
    description: str | None
    parameters: dict[str, Any]


@dataclass(frozen=True)
class User:
    """Parts: text, or the number of an image."""

    parts: tuple[str | int, ...]


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Said:
    text: str | None
    reasoning: str | None
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class Result:
    call: Call
    text: str
    image: int | None


@dataclass(frozen=True)
class Talk:
    """`turns` begins with a user's; each Said with calls is followed by their Results in any order."""

    system: tuple[str, ...]
    tools: tuple[Tool, ...]
    turns: tuple[User | Said | tuple[Result, ...], ...]


def encoded(number: int) -> str:
    return base64.b64encode(IMAGES[number]).decode()


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


# ------------------------------------------------------------------------------------------------------- chat


def chat_part(part: str | int) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded(part)}"}}


def chat_wire(talk: Talk) -> Wire:
    wire: Wire = [{"role": "system", "content": text} for text in talk.system]
    for turn in talk.turns:
        match turn:
            case User(parts):
                wire.append({"role": "user", "content": [chat_part(p) for p in parts]})
            case Said(text, reasoning, calls):
                made = [
                    {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                    for c in calls
                ]
                wire.append({"role": "assistant", "content": text, "reasoning_content": reasoning, "tool_calls": made})
            case results:
                for r in results:
                    parts = [chat_part(r.text), *([chat_part(r.image)] if r.image is not None else [])]
                    wire.append({"role": "tool", "tool_call_id": r.call.id, "content": parts})
    return wire


def chat_body(talk: Talk, wire: Wire) -> dict[str, Any]:
    tools = [{"type": "function", "function": function(t)} for t in talk.tools]
    return {"model": "m", "messages": wire, "tools": tools}


def function(tool: Tool, parameters: str = "parameters") -> dict[str, Any]:
    described = {} if tool.description is None else {"description": tool.description}
    return {"name": tool.name, **described, parameters: tool.parameters}


# -------------------------------------------------------------------------------------------------- anthropic


def anthropic_block(part: str | int) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(part)}}


def anthropic_wire(talk: Talk) -> Wire:
    """Results and the user's words behind them share a message."""
    wire: Wire = []
    for turn in talk.turns:
        match turn:
            case User(parts):
                blocks = [anthropic_block(p) for p in parts]
                role = "user"
            case Said(text, reasoning, calls):
                blocks = [{"type": "thinking", "thinking": reasoning, "signature": "s"}] if reasoning else []
                blocks += [{"type": "text", "text": text}] if text else []
                blocks += [
                    {"type": "tool_use", "id": c.id, "name": c.name, "input": anthropic_input(c.arguments)}
                    for c in calls
                ]
                role = "assistant"
            case results:
                blocks = [
                    {
                        "type": "tool_result",
                        "tool_use_id": r.call.id,
                        "content": [anthropic_block(p) for p in (r.text, r.image) if p is not None],
                    }
                    for r in results
                ]
                role = "user"
        if wire and wire[-1]["role"] == role == "user":
            wire[-1]["content"] += blocks
        else:
            wire.append({"role": role, "content": blocks})
    return wire


def anthropic_input(arguments: str) -> Any:
    if is_object(arguments):
        return Raw(arguments.encode())
    return {"__unparsedToolInput": {"raw": arguments, "len": len(arguments)}}


def anthropic_body(talk: Talk, wire: Wire) -> dict[str, Any]:
    tools = [function(t, "input_schema") for t in talk.tools]
    system = [{"type": "text", "text": text} for text in talk.system]
    return {"model": "m", "max_tokens": 99, "system": system, "messages": wire, "tools": tools}


# -------------------------------------------------------------------------------------------------- responses


def responses_part(part: str | int) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    return {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{encoded(part)}"}


def responses_wire(talk: Talk) -> Wire:
    wire: Wire = [{"role": "system", "content": text} for text in talk.system]
    for turn in talk.turns:
        match turn:
            case User(parts):
                wire.append({"role": "user", "content": [responses_part(p) for p in parts]})
            case Said(text, reasoning, calls):
                if reasoning:
                    wire.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": reasoning}]})
                if text:
                    content = [{"type": "output_text", "text": text, "annotations": []}]
                    wire.append({"type": "message", "role": "assistant", "content": content})
                wire += [
                    {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": c.arguments} for c in calls
                ]
            case results:
                for r in results:
                    output = [responses_part(p) for p in (r.text, r.image) if p is not None]
                    wire.append({"type": "function_call_output", "call_id": r.call.id, "output": output})
    return wire


def responses_body(talk: Talk, wire: Wire) -> dict[str, Any]:
    tools = [{"type": "function", "strict": False, **function(t)} for t in talk.tools]
    return {"model": "m", "input": wire, "tools": tools, "store": False}


# ----------------------------------------------------------------------------------------------------- gemini


def gemini_part(part: str | int) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    return {"inlineData": {"mimeType": "image/png", "data": encoded(part)}}


def gemini_wire(talk: Talk) -> Wire:
    wire: Wire = []
    for turn in talk.turns:
        match turn:
            case User(parts):
                wire.append({"role": "user", "parts": [gemini_part(p) for p in parts]})
            case Said(text, reasoning, calls):
                made = [{"text": reasoning, "thought": True}] if reasoning else []
                made += [{"text": text}] if text else []
                made += [
                    {"functionCall": {"id": c.id, "name": c.name, "args": gemini_args(c.arguments)}} for c in calls
                ]
                wire.append({"role": "model", "parts": made})
            case results:
                made = []
                for r in results:
                    answer = {"id": r.call.id, "name": r.call.name, "response": {"output": r.text}}
                    media = {} if r.image is None else {"parts": [gemini_part(r.image)]}
                    made.append({"functionResponse": answer | media})
                wire.append({"role": "user", "parts": made})
    return wire


def gemini_args(arguments: str) -> Any:
    return Raw(arguments.encode()) if is_object(arguments) else {"__raw_arguments": arguments}


def gemini_body(talk: Talk, wire: Wire) -> dict[str, Any]:
    declared = [function(t, "parametersJsonSchema") for t in talk.tools]
    system = {"systemInstruction": {"parts": [{"text": text} for text in talk.system]}} if talk.system else {}
    return {"contents": wire, "tools": [{"functionDeclarations": declared}], **system}


# -------------------------------------------------------------------------------------------------------- all


@dataclass(frozen=True)
class Writer:
    """`wire` lists, `body` wraps. `reply` gives what a client keeps of a whole reply, as elements of the wire.
    `inner` is the key of the list inside an element, where APIs have one."""

    wire: Callable[[Talk], Wire]
    body: Callable[[Talk, Wire], dict[str, Any]]
    reply: Callable[[bytes], Wire]
    inner: str | None = None

    def write(self, talk: Talk, wire: Wire | None = None) -> bytes:
        return msgspec.json.encode(self.body(talk, self.wire(talk) if wire is None else wire))


def _raw(data: bytes | Raw, *path: str | int) -> Raw:
    """The bytes of one part of a JSON text."""
    part = Raw(data)
    for step in path:
        kind: Any = dict[str, Raw] if isinstance(step, str) else list[Raw]
        part = msgspec.json.decode(part, type=kind)[step]
    return part


def _message(data: bytes) -> Wire:
    return [_raw(data, "choices", 0, "message")]


def _content(data: bytes) -> Wire:
    return [{"role": "assistant", "content": _raw(data, "content")}]


def _output(data: bytes) -> Wire:
    return list(msgspec.json.decode(_raw(data, "output"), type=list[Raw]))


def _candidate(data: bytes) -> Wire:
    return [_raw(data, "candidates", 0, "content")]


WRITERS: dict[str, Writer] = {
    "chat": Writer(chat_wire, chat_body, _message),
    "anthropic": Writer(anthropic_wire, anthropic_body, _content, "content"),
    "responses": Writer(responses_wire, responses_body, _output),
    "gemini": Writer(gemini_wire, gemini_body, _candidate, "parts"),
}


def cuts(writer: Writer, wire: Sequence[Any]) -> list[Wire]:
    """Every shorter wire, cut between elements and, where an element is a list of blocks, inside its last one."""
    out: list[Wire] = []
    for n in range(1, len(wire) + 1):
        last = wire[n - 1]
        blocks = last.get(writer.inner) if writer.inner else None
        for k in range(1, len(blocks or ())):
            out.append([*wire[: n - 1], {**last, writer.inner: blocks[:k]}])
        out.append(list(wire[:n]))
    return out[:-1]
