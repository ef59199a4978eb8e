"""When are two streams of one reply the same: all events, in order, field by field; only texts may be cut otherwise.

What a live stream cannot know when it begins is put to one form, and nothing else is: see `_told_later`.
"""

from __future__ import annotations

import json
from typing import Any

TEXTS = ("thinking", "text", "partial_json", "content", "reasoning_content", "arguments")
"""Fields of a delta that hold a piece of a text."""


def parsed(stream: bytes) -> list[tuple[str, Any]]:
    """(event name, data) of each event. Comments and blank lines are none."""
    assert stream.endswith(b"\n\n"), "a stream ends inside an event"
    found = []
    for block in stream.decode().split("\n\n"):
        lines = [line.partition(": ") for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            assert [name for name, _, _ in lines] in (["data"], ["event", "data"]), lines
            data = lines[-1][2]
            found.append((lines[0][2] if len(lines) > 1 else "", data if data == "[DONE]" else json.loads(data)))
    return found


def same_form(api: str, stream: bytes) -> list[Any]:
    """The events of a stream with neighbouring pieces of one text joined. Two streams of one reply are the same if
    theirs are equal."""
    out: list[Any] = []
    numbers = []
    for name, data in parsed(stream):
        if name == "ping":
            continue
        if api == "responses":
            numbers.append(data.pop("sequence_number"))
        if api != "gemini" or data != {}:
            _told_later(api, data)
        holder, key = _piece(api, data)
        if holder is not None:
            text, holder[key] = holder[key], "..."
            if not text:
                continue
            if out and out[-1][:2] == [name, data]:
                out[-1][2] += text
            else:
                out.append([name, data, text])
        else:
            out.append([name, data, None])
    assert numbers == list(range(len(numbers))), f"numbers of events: {numbers}"
    return out


def _told_later(api: str, data: Any) -> None:
    """Chat: whether content is null in the opening delta depends on calls. Anthropic: what came from a cache stands in
    message_delta; of the opening only the sum. Gemini: signatures differ by what is sealed in them; the suite of the
    dialect reads them back."""
    if api == "chat" and data != "[DONE]" and data["choices"]:
        delta = data["choices"][0]["delta"]
        if "role" in delta and not delta.get("content"):
            delta.pop("content", None)
    if api == "anthropic" and data["type"] == "message_start":
        usage = data["message"]["usage"]
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    if api == "gemini":
        for part in data["candidates"][0]["content"]["parts"]:
            if "thoughtSignature" in part:
                part["thoughtSignature"] = "(ours)"


def _piece(api: str, data: Any) -> tuple[Any, Any]:
    """Where in an event a piece of a text is, or (None, None)."""
    if data == "[DONE]":
        return None, None
    if api == "responses":
        return (data, "delta") if data["type"].endswith(".delta") else (None, None)
    if api == "gemini":
        (part,) = data["candidates"][0]["content"]["parts"]
        return (part, "text") if "text" in part and "finishReason" not in data["candidates"][0] else (None, None)
    delta = data.get("delta", {}) if api == "anthropic" else (data["choices"] or [{}])[0].get("delta", {})
    if api == "chat" and set(delta) == {"tool_calls"} and "id" not in delta["tool_calls"][0]:
        delta = delta["tool_calls"][0]["function"]
    if api == "chat" and "role" in delta:
        return None, None
    return next(((delta, key) for key in TEXTS if key in delta), (None, None))
