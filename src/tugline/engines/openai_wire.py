"""Chat-completions bodies of any OpenAI-compatible API, in both directions. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec

from tugline.core.columns import NO_FLOATS, NO_IDS
from tugline.core.contracts import Conversation
from tugline.core.errors import EngineError
from tugline.core.items import Assistant, Item, Prefill, System, ToolCall, ToolResult, Usage, UserMedia, UserText
from tugline.core.turn import Finish
from tugline.engines.remote.reply import Taken, count_fault, decode_json, finish_fault, ids_of, known_floats

Limit = Literal["max_tokens", "max_completion_tokens"]
DROPPABLE = frozenset({"temperature", "top_p", "seed", "stop", "parallel_tool_calls", "top_k", "logprobs"})
"""Fields that some models refuse, without which they answer."""
SHAPING = ("temperature", "top_p", "top_k")
"""Those of them that say which distribution is sampled from."""
MOST = 1 << 40
"""Tokens that one reply may claim."""
IDS: dict[str, object] = {"return_token_ids": True, "logprobs": True}
"""What is asked for besides where replies carry ids."""
REFUSED = (400, 422)
"""Statuses of an answer that finds fault with the request itself."""
_WINDOW = re.compile(r"(?:context length|context window)\D{0,40}(\d+)")
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


class _Billed(msgspec.Struct):
    """What is paid for, of an answer of any kind."""

    id: str | None = None
    model: str | None = None
    usage: UsageSaid | None = None


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

    @property
    def blank(self) -> bool:
        """Whether it says nothing at all."""
        said = self.assistant
        return not (said.text or said.calls or said.reasoning or self.taken.ids or self.usage.completion)


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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if error is None:
        return None
    words = {"max_tokens"} | DROPPABLE
    text = f"{error.code} {error.message}".lower()
    if not any(word in text for word in ("unsupported", "not support", "extra inputs", "unrecognized", "unknown")):
        return None  # a value that is out of its range is not mended by leaving it out
    if error.param in words:
        return error.param
    return next((name for name in sorted(words) if f"'{name}'" in text), None)


def too_long(body: bytes, context: int) -> tuple[int, int] | None:
    """(tokens of the prompt, the window) where an error says that the prompt does not fit; what it does not say of
    them is filled in from `context`."""
    text = body[:4000].decode("utf-8", "replace").lower()
    if not any(word in text for word in ("context_length_exceeded", "maximum context length", "too many tokens")):
        return None
    found = _WINDOW.search(text)
    limit = int(found.group(1)) if found else context
    return max((int(n) for n in re.findall(r"\d{1,12}", text) if int(n) > limit), default=limit + 1), limit


def usage_of(body: bytes) -> tuple[Usage, str, str]:
    """(usage, reply's id, model) of an answer, as far as it can be read."""
    try:
        reply = msgspec.json.decode(body, type=_Billed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return Usage(0, 0), "", ""
    return _usage(reply.usage or UsageSaid()), reply.id or "", reply.model or ""


def decode_chat(body: bytes) -> Answered:
    """A reply. Raises EngineError."""
    reply = cast("Completed", decode_json(body, Completed))
    if len(reply.choices) != 1:
        raise EngineError(f"the engine answered with {len(reply.choices)} choices", fault="unreadable")
    choice = reply.choices[0]
    told = _FINISH.get(choice.finish_reason or "")
    if told is None:
        raise EngineError(
            f"the engine ended with {choice.finish_reason!r}"[:300], fault=finish_fault(choice.finish_reason)
        )
    message, usage = choice.message, reply.usage or UsageSaid()
    calls = tuple(
        ToolCall(call.id or "", call.function.name, call.function.arguments or "") for call in message.tool_calls or ()
    )
    reasoning = message.reasoning_content or message.reasoning or None
    finish = "tool_calls" if calls and told[0] == "stop" else told[0]
    return Answered(
        assistant=Assistant(message.content or message.refusal or None, reasoning, calls),
        finish=finish,
        usage=_usage(usage),
        taken=_taken(reply, choice, told[1], usage),
        model=reply.model or "",
        reply_id=reply.id or "",
    )


def _usage(said: UsageSaid) -> Usage:
    """Never below 0, nor more than can be written down: costs are added up of it."""
    prompt, completion = said.prompt_tokens_details, said.completion_tokens_details
    return Usage(
        _bounded(said.prompt_tokens),
        _bounded(said.completion_tokens),
        _bounded(prompt.cached_tokens if prompt else 0),
        _bounded(completion.reasoning_tokens if completion else 0),
    )


def _bounded(tokens: int | None) -> int:
    return min(max(0, tokens or 0), MOST)


def _taken(reply: Completed, choice: Choice, finish: Finish, usage: UsageSaid) -> Taken:
    """The ids, where the reply has those of its prompt too: sampled ids without them are no training data."""
    if choice.token_ids is None or reply.prompt_token_ids is None:
        fault = "level_l0" if choice.token_ids is None else "no_prompt_ids"
        return Taken(NO_IDS, NO_FLOATS, finish, None, (), fault=fault)
    values = [entry.logprob for entry in (choice.logprobs or Logprobs()).content or ()]
    column = ids_of(choice.token_ids)
    return Taken(
        ids=column,
        logprobs=known_floats(values or [None] * len(choice.token_ids)),
        finish=finish,
        prompt_ids=ids_of(reply.prompt_token_ids),
        labels=None,
        fault=count_fault(column, usage.completion_tokens),
    )
