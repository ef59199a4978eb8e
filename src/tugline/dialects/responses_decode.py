"""OpenAI Responses requests to core values."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import Assistant, Head, Item, Options, Request, System, Tool
from tugline.dialects import responses_wire as wire
from tugline.dialects.responses_fields import Decoders, Fields, Ignored
from tugline.dialects.responses_items import Reader
from tugline.dialects.responses_tools import chosen, declared, offered
from tugline.dialects.wire import canonical_json, check_sampling, decode

COUNT = "count"
"""Route parameter of calls that only count: they need neither model nor input."""

RESPONSE_PREFIX = "resp_"

_USED = frozenset(wire.Body.__struct_fields__)


class ResponsesDecoders(Decoders):
    """Compiled decoders. Immutable, shared by threads."""

    __slots__ = ("body",)

    def __init__(self) -> None:
        super().__init__()
        self.body = msgspec.json.Decoder(wire.Body)


def to_request(decoders: ResponsesDecoders, data: bytes, params: Mapping[str, str]) -> Request:
    """Raises BadRequest or Unsupported with the field's path, whatever the bytes are."""
    body = decode(decoders.body, data)
    keys = decode(decoders.keys, data)
    _refuse(body, counting=COUNT in params)
    ignored = Ignored()
    for key, raw in keys.items():
        if key not in _USED and bytes(raw) != b"null":
            ignored.add(key)
    _name_text(decoders, keys, ignored)
    reader = Reader(decoders, ignored)
    items = _instructions(body) + (() if bytes(body.input) == b"null" else reader.read(bytes(body.input)))
    tools = _tools(decoders, body, reader, ignored)
    choice, tools = chosen(body.tool_choice, tools)
    kwargs = canonical_json(body.chat_template_kwargs or {}, "chat_template_kwargs")
    return Request(
        model=body.model or "",
        head=Head(tools, kwargs),
        items=items,
        options=_options(body, choice),
        ignored=ignored.names(),
        previous=(body.previous_response_id or "").removeprefix(RESPONSE_PREFIX) or None,
    )


def echoed(decoders: Decoders, output: bytes) -> Assistant:
    """The turn in a reply's output items, echoed verbatim."""
    (said,) = Reader(decoders, Ignored()).read(output)
    if not isinstance(said, Assistant):
        raise BadRequest("a reply is not a model's turn", path="output")
    return said


def _refuse(body: wire.Body, *, counting: bool) -> None:
    if body.background:
        raise Unsupported("replies are not made in the background; call without it", path="background")
    if bytes(body.conversation) != b"null":
        raise Unsupported(
            "conversations are not stored; use previous_response_id or send the items", path="conversation"
        )
    if bytes(body.prompt) != b"null":
        raise Unsupported("prompt templates are not stored here; send instructions and input", path="prompt")
    if counting:
        return
    if not body.model:
        raise BadRequest("a model is needed; any name means the policy", path="model")
    if bytes(body.input) in (b"null", b"[]") and not body.previous_response_id:
        raise BadRequest("at least one input item, or previous_response_id, is needed", path="input")


def _instructions(body: wire.Body) -> tuple[Item, ...]:
    return (System(body.instructions, "instructions"),) if body.instructions else ()


def _name_text(decoders: Decoders, keys: Mapping[str, msgspec.Raw], ignored: Ignored) -> None:
    """Name what stands in `text` beside the format, and in the format beside its schema."""
    text = Fields(decoders, keys, "", "").inner("text") if "text" in keys else None
    if text is None:
        return
    text.where = "text"
    form = text.inner("format")
    if form is not None:
        for key in ("schema", "name"):
            form.raw(key)
        form.name_unused(ignored)
    text.name_unused(ignored)


def _tools(decoders: Decoders, body: wire.Body, reader: Reader, ignored: Ignored) -> tuple[Tool, ...]:
    rows = []
    for i, raw in enumerate(body.tools or ()):
        at = f"tools[{i}]"
        row: dict[str, msgspec.Raw] = decode(decoders.keys, raw, at)
        rows.append(Fields(decoders, row, at, "tools[]"))
    tools = tuple(declared(rows, ignored))
    return offered(tools, tuple(declared(reader.tools, ignored))) if reader.tools else tools


def _options(body: wire.Body, choice: str) -> Options:
    asked = body.max_output_tokens
    check_sampling(("max_output_tokens", asked), body.temperature, body.top_p)
    return Options(
        max_tokens=asked,
        temperature=body.temperature,
        top_p=body.top_p,
        tool_choice=choice,
        parallel_calls=body.parallel_tool_calls is not False,
        stream=bool(body.stream),
        output=_output(body.text.format if body.text else None),
    )


def _output(form: wire.TextFormat | None) -> str | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return "json_object"
    if form.type != "json_schema":
        raise Unsupported(f"text of format {form.type[:40]!r} is not served", path="text.format.type")
    if form.schema is None:
        raise BadRequest("needs a schema", path="text.format.schema")
    return canonical_json(form.schema, "text.format.schema")
