"""A client of the Anthropic Messages API, as small as one can be: its own writer and event reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from tugline.core.items import Assistant, Item, Options, Prefill, System, ToolCall, ToolResult, UserText
from tugline.dialects import AnthropicDialect
from tugline.testing.dialect_suite import Credential, DialectKit

WRAPPER = "__unparsedToolInput"


def refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def as_input(arguments: str) -> Any:
    """What a client holds of a call's arguments, numbers as they were spelled; bad JSON in Claude Code's wrapper."""
    try:
        if isinstance(json.loads(arguments, parse_constant=refuse), dict):
            return msgspec.Raw(arguments.encode())
    except ValueError:
        pass
    return {WRAPPER: {"raw": arguments, "len": len(arguments)}}


def as_arguments(raw: bytes) -> str:
    """The other way round."""
    value = json.loads(raw)
    if set(value) == {WRAPPER}:
        return value[WRAPPER]["raw"]
    return msgspec.json.format(raw, indent=-1).decode()


def wire_assistant(item: Assistant) -> dict[str, Any]:
    blocks: list[dict[str, Any]] = []
    if item.reasoning is not None:
        blocks.append({"type": "thinking", "thinking": item.reasoning, "signature": "sig"})
    if item.text is not None:
        blocks.append({"type": "text", "text": item.text})
    blocks += [{"type": "tool_use", "id": c.id, "name": c.name, "input": as_input(c.arguments)} for c in item.calls]
    return {"role": "assistant", "content": blocks}


def wire_message(item: Item) -> dict[str, Any]:
    match item:
        case System():
            return {"role": "system", "content": item.text}
        case UserText():
            return {"role": "user", "content": item.text}
        case ToolResult():
            block = {"type": "tool_result", "tool_use_id": item.call_id, "content": item.text}
            return {"role": "user", "content": [block]}
        case Prefill():
            return {"role": "assistant", "content": item.text}
        case Assistant():
            return wire_assistant(item)
    raise TypeError(item)


def write(items: Sequence[Item], options: Options) -> bytes:
    """System text in front stands in `system`, later text in messages, as Claude Code has it. Results of one turn and
    words behind them share a message."""
    front = 0
    while front < len(items) - 1 and isinstance(items[front], System):
        front += 1
    messages: list[dict[str, Any]] = []
    for n, item in enumerate(items[front:]):
        message = wire_message(item)
        before = items[front + n - 1] if n else None
        if isinstance(before, ToolResult) and isinstance(item, ToolResult | UserText) and getattr(item, "text", ""):
            content = message["content"]
            messages[-1]["content"] += content if isinstance(content, list) else [{"type": "text", "text": content}]
        else:
            messages.append(message)
    body: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": messages, "stream": options.stream}
    if front:
        body["system"] = [{"type": "text", "text": i.text} for i in items[:front] if isinstance(i, System)]
    body["tools"] = [{"name": "bash", "description": "Run.", "input_schema": {"type": "object"}}]
    return msgspec.json.encode(body)


class Seen(msgspec.Struct):
    """A content block as a client reads it."""

    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"")


class SeenMessage(msgspec.Struct):
    id: str
    type: str
    role: str
    model: str
    content: list[Seen]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


def turn_of(content: Sequence[Seen]) -> Assistant:
    order = [("thinking", "text", "tool_use").index(b.type) for b in content]
    assert order == sorted(order) and order.count(0) < 2 and order.count(1) < 2, "thinking, text, calls"
    for block in content:
        assert bool(block.signature) == (block.type == "thinking")
    calls = tuple(ToolCall(b.id, b.name, as_arguments(bytes(b.input))) for b in content if b.type == "tool_use")
    return Assistant("".join(b.text for b in content) or None, "".join(b.thinking for b in content) or None, calls)


def check_usage(usage: dict[str, Any]) -> None:
    whole = usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]
    assert whole == 1000, "the input counts add up to the prompt"


def read(body: bytes) -> Assistant:
    reply = msgspec.json.decode(body, type=SeenMessage)
    assert (reply.type, reply.role) == ("message", "assistant")
    assert reply.stop_reason in ("end_turn", "tool_use", "max_tokens", "stop_sequence")
    check_usage(reply.usage)
    return turn_of(reply.content)


def events(stream: bytes) -> list[tuple[str, bytes]]:
    """(name, data) of each event; lines end in LF, CR or CRLF, comments are dropped."""
    out: list[tuple[str, bytes]] = []
    name, data = "", []
    for line in stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if not line:
            if data:
                out.append((name, "\n".join(data).encode()))
            name, data = "", []
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        else:
            assert line.startswith(":"), line
    return out


DELTAS = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "tool_use": {"input_json_delta": "partial_json"},
}


class Assembler:
    """The grammar of the stream: start, blocks one after the other, delta, stop."""

    def __init__(self) -> None:
        self.message: SeenMessage | None = None
        self.open: Seen | None = None
        self.stopped = self.ended = False

    def take(self, name: str, data: bytes) -> None:
        event = json.loads(data)
        assert event["type"] == name and not self.ended
        if name == "ping":
            return
        if name == "message_start":
            assert self.message is None
            self.message = msgspec.json.decode(msgspec.json.encode(event["message"]), type=SeenMessage)
            assert self.message.content == [] and self.message.stop_reason is None
            check_usage(self.message.usage)
            return
        assert self.message is not None, f"{name} before message_start"
        getattr(self, f"_{name}")(event, self.message)

    def _content_block_start(self, event: dict[str, Any], message: SeenMessage) -> None:
        assert self.open is None and not self.stopped and event["index"] == len(message.content)
        self.open = msgspec.convert({**event["content_block"], "input": msgspec.Raw(b"")}, Seen)
        assert not (self.open.text or self.open.thinking or self.open.signature)
        message.content.append(self.open)

    def _content_block_delta(self, event: dict[str, Any], message: SeenMessage) -> None:
        assert self.open is not None and event["index"] == len(message.content) - 1
        delta, block = event["delta"], self.open
        piece = delta[DELTAS[block.type][delta["type"]]]
        assert piece, "an empty delta"
        if block.type == "tool_use":
            block.input = msgspec.Raw(bytes(block.input) + piece.encode())
        else:
            field = DELTAS[block.type][delta["type"]]
            setattr(block, field, getattr(block, field) + piece)

    def _content_block_stop(self, event: dict[str, Any], message: SeenMessage) -> None:
        assert self.open is not None and event["index"] == len(message.content) - 1
        self.open = None

    def _message_delta(self, event: dict[str, Any], message: SeenMessage) -> None:
        assert self.open is None and not self.stopped and event["delta"]["stop_reason"]
        assert event["usage"]["output_tokens"] == 50
        check_usage(event["usage"])
        self.stopped = True

    def _message_stop(self, event: dict[str, Any], message: SeenMessage) -> None:
        assert self.stopped
        self.ended = True


def assemble(stream: bytes) -> Assistant:
    assembler = Assembler()
    for name, data in events(stream):
        assembler.take(name, data)
    assert assembler.ended and assembler.message is not None, "the stream was cut"
    return turn_of(assembler.message.content)


def credentials(secret: str) -> list[Credential]:
    return [
        ({"x-api-key": secret}, {}),
        ({"authorization": f"Bearer {secret}"}, {}),
        ({"authorization": f"bearer  {secret} "}, {}),
        ({"x-api-key": secret, "authorization": "Bearer other"}, {}),
    ]


def anthropic_kit() -> DialectKit:
    return DialectKit(AnthropicDialect(), write, read, assemble, credentials, {})
