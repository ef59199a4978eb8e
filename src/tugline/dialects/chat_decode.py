"""OpenAI Chat requests to core values. Prefix-stable: the first n messages give a prefix of the items of n + 1.

One wire message is one model turn, one tool result or one run of user parts: nothing is merged across messages,
stripped or respelled. A trailing assistant message is history unless `continue_final_message` says otherwise.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import (
    Assistant,
    Head,
    Item,
    Options,
    Prefill,
    Request,
    System,
    Tool,
    ToolCall,
    ToolResult,
    UserMedia,
    UserText,
)
from tugline.dialects import chat_wire as wire
from tugline.dialects.wire import canonical_json, check_sampling, compact, decode, invalid, linked_media

MAX_STOPS = 16
MAX_IGNORED = 64
"""Names listed of keys that have no effect; a hostile body may hold thousands."""
MEDIA = ("image_url", "input_audio", "file")


class Decoders:
    """Compiled decoders. Immutable, shared by threads."""

    __slots__ = ("body", "keys", "message", "text", "tool", "value")

    def __init__(self) -> None:
        self.body = msgspec.json.Decoder(wire.Body)
        self.keys = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self.message = msgspec.json.Decoder(wire.Message)
        self.text = msgspec.json.Decoder(str)
        self.value = msgspec.json.Decoder()
        self.tool = wire.Tool


def to_request(decoders: Decoders, data: bytes) -> Request:
    """Raises BadRequest or Unsupported with the field's path, whatever the bytes are."""
    body = decode(decoders.body, data)
    _refuse(body)
    items: list[Item] = []
    for i, message in enumerate(body.messages):
        _add(decoders, items, message, i)
    if body.continue_final_message:
        items[-1] = _prefill(items[-1], len(body.messages) - 1)
    kwargs = canonical_json(body.chat_template_kwargs or {}, "chat_template_kwargs")
    head = Head(_tools(decoders, body.tools), kwargs)
    ignored = _ignored(decode(decoders.keys, data)) + _respelled(body.messages)
    return Request(body.model, head, tuple(items), _options(body), ignored)


def assistant(decoders: Decoders, message: wire.Message, path: str) -> Assistant:
    """One model turn as echoed. null, "" and absent are the same."""
    if message.function_call is not None:
        raise Unsupported("the legacy function_call is not served; use tool_calls", path=f"{path}.function_call")
    calls = tuple(_call(decoders, call, path, i) for i, call in enumerate(message.tool_calls or ()))
    text = _text(message.content, path)
    return Assistant(
        text=text or message.refusal or None,
        reasoning=message.reasoning_content or message.reasoning or message.reasoning_text or None,
        calls=calls,
    )


def _ignored(keys: dict[str, msgspec.Raw]) -> tuple[str, ...]:
    """Keys without effect, in wire order."""
    known = wire.Body.__struct_fields__
    found = [k[:MAX_IGNORED] for k, raw in keys.items() if k not in known and bytes(raw) != b"null"]
    return tuple(found[:MAX_IGNORED])


def _respelled(messages: list[wire.Message]) -> tuple[str, ...]:
    """Names arguments sent as objects: their original spelling is lost, which a reader of drift wants to know."""
    for message in messages:
        for call in message.tool_calls or ():
            if call.function is not None and bytes(call.function.arguments).startswith(b"{"):
                return ("messages[].tool_calls[].function.arguments:object",)
    return ()


def _refuse(body: wire.Body) -> None:
    if not body.messages:
        raise BadRequest("at least one message is needed", path="messages")
    if body.n is not None and body.n != 1:
        raise Unsupported("only one choice per call; send the call again for another sample", path="n")
    if body.functions is not None:
        raise Unsupported("the legacy functions API is not served; use tools", path="functions")
    if body.function_call is not None:
        raise Unsupported("the legacy functions API is not served; use tool_choice", path="function_call")


def _add(decoders: Decoders, items: list[Item], message: wire.Message, index: int) -> None:
    role = message.role
    if role == "tool":
        if not message.tool_call_id:
            path = f"messages[{index}].tool_call_id"
            raise BadRequest("a tool message needs the id of the call it answers", path=path)
        text, media = _result(message.content, f"messages[{index}]")
        items.append(ToolResult(message.tool_call_id, text, message.name or None, media))
    elif role == "assistant":
        items.append(assistant(decoders, message, f"messages[{index}]"))
    elif role == "user":
        items.extend(_user(message.content, f"messages[{index}]"))
    elif role in ("system", "developer"):
        items.append(System(_text(message.content, f"messages[{index}]"), role))
    elif role == "function":
        raise BadRequest("the legacy role 'function' is not served; use 'tool'", path=f"messages[{index}].role")
    else:
        raise BadRequest(f"unknown role {role[:40]!r}", path=f"messages[{index}].role")


