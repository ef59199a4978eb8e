"""Gemini requests to core values: generateContent, streamGenerateContent and countTokens have one body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import Assistant, Head, Item, Options, Request, System, Tool
from tugline.dialects.gemini_fields import Decoders, Fields, first
from tugline.dialects.gemini_schema import respell, strict
from tugline.dialects.gemini_turns import History
from tugline.dialects.ignored import Names
from tugline.dialects.wire import MAX_INTEGER, canonical_json, decode

MAX_STOPS = 16
ARRAY = "array"
"""Form of a streamed reply that a client wants as one JSON array."""


class _Spec(msgspec.Struct, omit_defaults=True, gc=False):
    """A declaration as chat templates get it."""

    name: str
    description: str | None = None
    parameters: Raw | None = None


class _Function(msgspec.Struct, gc=False):
    type: str
    function: _Spec


def to_request(decoders: Decoders, data: bytes, params: Mapping[str, str]) -> Request:
    """Raises BadRequest or Unsupported with the field's path, whatever the bytes are."""
    names = Names()
    outer = Fields(decoders, decode(decoders.row, data), names)
    inner = outer.object("generateContentRequest")
    body = outer if inner is None else inner
    items = _system(decoders, body)
    contents = body.objects("contents")
    if not (contents or items):
        raise BadRequest("contents is not specified", path=body.at("contents"))
    history = History(decoders)
    for content in contents:
        history.add(content)
    items += history.finish()
    tools = _tools(decoders, body)
    _refuse(body)
    choice = _choice(body, tools)
    options = _options(decoders, body, params, choice)
    body.rest()
    if inner is not None:
        outer.rest()
    model = params.get("model", "").removeprefix("models/")
    return Request(model, Head(tools), tuple(items), options, names.all())


def assistant(decoders: Decoders, content: bytes) -> Assistant:
    """One model content as echoed."""
    history = History(decoders)
    for text in (b'{"role":"user","parts":[{"text":""}]}', content, b'{"role":"user","parts":[{"text":""}]}'):
        history.add(Fields(decoders, decode(decoders.row, text), Names(), "contents[]", "contents[]"))
    said = history.finish()[1]
    assert isinstance(said, Assistant)
    return said


def _refuse(body: Fields) -> None:
    for name in ("cachedContent", "continuationToken"):
        if body.raw(name) is not None:
            raise Unsupported("nothing is kept on this server; send the whole contents", path=body.at(name))


def _system(decoders: Decoders, body: Fields) -> list[Item]:
    raw = body.raw("systemInstruction")
    if raw is None:
        return []
    path = body.at("systemInstruction")
    if first(raw) == b'"':
        return [System(decode(decoders.text, raw, path))]
    content = body.under(raw, "systemInstruction")
    content.raw("role")  # without a meaning in the real API too
    items: list[Item] = []
    for part in content.objects("parts"):
        text = part.text("text")
        part.rest()
        if text is not None:
            items.append(System(text))
    content.rest()
    return items


# ----------------------------------------------------------------------------------------------------- tools


def _tools(decoders: Decoders, body: Fields) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    for entry in body.objects("tools"):
        tools += [_tool(decoders, declared) for declared in entry.objects("functionDeclarations")]
        for kind in entry.left():
            entry.drop(f":{kind}")
    return tuple(tools)


def _tool(decoders: Decoders, declared: Fields) -> Tool:
    name = declared.text("name")
    if not name:
        raise BadRequest("a function needs a name", path=declared.at("name"))
    description = declared.text("description")
    field, raw = "parametersJsonSchema", declared.raw("parametersJsonSchema")
    if raw is None:
        field, raw = "parameters", declared.raw("parameters")
    parameters = None if raw is None else _parameters(decoders, raw, declared.at(field))
    declared.rest()
    spec = _Function("function", _Spec(name, description, parameters))
    return Tool(name, msgspec.json.encode(spec).decode())


def _parameters(decoders: Decoders, raw: Raw, path: str) -> Raw:
    """As sent, but for the spelling of type names and keywords."""
    schema = decode(decoders.value, raw, path)
    if not isinstance(schema, dict):
        raise BadRequest("expected a schema, which is an object", path=path)
    if not respell(schema):
        return raw
    try:
        return Raw(msgspec.json.encode(schema))
    except (OverflowError, RecursionError, ValueError) as err:
        raise BadRequest(f"cannot be written as JSON: {err}", path=path) from err


