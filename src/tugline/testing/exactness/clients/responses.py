"""OpenAI Responses, with the history in every request."""

from __future__ import annotations

from typing import Any

import msgspec

from tugline.core.errors import EngineError
from tugline.core.items import Assistant, System, Tool, ToolCall, ToolResult, UserText
from tugline.testing.exactness.clients.events import events, parse
from tugline.testing.exactness.talk import Ask, Echo, Entry, Heard, Outgoing, function_of

Value = dict[str, Any]
_ENDS = ("response.completed", "response.incomplete", "response.failed")
_ECHOED = ("type", "id", "role", "content", "summary", "encrypted_content", "call_id", "name", "arguments", "status")


class ResponsesClient:
    """Echoes output items as they came."""

    name = "responses"

    def write(self, ask: Ask) -> Outgoing:
        """Nothing is stored on the server."""
        wire = [item for entry in ask.talk for item in _items(entry)]
        body: Value = {
            "model": ask.model,
            "input": wire,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "max_output_tokens": ask.max_tokens,
            "temperature": 1.0,
        }
        if ask.tools:
            body["tools"] = [_tool(tool) for tool in ask.tools]
        if ask.stream:
            body["stream"] = True
        return Outgoing("/v1/responses", msgspec.json.encode(body), {"authorization": f"Bearer {ask.key}"})

    def read(self, data: bytes, *, stream: bool) -> Heard:
        """Raises EngineError."""
        reply = _assembled(data) if stream else parse(data, dict[str, Any])
        output = reply.get("output")
        if not isinstance(output, list) or reply.get("status") not in ("completed", "incomplete"):
            raise EngineError(f"no finished response: {reply!r}"[:300])
        text, reasoning = "", ""
        calls: list[ToolCall] = []
        for item in output:
            kind = item.get("type")
            if kind == "message":
                text += "".join(part.get("text") or "" for part in item.get("content") or ())
            elif kind == "reasoning":
                parts = item.get("content") or item.get("summary") or ()
                reasoning += "".join(part.get("text") or "" for part in parts)
            elif kind == "function_call":
                calls.append(ToolCall(item.get("call_id") or "", item.get("name") or "", item.get("arguments") or ""))
        finish = "length" if reply["status"] == "incomplete" else "tool_calls" if calls else "stop"
        raw = tuple({k: v for k, v in item.items() if k in _ECHOED and v is not None} for item in output)
        return Heard(Assistant(text or None, reasoning or None, tuple(calls)), finish, raw)


def _items(entry: Entry) -> list[Any]:
    match entry:
        case Echo():
            return list(entry.raw) if entry.raw else _turn(entry.said)
        case System():
            return [{"type": "message", "role": entry.role, "content": entry.text}]
        case UserText():
            return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": entry.text}]}]
        case ToolResult():
            return [{"type": "function_call_output", "call_id": entry.call_id, "output": entry.text}]


def _turn(said: Assistant) -> list[Value]:
    out: list[Value] = []
    if said.reasoning:
        out.append({"type": "reasoning", "summary": [{"type": "summary_text", "text": said.reasoning}]})
    if said.text:
        content = [{"type": "output_text", "text": said.text, "annotations": []}]
        out.append({"type": "message", "role": "assistant", "status": "completed", "content": content})
    return out + [
        {"type": "function_call", "call_id": c.id, "name": c.name, "arguments": c.arguments} for c in said.calls
    ]


def _tool(tool: Tool) -> Value:
    return {"type": "function", "strict": False, **function_of(tool)}


def _assembled(data: bytes) -> Value:
    for event in events(data):
        if event.strip() == "[DONE]":
            continue
        value = parse(event, dict[str, Any])
        if value.get("type") in _ENDS:
            response: Value = value["response"]
            return response
        if value.get("type") == "error" or (value.get("error") and "type" not in value):
            raise EngineError(f"error in the stream: {value!r}"[:300])
    raise EngineError("the stream has no end")
