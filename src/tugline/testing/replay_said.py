"""What a recorded reply said: the model turn of an event stream or JSON body, of any of the four APIs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from tugline.core.items import Assistant, Request, System, ToolCall, UserText

Value = dict[str, Any]

_SHAPED = 24
"""Characters of a line below which its shape is many lines' shape."""


def said(dialect: str, reply: str | Value) -> Assistant | None:
    """The turn, or None when the reply is none, e.g. an error. `reply`: the text of a stream, or a decoded body.

    Argument objects are written compactly. Streams need not have ended.
    """
    events = list(_events(reply)) if isinstance(reply, str) else [reply]
    reader = {"chat": _chat, "anthropic": _anthropic, "responses": _responses, "gemini": _gemini}.get(dialect)
    turn = reader(events) if reader else None
    return turn if turn is not None and turn != Assistant() else None


def as_echoed(turn: Assistant, request: Request, later: Sequence[Request]) -> Assistant:
    """The turn in the words of its first echo in a later request, where one is of the same shape: same tools called,
    texts of the same length. What the echo lacks stays as it was said."""
    n = len(request.items)
    echoes = [
        echo
        for other in later
        if len(other.items) > n
        and other.items[:n] == request.items
        and isinstance(echo := other.items[n], Assistant)
        and [c.name for c in echo.calls] == [c.name for c in turn.calls]
    ]
    if not echoes:
        return turn
    # Agents that were asked the same answer in other words: the ids of their calls tell them apart.
    ids = [call.id for call in turn.calls]
    echo = next((e for e in echoes if [call.id for call in e.calls] == ids), echoes[0])
    calls = zip(turn.calls, echo.calls, strict=True)
    return Assistant(
        _reworded(turn.text, echo.text),
        _reworded(turn.reasoning, echo.reasoning),
        tuple(ToolCall(ours.id, ours.name, theirs.arguments) for ours, theirs in calls),
    )


def as_quoted(turn: Assistant, later: Sequence[Request]) -> Assistant:
    """The turn in the words of a later text that holds one of the same shape: lines of words of the same lengths. For
    replies without calls that are repeated elsewhere than in an assistant turn, such as summaries."""
    text = turn.text or ""
    if turn.calls or len(text) < _SHAPED:
        return turn
    texts = [item.text for other in later for item in other.items if isinstance(item, (System, UserText, Assistant))]
    lines = text.split("\n")
    for n, line in enumerate(lines):
        if len(line) >= _SHAPED and not any(line in (t or "") for t in texts):
            shape = re.compile(re.sub(r"\w+", lambda word: rf"\w{{{len(word[0])}}}", re.escape(line)))
            lines[n] = next((hit[0] for t in texts if t and (hit := shape.search(t))), line)
    return replace(turn, text="\n".join(lines))


def _reworded(ours: str | None, theirs: str | None) -> str | None:
    return theirs if len(ours or "") == len(theirs or "") else ours


def _events(stream: str) -> Iterator[Value]:
    for line in stream.split("\n"):
        if line.startswith("data:"):
            try:
                value = msgspec.json.decode(line[5:].strip())
            except msgspec.DecodeError:
                continue
            if isinstance(value, dict):
                yield value


def _chat(events: list[Value]) -> Assistant:
    text, reasoning, calls = "", "", dict[int, list[str]]()
    for choice in (c for event in events for c in event.get("choices") or ()):
        piece = choice.get("delta") or choice.get("message") or {}
        text += piece.get("content") or ""
        reasoning += piece.get("reasoning_content") or piece.get("reasoning") or ""
        for n, call in enumerate(piece.get("tool_calls") or ()):
            held = calls.setdefault(call.get("index", n), ["", "", ""])
            function = call.get("function") or {}
            held[0] = held[0] or call.get("id") or ""
            held[1] += function.get("name") or ""
            held[2] += function.get("arguments") or ""
    return _turn(text, reasoning, [tuple(call) for call in calls.values()])


def _anthropic(events: list[Value]) -> Assistant:
    blocks: dict[int, Value] = {}
    pieces: dict[int, str] = {}
    for event in events:
        if isinstance(event.get("content"), list):
            blocks.update(enumerate(event["content"]))
        at, delta = event.get("index", 0), event.get("delta") or {}
        if event.get("type") == "content_block_start":
            blocks[at] = dict(event["content_block"])
        elif event.get("type") == "content_block_delta" and at in blocks:
            for key in ("text", "thinking"):
                blocks[at][key] = blocks[at].get(key, "") + delta.get(key, "")
            pieces[at] = pieces.get(at, "") + delta.get("partial_json", "")
    calls = [
        (b.get("id", ""), b.get("name", ""), pieces.get(at) or _text(b.get("input") or {}))
        for at, b in blocks.items()
        if b.get("type") == "tool_use"
    ]
    found = blocks.values()
    text = "".join(b.get("text", "") for b in found if b.get("type") == "text")
    return _turn(text, "".join(b.get("thinking", "") for b in found if b.get("type") == "thinking"), calls)


def _responses(events: list[Value]) -> Assistant:
    done = [e["response"]["output"] for e in events if e.get("type") in ("response.completed", "response.incomplete")]
    items = done[0] if done else [e["item"] for e in events if e.get("type") == "response.output_item.done"]
    if not items and events and isinstance(events[0].get("output"), list):
        items = events[0]["output"]
    text, reasoning, calls = "", "", []
    for item in items:
        parts = "".join(part.get("text", "") for part in item.get("content") or ())
        if item.get("type") == "message":
            text += parts
        elif item.get("type") == "reasoning":
            reasoning += parts or "".join(part.get("text", "") for part in item.get("summary") or ())
        elif item.get("type") == "function_call":
            name = "__".join(filter(None, (item.get("namespace"), item.get("name"))))
            calls.append((item.get("call_id", ""), name, item.get("arguments", "")))
        elif item.get("type") == "custom_tool_call":
            calls.append((item.get("call_id", ""), item.get("name", ""), _text({"input": item.get("input", "")})))
    return _turn(text, reasoning, calls)


def _gemini(events: list[Value]) -> Assistant:
    text, reasoning, calls = "", "", []
    for event in events:
        for candidate in event.get("candidates") or ():
            for part in (candidate.get("content") or {}).get("parts") or ():
                call = part.get("functionCall")
                if call:
                    calls.append((call.get("id") or "", call.get("name", ""), _text(call.get("args") or {})))
                elif part.get("thought"):
                    reasoning += part.get("text") or ""
                else:
                    text += part.get("text") or ""
    return _turn(text, reasoning, calls)


def _turn(text: str, reasoning: str, calls: Sequence[tuple[str, ...]]) -> Assistant:
    return Assistant(text or None, reasoning or None, tuple(ToolCall(*call) for call in calls))


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