def _choice(body: Fields, tools: tuple[Tool, ...]) -> str:
    config = body.object("toolConfig")
    calling = config and config.object("functionCallingConfig")
    if config is None or calling is None:
        if config is not None:
            config.rest()
        return "auto"
    mode = calling.text("mode") or "AUTO"
    choice = _mode(calling, mode.upper(), tools)
    calling.rest()
    config.rest()
    return choice


def _mode(calling: Fields, mode: str, tools: tuple[Tool, ...]) -> str:
    if mode in ("AUTO", "MODE_UNSPECIFIED"):
        return "auto"
    if mode == "NONE":
        return "none"
    if mode == "VALIDATED":
        calling.drop(".mode:VALIDATED")
        return "auto"
    if mode != "ANY":
        raise BadRequest(f"must be AUTO, ANY, NONE or VALIDATED, not {mode[:40]!r}", path=calling.at("mode"))
    if not tools:
        raise Unsupported("no function is declared that could be called", path=calling.at("mode"))
    allowed = calling.texts("allowedFunctionNames")
    for name in allowed:
        if all(tool.name != name for tool in tools):
            path = calling.at("allowedFunctionNames")
            raise BadRequest(f"the function {name[:100]!r} is not declared", path=path)
    if len(allowed) == 1:
        return allowed[0]
    if allowed:
        calling.drop(".allowedFunctionNames")  # one of several can be forced only by forcing any
    return "required"


# --------------------------------------------------------------------------------------------------- options


def _options(decoders: Decoders, body: Fields, params: Mapping[str, str], choice: str) -> Options:
    streamed = "stream" in params
    events = streamed and "sse" in (params.get("?alt"), params.get("?$alt"))
    form = ARRAY if streamed and not events else ""
    config = body.object("generationConfig")
    if config is None:
        return Options(tool_choice=choice, stream=events, form=form)
    options = Options(
        max_tokens=_at_least_one(config, "maxOutputTokens"),
        temperature=_within(config, "temperature", 100),
        top_p=_within(config, "topP", 1),
        stop=_stops(config),
        seed=_seed(config),
        tool_choice=choice,
        stream=events,
        output=_output(decoders, config),
        form=form,
    )
    count = config.integer("candidateCount")
    if count is not None and count > 1:
        path = config.at("candidateCount")
        raise Unsupported("only one candidate per call; send the call again for another sample", path=path)
    config.rest()
    return options


def _at_least_one(config: Fields, name: str) -> int | None:
    value = config.integer(name)
    if value is not None and not 1 <= value <= MAX_INTEGER:
        raise BadRequest("must be at least 1", path=config.at(name))
    return value


def _within(config: Fields, name: str, most: float) -> float | None:
    value = config.number(name)
    if value is not None and not 0 <= value <= most:
        raise BadRequest(f"must be between 0 and {most}", path=config.at(name))
    return value


def _seed(config: Fields) -> int | None:
    value = config.integer("seed")
    if value is not None and abs(value) >= 2**63:
        raise BadRequest("must fit 64 bits", path=config.at("seed"))
    return value


def _stops(config: Fields) -> tuple[str, ...]:
    stops = config.texts("stopSequences")
    if len(stops) > MAX_STOPS:
        raise BadRequest(f"at most {MAX_STOPS} stop strings", path=config.at("stopSequences"))
    return tuple(stop for stop in stops if stop)


def _output(decoders: Decoders, config: Fields) -> str | None:
    schema = None
    for name in ("responseSchema", "responseJsonSchema", "_responseJsonSchema"):
        raw = config.raw(name)
        if raw is not None:
            schema = _schema(decoders, raw, config.at(name))
    kind, where = config.text("responseMimeType"), config.at("responseMimeType")
    for entry in config.objects("responseFormat"):
        text = entry.object("text")
        entry.rest()
        if text is not None:
            kind, where = text.text("mimeType") or kind, text.at("mimeType")
            raw = text.raw("schema")
            schema = schema if raw is None else _schema(decoders, raw, text.at("schema"))
            text.rest()
    kind = (kind or "").lower()
    if kind not in ("", "text/plain", "application/json", "application_json", "text_plain"):
        raise Unsupported(f"replies of type {kind[:60]!r} are not served", path=where)
    return schema or ("json_object" if "json" in kind else None)


def _schema(decoders: Decoders, raw: Raw, path: str) -> str:
    schema: Any = decode(decoders.value, raw, path)
    if not isinstance(schema, dict):
        raise BadRequest("expected a schema, which is an object", path=path)
    respell(schema)
    strict(schema)
    return canonical_json(schema, path)
