"""A client of the Gemini API, as small as one can be: stdlib json but for arguments, its own event reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from tugline.core.items import Assistant, Item, Options, System, ToolCall, ToolResult, UserText
from tugline.dialects.gemini import GeminiDialect
from tugline.testing.dialect_suite import Credential, DialectKit

WRAPPER = "__raw_arguments"
DECLARED = {"name": "bash", "parameters": {"type": "OBJECT", "properties": {"command": {"type": "STRING"}}}}


def refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def is_object(text: str) -> bool:
    """Whether arguments stand on the wire as they are: an object that is not itself the form of what is no object."""
    try:
        value = json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return isinstance(value, dict) and not (list(value) == [WRAPPER] and isinstance(value[WRAPPER], str))


def wire_call(call: ToolCall) -> dict[str, Any]:
    """`args` as they came: spelled as in the reply, or the documented form of what is no object."""
    out: dict[str, Any] = {"name": call.name, "id": call.id}
    if is_object(call.arguments):
        out["args"] = msgspec.Raw(call.arguments.encode())
    elif call.arguments:
        out["args"] = {WRAPPER: call.arguments}
    return out


def wire_assistant(item: Assistant) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if item.reasoning is not None:
        parts.append({"text": item.reasoning, "thought": True})
    if item.text is not None:
        parts.append({"text": item.text})
    parts += [{"functionCall": wire_call(call)} for call in item.calls]
    return {"role": "model", "parts": parts}


def wire_content(item: Item) -> dict[str, Any]:
    match item:
        case UserText():
            return {"role": "user", "parts": [{"text": item.text}]}
        case ToolResult():
            answer = {"name": "bash", "id": item.call_id, "response": {"output": item.text}}
            return {"role": "user", "parts": [{"functionResponse": answer}]}
        case Assistant():
            return wire_assistant(item)
    raise TypeError(item)


def write(items: Sequence[Item], options: Options) -> bytes:
    system = [{"text": i.text} for i in items if isinstance(i, System)]
    contents = [wire_content(i) for i in items if not isinstance(i, System)]
    body: dict[str, Any] = {"contents": contents, "tools": [{"functionDeclarations": [DECLARED]}]}
    if system:
        body["systemInstruction"] = {"parts": system, "role": "user"}
    return msgspec.json.encode(body)


def add(said: Assistant, part: dict[str, Any]) -> Assistant:
    text, reasoning, calls = said.text or "", said.reasoning or "", said.calls
    if part.get("thought"):
        reasoning += part["text"]
    elif "text" in part:
        text += part["text"]
    if "functionCall" in part:
        call = part["functionCall"]
        args = call.get("args")
        if args is None:
            arguments = ""
        elif list(args) == [WRAPPER] and isinstance(args[WRAPPER], str):
            arguments = args[WRAPPER]
        else:
            arguments = call["spelled"]
        calls = (*calls, ToolCall(call["id"], call["name"], arguments))
    return Assistant(text or None, reasoning or None, calls)


def loads(text: str | bytes) -> dict[str, Any]:
    """JSON, with the arguments of calls as spelled beside their values."""
    reply: dict[str, Any] = json.loads(text)
    raw = msgspec.json.decode(text, type=_Reply)
    for candidate, spelled in zip(reply.get("candidates", ()), raw.candidates, strict=True):
        for part, twin in zip(candidate["content"]["parts"], spelled.content.parts, strict=True):
            if "functionCall" in part:
                part["functionCall"]["spelled"] = bytes(twin.functionCall.args).decode()
    return reply


class _Call(msgspec.Struct):
    args: msgspec.Raw = msgspec.Raw(b"")


class _Part(msgspec.Struct):
    functionCall: _Call = msgspec.field(default_factory=_Call)


class _Content(msgspec.Struct):
    parts: list[_Part]


class _Candidate(msgspec.Struct):
    content: _Content


class _Reply(msgspec.Struct):
    candidates: list[_Candidate]


def read(body: bytes) -> Assistant:
    reply = loads(body)
    (candidate,) = reply["candidates"]
    assert candidate["finishReason"] in ("STOP", "MAX_TOKENS") and candidate["content"]["role"] == "model"
    check_usage(reply["usageMetadata"])
    said = Assistant()
    for part in candidate["content"]["parts"]:
        said = add(said, part)
    return said


def check_usage(usage: dict[str, Any]) -> None:
    parts = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount")
    assert usage["totalTokenCount"] == sum(usage.get(part, 0) for part in parts)


def events(stream: bytes) -> list[str]:
    """Data of each event as Google's SDKs read it: nothing but `data: ` lines and blank ones."""
    out = []
    for block in stream.decode().split("\n\n"):
        if block.strip():
            assert block.startswith("data: ") and "\n" not in block, block
            out.append(block[6:])
    return out


def assemble(stream: bytes) -> Assistant:
    """The turn that a client makes of a stream; asserts the chunk grammar on the way."""
    said, stage = Assistant(), 0
    *chunks, last = map(loads, events(stream))
    for chunk in chunks:
        (candidate,) = chunk["candidates"]
        assert "finishReason" not in candidate and "usageMetadata" not in chunk, "these come last and once"
        (part,) = candidate["content"]["parts"]
        order = 0 if part.get("thought") else 1 if "text" in part else 2
        assert order >= stage, "reasoning, text, calls, in this order"
        stage = order
        said = add(said, part)
    assert "usageMetadata" in last, "the stream was cut"
    check_usage(last["usageMetadata"])
    assert last["candidates"][0]["finishReason"] in ("STOP", "MAX_TOKENS")
    assert last["candidates"][0]["content"]["parts"] == [{"text": ""}]
    assert all(c["responseId"] == last["responseId"] and c["modelVersion"] for c in chunks)
    return said


def credentials(secret: str) -> list[Credential]:
    return [
        ({"x-goog-api-key": secret}, {}),
        ({"x-goog-api-key": f" {secret} "}, {}),
        ({}, {"key": secret}),
        ({"authorization": f"Bearer {secret}"}, {}),
    ]


def gemini_kit() -> DialectKit:
    return DialectKit(GeminiDialect(), write, read, assemble, credentials, {"model": "m"})
