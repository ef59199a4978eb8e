"""Chat-completions bodies of any OpenAI-compatible API, in both directions. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from tugline.core.columns import NO_FLOATS, NO_IDS, Ids, ids
from tugline.core.contracts import Conversation
from tugline.core.errors import EngineError
from tugline.core.items import Assistant, Item, Prefill, System, ToolCall, ToolResult, Usage, UserMedia, UserText
from tugline.core.turn import Finish
from tugline.engines.remote.reply import Taken, decode_json, known_floats

Limit = Literal["max_tokens", "max_completion_tokens"]
DROPPABLE = frozenset({"temperature", "top_p", "seed", "stop", "parallel_tool_calls", "top_k", "logprobs"})
"""Fields that some models refuse, without which they answer."""
IDS: dict[str, object] = {"return_token_ids": True, "logprobs": True}
"""What is asked for besides where replies carry ids."""
_FINISH: dict[str, tuple[Literal["stop", "tool_calls", "length"], Finish]] = {
    "stop": ("stop", "stop"),
    "tool_calls": ("tool_calls", "stop"),
    "function_call": ("tool_calls", "stop"),
    "content_filter": ("stop", "abort"),
    "length": ("length", "length"),
}


class Function(msgspec.Struct):
    name: str = ""
    arguments: str | None = None


class Call(msgspec.Struct):
    id: str | None = None
    function: Function = msgspec.field(default_factory=Function)


class Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None


class Value(msgspec.Struct):
    logprob: float | None = None


class Logprobs(msgspec.Struct):
    content: list[Value] | None = None


class Choice(msgspec.Struct):
    message: Message = msgspec.field(default_factory=Message)
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class UsageSaid(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class Completed(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    choices: list[Choice] = []
    usage: UsageSaid | None = None
    prompt_token_ids: list[int] | None = None


class ErrorSaid(msgspec.Struct):
    message: str = ""
    param: str | None = None
    code: str | int | None = None


class Refusal(msgspec.Struct):
    error: ErrorSaid | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply."""

    assistant: Assistant
    finish: Literal["stop", "tool_calls", "length"]
    usage: Usage
    taken: Taken
    model: str
    """As the API names it."""
    reply_id: str


def messages(items: Sequence[Item]) -> tuple[list[dict[str, object]], tuple[str, ...]]:
    """(messages, drift). Order and texts are kept; parts of one wire message are one message again."""
    made: list[dict[str, object]] = []
    drift: set[str] = set()
    for item in items:
        match item:
            case System():
                made.append({"role": "developer" if item.role == "developer" else "system", "content": item.text})
            case UserText():
                _user(made, item.text, joined=item.joined)
            case UserMedia():
                drift.add("media_omitted")
                _user(made, f"[{item.media_type} omitted]", joined=item.joined)
            case ToolResult():
                drift |= {"media_omitted"} if item.media else set()
                text = "\n".join([item.text, *(f"[{media.media_type} omitted]" for media in item.media)])
                made.append({"role": "tool", "tool_call_id": item.call_id, "content": text})
            case Assistant():
                made.append(_assistant(item))
            case Prefill():
                made.append({"role": "assistant", "content": item.text})
    return made, tuple(sorted(drift))


def _user(made: list[dict[str, object]], text: str, *, joined: bool) -> None:
    if joined and made and made[-1]["role"] == "user":
        made[-1]["content"] = f"{made[-1]['content']}\n{text}"
    else:
        made.append({"role": "user", "content": text})


def _assistant(item: Assistant) -> dict[str, object]:
    """Reasoning stays out: no API of this kind takes it back under one name."""
    said: dict[str, object] = {"role": "assistant", "content": item.text}
    if item.calls:
        said["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in item.calls
        ]
    elif item.text is None:
        said["content"] = ""
    return said


