"""OpenAI Chat Completions."""

from __future__ import annotations

from typing import Any

import msgspec

from tugline.core.columns import floats, ids
from tugline.core.errors import EngineError
from tugline.core.items import Assistant, ToolCall
from tugline.testing.exactness.clients.events import events, parse
from tugline.testing.exactness.talk import Ask, Echo, Heard, Outgoing, ReplyIds, as_messages

Value = dict[str, Any]


class ChatClient:
    """Echoes `reasoning_content` or `reasoning`, whichever the reply had."""

    name = "chat"

    def write(self, ask: Ask) -> Outgoing:
        """Streams ask for usage, as agents do."""
        messages: list[Any] = []
        for entry in ask.talk:
            if isinstance(entry, Echo) and entry.raw:
                messages += entry.raw
                continue
            for made in as_messages([entry]):
                made.pop("name", None)
                made.pop("reasoning", None)
                messages.append(made)
        body: Value = {"model": ask.model, "messages": messages, "max_tokens": ask.max_tokens, "temperature": 1.0}
        if ask.tools:
            body["tools"] = [msgspec.Raw(tool.spec.encode()) for tool in ask.tools]
        if ask.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return Outgoing("/v1/chat/completions", msgspec.json.encode(body), {"authorization": f"Bearer {ask.key}"})

    def read(self, data: bytes, *, stream: bool) -> Heard:
        """Raises EngineError."""
        if stream:
            return _heard(_assembled(data))
        return _heard(parse(data, dict[str, Any]))


def _assembled(data: bytes) -> Value:
    """A whole completion made of chunks."""
    message: Value = {"role": "assistant", "content": None}
    whole: Value = {"prompt_token_ids": None}
    choice: Value = {"message": message, "finish_reason": None, "token_ids": None}
    rows: list[Value] = []
    done = False
    for event in events(data):
        if event.strip() == "[DONE]":
            done = True
            continue
        chunk = parse(event, dict[str, Any])
        if "error" in chunk:
            raise EngineError(f"error in the stream: {chunk['error']!r}"[:300])
        whole["prompt_token_ids"] = whole["prompt_token_ids"] or chunk.get("prompt_token_ids")
        for part in chunk.get("choices") or ():
            _merge(message, part.get("delta") or {})
            choice["finish_reason"] = part.get("finish_reason") or choice["finish_reason"]
            if part.get("token_ids"):
                choice["token_ids"] = (choice["token_ids"] or []) + part["token_ids"]
            rows += (part.get("logprobs") or {}).get("content") or []
    if not done or choice["finish_reason"] is None:
        raise EngineError("the stream has no end")
    return {**whole, "choices": [{**choice, "logprobs": {"content": rows} if rows else None}]}


def _merge(message: Value, delta: Value) -> None:
    for key in ("content", "reasoning_content", "reasoning"):
        if delta.get(key):
            message[key] = (message.get(key) or "") + delta[key]
    for piece in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        at = piece.get("index", len(calls))
        while len(calls) <= at:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        function = piece.get("function") or {}
        calls[at]["id"] = calls[at]["id"] or piece.get("id") or ""
        calls[at]["function"]["name"] += function.get("name") or ""
        calls[at]["function"]["arguments"] += function.get("arguments") or ""


def _heard(whole: Value) -> Heard:
    choices = whole.get("choices") or [{}]
    choice = choices[0]
    message = choice.get("message")
    if not isinstance(message, dict) or not choice.get("finish_reason"):
        raise EngineError(f"no message with an end: {whole!r}"[:300])
    calls = tuple(
        ToolCall(c.get("id") or "", c["function"].get("name") or "", c["function"].get("arguments") or "")
        for c in message.get("tool_calls") or ()
    )
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    said = Assistant(message.get("content") or None, reasoning or None, calls)
    kept = ("role", "content", "reasoning_content", "reasoning", "tool_calls")
    raw = {key: message[key] for key in kept if key in message and (message[key] is not None or key == "content")}
    return Heard(said, _finish(choice["finish_reason"]), (raw,), _ids(whole, choice))


def _finish(word: str) -> str:
    return word if word in ("tool_calls", "length") else "stop"


def _ids(whole: Value, choice: Value) -> ReplyIds | None:
    prompt = whole.get("prompt_token_ids") or choice.get("prompt_token_ids")
    # LiteLLM puts what it does not know of a choice into `provider_specific_fields`
    sampled = choice.get("token_ids") or (choice.get("provider_specific_fields") or {}).get("token_ids")
    if not sampled:
        return None
    rows = (choice.get("logprobs") or {}).get("content") or []
    found = [row.get("logprob") for row in rows]
    return ReplyIds(ids(prompt or ()), ids(sampled), floats(found) if len(found) == len(sampled) else None)
