"""Anthropic Messages requests to core values. Prefix-stable: the first n messages give a prefix of the items of n + 1.

Every assistant message is one model turn, every block of system text one item where it stands. Nothing is merged across
messages, hoisted, stripped or respelled. An assistant message at the end that holds text only is a prefill: the API
continues it. What has no effect is named in `Request.ignored`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import Assistant, Head, Item, Options, Prefill, Request, Tool
from tugline.dialects import anthropic_wire as wire
from tugline.dialects.anthropic_blocks import BlockReader
from tugline.dialects.anthropic_names import BlockNames, KeyReader
from tugline.dialects.wire import canonical_json, check_sampling, decode

MAX_STOPS = 64


class Decoders:
    """Compiled decoders. Immutable, shared by threads."""

    __slots__ = ("blocks", "body", "keys", "turn", "value")

    def __init__(self) -> None:
        self.body = msgspec.json.Decoder(wire.Body)
        self.turn = msgspec.json.Decoder(wire.Message)
        self.value = msgspec.json.Decoder()
        self.blocks = BlockReader()
        self.keys = KeyReader()


def to_request(decoders: Decoders, data: bytes, params: Mapping[str, str]) -> Request:
    """Raises BadRequest or Unsupported with the field's path, whatever the bytes are."""
    body = decode(decoders.body, data)
    if body.max_tokens is None and params.get("call") != "count":
        raise BadRequest("Field required", path="max_tokens")
    if not body.messages:
        raise BadRequest("at least one message is required", path="messages")
    names = BlockNames()
    tools = _tools(decoders, body.tools, names)
    options = _options(body, tools)
    items = _items(decoders, body, names)
    decoders.keys.read(data, names)
    return Request(body.model, Head(tools), items, options, names.all())


def assistant(decoders: Decoders, message: wire.Message) -> Assistant:
    """One model turn as echoed, for our own replies."""
    return decoders.blocks.assistant(message.content, "messages[]", BlockNames())


def _items(decoders: Decoders, body: wire.Body, names: BlockNames) -> tuple[Item, ...]:
    read = decoders.blocks
    items: list[Item] = []
    if body.system:
        items.extend(read.system(body.system, "system", names))
    for i, message in enumerate(body.messages):
        path = f"messages[{i}]"
        if message.role == "assistant":
            items.append(read.assistant(message.content, path, names))
        elif message.role == "user":
            items.extend(read.user(message.content, path, names))
        elif message.role == "system":
            items.extend(read.system(message.content, f"{path}.content", names))
        else:
            raise BadRequest(f"must be user, assistant or system, not {message.role[:40]!r}", path=f"{path}.role")
    if body.messages[-1].role == "assistant":
        _continue_last(items, names)
    if not items:
        raise BadRequest("nothing in them can be shown to the model", path="messages")
    return tuple(items)


def _continue_last(items: list[Item], names: BlockNames) -> None:
    """The API goes on with a last assistant message. An empty one is as good as none."""
    last = items[-1]
    if not isinstance(last, Assistant) or last.calls or last.reasoning:
        return
    if last.text:
        items[-1] = Prefill(last.text)
    else:
        names.add("messages[]:empty_prefill")
        items.pop()


def _tools(decoders: Decoders, declared: list[wire.Tool] | None, names: BlockNames) -> tuple[Tool, ...]:
    """Tools with a schema of their own. Those that only Anthropic's servers or clients know are dropped by name."""
    tools = []
    for i, tool in enumerate(declared or ()):
        if tool.type not in (None, "custom"):
            names.add("tools[]:", tool.type or "")
            continue
        if not tool.name:
            raise BadRequest("Field required", path=f"tools[{i}].name")
        function: dict[str, object] = {"name": tool.name}
        if tool.description is not None:
            function["description"] = tool.description
        schema = bytes(tool.input_schema)
        if schema.startswith(b"{"):
            decode(decoders.value, schema, f"tools[{i}].input_schema")
            function["parameters"] = tool.input_schema
        elif schema != b"null":
            raise BadRequest("expected an object", path=f"tools[{i}].input_schema")
        spec = msgspec.json.encode({"type": "function", "function": function})
        tools.append(Tool(tool.name, spec.decode()))
    return tuple(tools)


def _options(body: wire.Body, tools: tuple[Tool, ...]) -> Options:
    check_sampling(("max_tokens", body.max_tokens), body.temperature, body.top_p)
    stop = tuple(body.stop_sequences or ())
    if len(stop) > MAX_STOPS:
        raise BadRequest(f"at most {MAX_STOPS} stop sequences", path="stop_sequences")
    choice = body.tool_choice
    return Options(
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        stop=tuple(s for s in stop if s),
        tool_choice=_tool_choice(choice, tools),
        parallel_calls=not (choice and choice.disable_parallel_tool_use),
        stream=bool(body.stream),
        output=_output(body),
    )


def _tool_choice(choice: wire.ToolChoice | None, tools: tuple[Tool, ...]) -> str:
    if choice is None or choice.type == "auto":
        return "auto"
    if choice.type == "none":
        return "none"
    if choice.type == "any":
        if not tools:
            raise Unsupported("there is no tool here that the model could be made to use", path="tool_choice")
        return "required"
    if choice.type != "tool":
        raise BadRequest(f"must be auto, any, tool or none, not {choice.type[:40]!r}", path="tool_choice.type")
    if not choice.name:
        raise BadRequest("Field required", path="tool_choice.name")
    if all(tool.name != choice.name for tool in tools):
        raise Unsupported(f"no tool {choice.name[:80]!r} is served here", path="tool_choice.name")
    return choice.name


def _output(body: wire.Body) -> str | None:
    form, path = body.output_format, "output_format"
    if body.output_config is not None and body.output_config.format is not None:
        form, path = body.output_config.format, "output_config.format"
    if form is None:
        return None
    if form.type != "json_schema":
        raise Unsupported(f"output of type {form.type[:40]!r} is not served", path=f"{path}.type")
    if form.schema is None:
        raise BadRequest("Field required", path=f"{path}.schema")
    return canonical_json(form.schema, f"{path}.schema")
