"""OpenAI Chat requests to core values. Prefix-stable: the first n messages give a prefix of the items of n + 1."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import (
    Assistant,
    Head,
    Item,
    Options,
    Request,
    System,
    Tool,
    ToolCall,
    ToolResult,
    UserMedia,
    UserText,
)
from tugline.dialects import chat_wire as wire
from tugline.dialects.wire import canonical_json, raw_text

MAX_STOPS = 16


def to_request(body: wire.Body) -> Request:
    """Raises BadRequest or Unsupported with the field's path."""
    _refuse(body)
    items: list[Item] = []
    for i, message in enumerate(body.messages):
        items.extend(_items(message, f"messages[{i}]"))
    if body.continue_final_message:
        _refuse_prefill(items)
    head = Head(_tools(body.tools), canonical_json(body.chat_template_kwargs or {}))
    ignored = tuple(k for k in wire.HARMLESS if getattr(body, k) is not msgspec.UNSET)
    return Request(body.model, head, tuple(items), _options(body), ignored)


def _refuse(body: wire.Body) -> None:
    if not body.messages:
        raise BadRequest("at least one message is needed", path="messages")
    if body.n is not None and body.n != 1:
        raise Unsupported("only one choice per call; send the call again for another sample", path="n")
    if body.functions is not None or body.function_call is not None:
        raise Unsupported("the legacy functions API is not served; use tools", path="functions")
    kind = body.response_format.get("type") if isinstance(body.response_format, dict) else body.response_format
    if kind not in (None, "text"):
        raise Unsupported("constrained output is not available from this engine", path="response_format")


def _items(message: wire.Message, path: str) -> Sequence[Item]:
    role = message.role
    if role in ("system", "developer"):
        return (System(_text(message.content, path), role),)
    if role == "user":
        return _user(message.content, path)
    if role == "tool":
        if not message.tool_call_id:
            raise BadRequest("a tool message needs the id of the call it answers", path=f"{path}.tool_call_id")
        return (ToolResult(message.tool_call_id, _text(message.content, path), message.name),)
    if role == "assistant":
        return (assistant(message, path),)
    if role == "function":
        raise Unsupported("the legacy role 'function' is not served; use 'tool'", path=f"{path}.role")
    raise BadRequest(f"unknown role {role[:40]!r}", path=f"{path}.role")


def assistant(message: wire.Message, path: str) -> Assistant:
    """One model turn as echoed. null, "" and absent are the same."""
    if message.function_call is not None:
        raise Unsupported("the legacy function_call is not served; use tool_calls", path=f"{path}.function_call")
    calls = []
    for i, call in enumerate(message.tool_calls or ()):
        if call.function is None:
            raise BadRequest("only function calls are served", path=f"{path}.tool_calls[{i}].function")
        arguments = call.function.arguments
        if arguments is None:
            arguments = ""
        elif not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        calls.append(ToolCall(call.id or "", call.function.name, arguments))
    text = _text(message.content, path) if message.content is not None else ""
    return Assistant(
        text=text or message.refusal or None,
        reasoning=message.reasoning_content or message.reasoning or None,
        calls=tuple(calls),
    )


def _user(content: wire.Content, path: str) -> list[Item]:
    """Text parts of one message are one item; media stand between them."""
    if content is None:
        raise BadRequest("a user message needs content", path=f"{path}.content")
    if isinstance(content, str):
        return [UserText(content)]
    items: list[Item] = []
    run: list[str] = []
    for i, part in enumerate(content):
        if part.type == "text":
            run.append(_part_text(part, f"{path}.content[{i}]"))
            continue
        if run:
            items.append(UserText("".join(run), joined=bool(items)))
            run = []
        items.append(_media(part, f"{path}.content[{i}]", joined=bool(items)))
    if run or not items:
        items.append(UserText("".join(run), joined=bool(items)))
    return items


def _media(part: wire.Part, path: str, *, joined: bool) -> UserMedia:
    if part.type == "image_url":
        url = part.image_url.url if isinstance(part.image_url, wire.ImageUrl) else part.image_url
        if not url:
            raise BadRequest("an image part needs image_url", path=f"{path}.image_url")
        kind = url[5 : url.find(";")] if url.startswith("data:") and ";" in url[:100] else "image/*"
        return UserMedia(kind, sha256(url.encode("utf-8", "surrogatepass")).hexdigest(), joined)
    if part.type in ("input_audio", "file"):
        value = part.input_audio if part.type == "input_audio" else part.file
        kind = "audio/*" if part.type == "input_audio" else "application/octet-stream"
        return UserMedia(kind, sha256(canonical_json(value).encode()).hexdigest(), joined)
    raise BadRequest(f"unknown content part {part.type[:40]!r}", path=f"{path}.type")


def _text(content: wire.Content, path: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(_part_text(part, f"{path}.content[{i}]") for i, part in enumerate(content))


def _part_text(part: wire.Part, path: str) -> str:
    if part.type == "text":
        if part.text is None:
            raise BadRequest("a text part needs text", path=f"{path}.text")
        return part.text
    if part.type == "refusal":
        return part.refusal or ""
    if part.type in ("image_url", "input_audio", "file"):
        raise Unsupported(f"this policy reads text only, it cannot see {part.type}", path=f"{path}.type")
    raise BadRequest(f"unknown content part {part.type[:40]!r}", path=f"{path}.type")


def _tools(raws: list[msgspec.Raw] | None) -> tuple[Tool, ...]:
    tools = []
    for i, raw in enumerate(raws or ()):
        path = f"tools[{i}]"
        try:
            tool = msgspec.json.decode(raw, type=wire.Tool)
        except msgspec.ValidationError as err:
            raise BadRequest(str(err), path=path) from err
        if tool.type != "function" or tool.function is None:
            raise Unsupported(f"tools of type {tool.type[:40]!r} are not served", path=f"{path}.type")
        tools.append(Tool(tool.function.name, raw_text(raw)))
    return tuple(tools)


def _refuse_prefill(items: list[Item]) -> None:
    last = items[-1]
    if not isinstance(last, Assistant) or last.calls or last.reasoning:
        raise BadRequest("continue_final_message needs an assistant message with text at the end", path="messages")
    raise Unsupported("continuing an assistant message is not served", path="continue_final_message")


def _options(body: wire.Body) -> Options:
    asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if asked is not None and asked < 1:
        raise BadRequest("must be at least 1", path="max_tokens")
    if body.temperature is not None and not 0 <= body.temperature <= 100:
        raise BadRequest("must be between 0 and 100", path="temperature")
    if body.top_p is not None and not 0 <= body.top_p <= 1:
        raise BadRequest("must be between 0 and 1", path="top_p")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stop) > MAX_STOPS:
        raise BadRequest(f"at most {MAX_STOPS} stop strings", path="stop")
    return Options(
        max_tokens=asked,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=tuple(s for s in stop if s),
        seed=body.seed,
        tool_choice=_tool_choice(body.tool_choice),
        parallel_calls=body.parallel_tool_calls is not False,
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def _tool_choice(choice: object) -> str:
    if choice is None:
        return "auto"
    if choice in ("auto", "none", "required"):
        return str(choice)
    if isinstance(choice, dict):
        function = choice.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return str(function["name"])
    raise BadRequest("must be auto, none, required or a function", path="tool_choice")