def _call(decoders: Decoders, call: wire.Call, path: str, index: int) -> ToolCall:
    if call.type not in (None, "", "function"):
        where = f"{path}.tool_calls[{index}].type"
        raise Unsupported(f"tool calls of type {(call.type or '')[:40]!r} are not served", path=where)
    if call.function is None:
        raise BadRequest("a tool call needs its function", path=f"{path}.tool_calls[{index}].function")
    where = f"{path}.tool_calls[{index}].function.arguments"
    return ToolCall(call.id or "", call.function.name, _arguments(decoders, call.function.arguments, where))


def _arguments(decoders: Decoders, raw: msgspec.Raw, path: str) -> str:
    """The JSON text as sent. An object in place of its text is written compactly, its numbers as they were spelled."""
    data = bytes(raw)
    if data.startswith(b'"'):
        return decode(decoders.text, data, path)
    if data.startswith(b"{"):
        decode(decoders.value, data, path)
        return compact(data)
    if data == b"null":
        return ""
    raise BadRequest("expected a string of JSON, or an object", path=path)


def _user(content: wire.Content, path: str) -> list[Item]:
    """Text parts of one message are one item; media stand between them."""
    if content is None:
        raise BadRequest("a user message needs content", path=f"{path}.content")
    if isinstance(content, str):
        return [UserText(content)]
    items: list[Item] = []
    run: list[str] = []
    for i, part in enumerate(content):
        if part.type not in MEDIA:
            run.append(_part_text(part, path, i))
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
        return linked_media("image/*", url, joined=joined)
    raw = bytes(part.input_audio if part.type == "input_audio" else part.file)
    if raw == b"null":
        raise BadRequest(f"needs {part.type}", path=f"{path}.{part.type}")
    kind = "audio/*" if part.type == "input_audio" else "application/octet-stream"
    return UserMedia(kind, sha256(raw).hexdigest(), joined)


def _result(content: wire.Content, path: str) -> tuple[str, tuple[UserMedia, ...]]:
    """Text parts joined, and the media among them."""
    if content is None or isinstance(content, str):
        return content or "", ()
    media = [_media(p, f"{path}.content[{i}]", joined=True) for i, p in enumerate(content) if p.type in MEDIA]
    text = [_part_text(part, path, i) for i, part in enumerate(content) if part.type not in MEDIA]
    return "".join(text), tuple(media)


def _text(content: wire.Content, path: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join([_part_text(part, path, i) for i, part in enumerate(content)])


def _part_text(part: wire.Part, path: str, index: int) -> str:
    if part.type == "text":
        if part.text is None:
            raise BadRequest("a text part needs text", path=f"{path}.content[{index}].text")
        return part.text
    if part.type == "refusal":
        return part.refusal or ""
    where = f"{path}.content[{index}].type"
    if part.type in MEDIA:
        raise Unsupported(f"this policy reads text only, it cannot see {part.type}", path=where)
    raise BadRequest(f"unknown content part {part.type[:40]!r}", path=where)


def _tools(decoders: Decoders, raws: list[msgspec.Raw] | None) -> tuple[Tool, ...]:
    tools = []
    for i, raw in enumerate(raws or ()):
        value = decode(decoders.value, raw, f"tools[{i}]")
        try:
            tool = msgspec.convert(value, decoders.tool)
        except msgspec.ValidationError as err:
            raise invalid(err, f"tools[{i}]") from err
        if tool.type != "function":
            raise Unsupported(f"tools of type {tool.type[:40]!r} are not served", path=f"tools[{i}].type")
        if tool.function is None:
            raise BadRequest("a function tool needs its function", path=f"tools[{i}].function")
        tools.append(Tool(tool.function.name, bytes(raw).decode("utf-8")))
    return tuple(tools)


def _prefill(last: Item, index: int) -> Prefill:
    if not isinstance(last, Assistant) or last.calls or last.reasoning or not last.text:
        path = f"messages[{index}]"
        raise BadRequest("continue_final_message needs an assistant message with text only at the end", path=path)
    return Prefill(last.text)


def _options(body: wire.Body) -> Options:
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    check_sampling((name, asked), body.temperature, body.top_p)
    if body.seed is not None and abs(body.seed) >= 2**63:
        raise BadRequest("must fit 64 bits", path="seed")
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
        output=_output(body.response_format),
    )


def _output(form: wire.ResponseFormat | None) -> str | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return "json_object"
    if form.type != "json_schema":
        raise Unsupported(f"response_format of type {form.type[:40]!r} is not served", path="response_format.type")
    if form.json_schema is None or form.json_schema.schema is None:
        raise BadRequest("needs json_schema.schema", path="response_format.json_schema")
    return canonical_json(form.json_schema.schema, "response_format.json_schema.schema")


def _tool_choice(choice: str | wire.ToolChoice | None) -> str:
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice in ("auto", "none", "required"):
            return choice
        raise BadRequest(f"must be auto, none, required or a function, not {choice[:40]!r}", path="tool_choice")
    if choice.type != "function":
        raise Unsupported(f"tool_choice of type {choice.type[:40]!r} is not served", path="tool_choice.type")
    if choice.function is None:
        raise BadRequest("names no function", path="tool_choice.function")
    return choice.function.name
