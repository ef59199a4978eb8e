"""Gemini generateContent."""

from __future__ import annotations

from typing import Any

import msgspec

from tugline.core.errors import EngineError
from tugline.core.items import Assistant, System, Tool, ToolCall, ToolResult, UserText
from tugline.testing.exactness.clients.events import events, is_object, parse, text_of
from tugline.testing.exactness.talk import Ask, Echo, Entry, Heard, Outgoing, function_of

Value = dict[str, Any]
_NONE = msgspec.Raw(b"")


class _Call(msgspec.Struct, omit_defaults=True):
    name: str = ""
    id: str | None = None
    args: msgspec.Raw = _NONE


class _Part(msgspec.Struct, omit_defaults=True):
    text: str | None = None
    thought: bool | None = None
    thoughtSignature: str | None = None
    functionCall: _Call | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] = []


class _Candidate(msgspec.Struct):
    content: _Content | None = None
    finishReason: str | None = None


class _Reply(msgspec.Struct):
    candidates: list[_Candidate] = []


class GeminiClient:
    """Parts go back as they came, signatures included."""

    name = "gemini"

    def write(self, ask: Ask) -> Outgoing:
        """Results carry the names of their calls."""
        names = {call.id: call.name for e in ask.talk if isinstance(e, Echo) for call in e.said.calls}
        contents: list[Value] = []
        for entry in ask.talk:
            role, parts = _parts(entry, names)
            if contents and contents[-1]["role"] == role == "user":
                contents[-1]["parts"] += parts
            elif parts:
                contents.append({"role": role, "parts": parts})
        config = {"maxOutputTokens": ask.max_tokens, "temperature": 1.0, "thinkingConfig": {"includeThoughts": True}}
        body: Value = {"contents": contents, "generationConfig": config}
        system = [{"text": e.text} for e in ask.talk if isinstance(e, System)]
        if system:
            body["systemInstruction"] = {"parts": system}
        if ask.tools:
            body["tools"] = [{"functionDeclarations": [_tool(tool) for tool in ask.tools]}]
        method = "streamGenerateContent?alt=sse" if ask.stream else "generateContent"
        headers = {"x-goog-api-key": ask.key}
        return Outgoing(f"/v1beta/models/{ask.model}:{method}", msgspec.json.encode(body), headers)

    def read(self, data: bytes, *, stream: bool) -> Heard:
        """Raises EngineError."""
        replies = [parse(event, _Reply) for event in events(data)] if stream else [parse(data, _Reply)]
        parts: list[_Part] = []
        finish = None
        for candidate in (c for reply in replies for c in reply.candidates[:1]):
            parts += candidate.content.parts if candidate.content else []
            finish = candidate.finishReason or finish
        if finish is None:
            raise EngineError("no candidate with a finishReason")
        text = "".join(p.text or "" for p in parts if not p.thought)
        thought = "".join(p.text or "" for p in parts if p.thought)
        calls = tuple(_call(p.functionCall) for p in parts if p.functionCall is not None)
        word = "length" if finish == "MAX_TOKENS" else "tool_calls" if calls else "stop"
        return Heard(Assistant(text or None, thought or None, calls), word, tuple(_joined(parts)))


def _call(call: _Call) -> ToolCall:
    return ToolCall(call.id or "", call.name, text_of(call.args))


def _joined(parts: list[_Part]) -> list[_Part]:
    """Texts that a stream cut into pieces are one part again, as clients keep them."""
    out: list[_Part] = []
    for part in parts:
        last = out[-1] if out else None
        plain = part.functionCall is None and not part.thoughtSignature
        if last is not None and plain and last.functionCall is None and bool(last.thought) == bool(part.thought):
            last.text = (last.text or "") + (part.text or "")
        else:
            out.append(part)
    return [p for p in out if p.functionCall is not None or p.text or p.thoughtSignature]


def _parts(entry: Entry, names: dict[str, str]) -> tuple[str, list[Any]]:
    match entry:
        case Echo():
            return "model", list(entry.raw) if entry.raw else _turn(entry.said)
        case ToolResult():
            answer = {"id": entry.call_id, "name": names.get(entry.call_id, ""), "response": {"output": entry.text}}
            return "user", [{"functionResponse": answer}]
        case UserText():
            return "user", [{"text": entry.text}]
        case _:
            return "system", []


def _turn(said: Assistant) -> list[Any]:
    made: list[Any] = [_Part(text=said.reasoning, thought=True)] if said.reasoning else []
    made += [_Part(text=said.text)] if said.text else []
    for call in said.calls:
        given = call.arguments if is_object(call.arguments) else "{}"
        made.append(_Part(functionCall=_Call(call.name, call.id or None, msgspec.Raw(given.encode()))))
    return made


def _tool(tool: Tool) -> Value:
    function = function_of(tool)
    return {k: function[k] for k in ("name", "description")} | {"parametersJsonSchema": function["parameters"]}
