"""Anthropic Messages."""

from __future__ import annotations

from typing import Any

import msgspec

from tugline.core.errors import EngineError
from tugline.core.items import Assistant, System, Tool, ToolCall, ToolResult, UserText
from tugline.testing.exactness.clients.events import events, is_object, parse, text_of
from tugline.testing.exactness.talk import Ask, Echo, Entry, Heard, Outgoing, function_of

Value = dict[str, Any]
_NONE = msgspec.Raw(b"")


class _Block(msgspec.Struct, omit_defaults=True):
    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = _NONE


class _Message(msgspec.Struct):
    content: list[_Block]
    stop_reason: str | None = None


class AnthropicClient:
    """Thinking blocks go back with their signatures; inputs as they were spelled."""

    name = "anthropic"

    def write(self, ask: Ask) -> Outgoing:
        """Results, and the user's words behind them, share a message."""
        system = [{"type": "text", "text": e.text} for e in ask.talk if isinstance(e, System)]
        messages: list[Value] = []
        for entry in ask.talk:
            role, blocks = _blocks(entry)
            if messages and messages[-1]["role"] == role == "user":
                messages[-1]["content"] += blocks
            elif blocks:
                messages.append({"role": role, "content": blocks})
        body: Value = {"model": ask.model, "max_tokens": ask.max_tokens, "messages": messages, "temperature": 1.0}
        if system:
            body["system"] = system
        if ask.tools:
            body["tools"] = [_tool(tool) for tool in ask.tools]
        if ask.stream:
            body["stream"] = True
        headers = {"x-api-key": ask.key, "authorization": f"Bearer {ask.key}", "anthropic-version": "2023-06-01"}
        return Outgoing("/v1/messages", msgspec.json.encode(body), headers)

    def read(self, data: bytes, *, stream: bool) -> Heard:
        """Raises EngineError."""
        message = _assembled(data) if stream else parse(data, _Message)
        blocks = message.content
        if message.stop_reason is None:
            raise EngineError("the message has no stop_reason")
        calls = tuple(
            ToolCall(b.id or "", b.name or "", text_of(b.input) or "{}") for b in blocks if b.type == "tool_use"
        )
        text = "".join(b.text or "" for b in blocks if b.type == "text")
        thinking = "".join(b.thinking or "" for b in blocks if b.type == "thinking")
        said = Assistant(text or None, thinking or None, calls)
        finish = {"max_tokens": "length", "tool_use": "tool_calls"}.get(message.stop_reason, "stop")
        return Heard(said, finish, tuple(blocks))


def _blocks(entry: Entry) -> tuple[str, list[Any]]:
    match entry:
        case Echo():
            if entry.raw:
                return "assistant", list(entry.raw)
            said = entry.said
            made: list[Any] = [_Block("thinking", thinking=said.reasoning, signature="s")] if said.reasoning else []
            made += [_Block("text", text=said.text)] if said.text else []
            return "assistant", [*made, *map(_use, said.calls)]
        case ToolResult():
            return "user", [{"type": "tool_result", "tool_use_id": entry.call_id, "content": entry.text}]
        case UserText():
            return "user", [{"type": "text", "text": entry.text}]
        case _:
            return "system", []


def _use(call: ToolCall) -> _Block:
    given = call.arguments if is_object(call.arguments) else "{}"
    return _Block("tool_use", id=call.id, name=call.name, input=msgspec.Raw(given.encode()))


def _tool(tool: Tool) -> Value:
    function = function_of(tool)
    return {k: function[k] for k in ("name", "description")} | {"input_schema": function["parameters"]}


def _assembled(data: bytes) -> _Message:
    blocks: dict[int, _Block] = {}
    inputs: dict[int, str] = {}
    stop, ended = None, False
    for event in events(data):
        value = parse(event, dict[str, Any])
        kind, at = value.get("type"), value.get("index", 0)
        delta = value.get("delta") or {}
        if kind == "content_block_start":
            blocks[at] = _begun(value["content_block"])
        elif kind == "content_block_delta":
            if at not in blocks:
                raise EngineError(f"a delta of block {at}, which never began")
            block = blocks[at]
            block.text = _more(block.text, delta.get("text"))
            block.thinking = _more(block.thinking, delta.get("thinking"))
            block.signature = _more(block.signature, delta.get("signature"))
            inputs[at] = inputs.get(at, "") + (delta.get("partial_json") or "")
        elif kind == "message_delta":
            stop = delta.get("stop_reason") or stop
        elif kind == "message_stop":
            ended = True
        elif kind == "error":
            raise EngineError(f"error in the stream: {value.get('error')!r}"[:300])
    if not ended:
        raise EngineError("the stream has no end")
    for at, block in blocks.items():
        if block.type == "tool_use":
            block.input = msgspec.Raw((inputs.get(at) or "{}").encode())
    return _Message(list(blocks.values()), stop)


def _begun(block: Value) -> _Block:
    return msgspec.convert({k: v for k, v in block.items() if k != "input"}, _Block)


def _more(text: str | None, more: str | None) -> str | None:
    return text if more is None else (text or "") + more
