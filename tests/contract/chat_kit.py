"""A client of the OpenAI Chat API, as small as one can be: stdlib json, its own event reader."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tugline.core.items import Assistant, Item, Options, System, ToolCall, ToolResult, UserText
from tugline.dialects import ChatDialect
from tugline.testing.dialect_suite import Credential, DialectKit


def wire_assistant(item: Assistant) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": item.text}
    if item.reasoning is not None:
        message["reasoning_content"] = item.reasoning
    if item.calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in item.calls
        ]
    return message


def wire_message(item: Item) -> dict[str, Any]:
    match item:
        case System():
            return {"role": item.role, "content": item.text}
        case UserText():
            return {"role": "user", "content": item.text}
        case ToolResult():
            return {"role": "tool", "tool_call_id": item.call_id, "content": item.text}
        case Assistant():
            return wire_assistant(item)
    raise TypeError(item)


def write(items: Sequence[Item], options: Options) -> bytes:
    body: dict[str, Any] = {"model": "m", "messages": [wire_message(i) for i in items], "stream": options.stream}
    body["tools"] = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    return json.dumps(body, ensure_ascii=False).encode()


def said(message: dict[str, Any]) -> Assistant:
    calls = tuple(
        ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ()
    )
    return Assistant(message.get("content") or None, message.get("reasoning_content") or None, calls)


def read(body: bytes) -> Assistant:
    reply = json.loads(body)
    assert reply["object"] == "chat.completion" and len(reply["choices"]) == 1
    return said(reply["choices"][0]["message"])


def events(stream: bytes) -> list[str]:
    """Data of each event, by the rules of the HTML standard: comments dropped, lines end in LF, CR or CRLF."""
    out: list[str] = []
    data: list[str] = []
    for line in stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if not line:
            if data:
                out.append("\n".join(data))
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        else:
            assert line.startswith(":"), line
    return out


def merge_call(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    if piece["index"] == len(calls):
        assert piece["id"] is not None and piece["type"] == "function" and piece["function"]["name"]
        calls.append({"id": piece["id"], "function": {"name": piece["function"]["name"], "arguments": ""}})
    else:
        assert piece["index"] == len(calls) - 1, "calls are streamed one after the other"
        assert "id" not in piece and "name" not in piece["function"], "id and name come once"
    calls[piece["index"]]["function"]["arguments"] += piece["function"].get("arguments") or ""


def assemble(stream: bytes) -> Assistant:
    """The turn that a client makes of a stream; asserts the chunk grammar on the way."""
    *chunks, end = events(stream)
    assert end == "[DONE]"
    message: dict[str, Any] = {"tool_calls": [], "content": "", "reasoning_content": ""}
    finish, stage = None, 0
    for n, text in enumerate(chunks):
        chunk = json.loads(text)
        assert chunk["object"] == "chat.completion.chunk"
        if not chunk["choices"]:
            assert finish and n == len(chunks) - 1, "the usage chunk is the last"
            usage = chunk["usage"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            continue
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        assert finish is None, "nothing follows the finish"
        assert ("role" in delta) == (n == 0), "the role comes first and once"
        for order, key in enumerate(("reasoning_content", "content", "tool_calls")):
            if delta.get(key):
                assert order >= stage, "reasoning, text, calls, in this order"
                stage = order
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        message["content"] += delta.get("content") or ""
        for piece in delta.get("tool_calls") or ():
            merge_call(message["tool_calls"], piece)
        finish = choice["finish_reason"]
    assert finish in ("stop", "tool_calls", "length")
    return said(message)


def credentials(secret: str) -> list[Credential]:
    return [
        ({"authorization": f"Bearer {secret}"}, {}),
        ({"authorization": f"bearer  {secret} "}, {}),
        ({"api-key": secret}, {}),
        ({"x-api-key": secret}, {}),
    ]


def chat_kit() -> DialectKit:
    return DialectKit(ChatDialect(), write, read, assemble, credentials, {})