def chat_body(
    request: Conversation, model: str, limit: Limit, without: Collection[str], more: dict[str, object]
) -> tuple[bytes, tuple[str, ...]]:
    """(body, drift). `without`: fields that this model refuses; `more`: what is asked for besides."""
    said, drift = messages(request.items)
    s, asked = request.sampling, request.options
    body: dict[str, object] = {
        "model": model,
        "messages": said,
        limit: s.max_tokens,
        "temperature": s.temperature,
        "top_p": s.top_p,
        **({"top_k": s.top_k} if s.top_k else {}),
        **({"seed": s.seed} if s.seed is not None else {}),
        **({"stop": list(asked.stop)} if asked.stop else {}),
        **more,
    }
    if request.head.tools:
        body["tools"] = [msgspec.Raw(tool.spec.encode()) for tool in request.head.tools]
        named = {"type": "function", "function": {"name": asked.tool_choice}}
        body["tool_choice"] = asked.tool_choice if asked.tool_choice in ("auto", "none", "required") else named
        if not asked.parallel_calls:
            body["parallel_tool_calls"] = False
    if asked.output == "json_object":
        body["response_format"] = {"type": "json_object"}
    elif asked.output is not None:
        schema = {"name": "output", "schema": msgspec.Raw(asked.output.encode())}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    left_out = sorted(set(body) & set(without))
    for name in left_out:
        del body[name]
    return msgspec.json.encode(body), (*drift, *(f"not_sent_{name}" for name in left_out))


def refused_field(body: bytes) -> str | None:
    """Which field an error is about, when the same request without it, or with the other spelling, could succeed."""
    try:
        error = msgspec.json.decode(body, type=Refusal).error
    except msgspec.MsgspecError:
        return None
    if error is None:
        return None
    words = {"max_tokens"} | DROPPABLE
    if error.param in words:
        return error.param
    text = error.message.lower()
    told = any(word in text for word in ("unsupported", "not support", "extra inputs", "unrecognized", "unknown"))
    return next((name for name in sorted(words) if told and f"'{name}'" in text), None)


def too_long(body: bytes) -> bool:
    """Whether an error says that the prompt does not fit."""
    text = body[:4000].lower()
    return b"context_length_exceeded" in text or b"maximum context length" in text or b"too many tokens" in text


def decode_chat(body: bytes) -> Answered:
    """A reply. Raises EngineError."""
    reply = cast("Completed", decode_json(body, Completed))
    if len(reply.choices) != 1:
        raise EngineError(f"the engine answered with {len(reply.choices)} choices", fault="unreadable")
    choice = reply.choices[0]
    told = _FINISH.get(choice.finish_reason or "")
    if told is None:
        raise EngineError(f"the engine ended with {choice.finish_reason!r}", fault="finish_unknown")
    message, usage = choice.message, reply.usage or UsageSaid()
    calls = tuple(
        ToolCall(call.id or "", call.function.name, call.function.arguments or "") for call in message.tool_calls or ()
    )
    reasoning = message.reasoning_content or message.reasoning or None
    finish = "tool_calls" if calls and told[0] == "stop" else told[0]
    return Answered(
        assistant=Assistant(message.content or message.refusal or None, reasoning, calls),
        finish=finish,
        usage=Usage(
            usage.prompt_tokens,
            usage.completion_tokens or 0,
            (usage.prompt_tokens_details.cached_tokens or 0) if usage.prompt_tokens_details else 0,
            (usage.completion_tokens_details.reasoning_tokens or 0) if usage.completion_tokens_details else 0,
        ),
        taken=_taken(reply, choice, told[1], usage),
        model=reply.model or "",
        reply_id=reply.id or "",
    )


def _taken(reply: Completed, choice: Choice, finish: Finish, usage: UsageSaid) -> Taken:
    """The ids, where the reply has those of its prompt too: sampled ids without them are no training data."""
    if choice.token_ids is None or reply.prompt_token_ids is None:
        fault = "level_l0" if choice.token_ids is None else "no_prompt_ids"
        return Taken(NO_IDS, NO_FLOATS, finish, None, (), fault=fault)
    values = [entry.logprob for entry in (choice.logprobs or Logprobs()).content or ()]
    column = _ids(choice.token_ids)
    said = usage.completion_tokens
    return Taken(
        ids=column,
        logprobs=known_floats(values or [None] * len(choice.token_ids)),
        finish=finish,
        prompt_ids=_ids(reply.prompt_token_ids),
        labels=None,
        fault="usage_mismatch" if said is not None and said != len(choice.token_ids) else None,
    )


def _ids(values: Sequence[int]) -> Ids:
    try:
        return ids(values) if values else NO_IDS
    except OverflowError as err:
        raise EngineError("the engine answered with an id that is none", fault="unreadable") from err
