"""Tools as the Responses API declares and names them, and as the chat template gets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from tugline.core.errors import BadRequest, Unsupported
from tugline.core.items import Options, Tool
from tugline.dialects import responses_wire as wire
from tugline.dialects.responses_fields import Fields, Ignored
from tugline.dialects.wire import decode

SEPARATOR = "__"
"""Between a namespace and a tool's name."""

_NO_ARGUMENTS = msgspec.Raw(b'{"type":"object","properties":{}}')


def declared(rows: Sequence[Fields], ignored: Ignored) -> Iterator[Tool]:
    """The tools that the model can be offered. Those that a server would have to run are left out and named.

    Raises BadRequest with the path.
    """
    for row in rows:
        kind = row.text("type") or "function"
        if kind == "namespace":
            namespace = row.need("name", "a namespace")
            if row.text("description"):
                ignored.add("tools[]:namespace.description")
            for inner in row.rows("tools"):
                tool = _tool(inner, inner.text("type") or "function", namespace, ignored)
                if tool is not None:
                    yield tool
            row.name_unused(ignored)
            continue
        tool = _tool(row, kind, None, ignored)
        if tool is not None:
            yield tool


def _tool(row: Fields, kind: str, namespace: str | None, ignored: Ignored) -> Tool | None:
    if kind not in ("function", "custom"):
        ignored.add(f"tools[]:{kind}")
        return None
    name = row.need("name", "a tool")
    full = f"{namespace}{SEPARATOR}{name}" if namespace else name
    function = _function(row, full) if kind == "function" else _custom(row, full)
    row.name_unused(ignored)
    return Tool(full, wire.Spec(function).text(), "function" if kind == "function" else "custom", namespace)


def _function(row: Fields, name: str) -> wire.SpecFunction:
    data, described = row.raw("parameters"), row.text("description")
    if data != b"null" and not data.startswith(b"{"):
        raise BadRequest("expected a JSON schema", path=f"{row.at}.parameters")
    decode(_VALUE, data, f"{row.at}.parameters")
    parameters = UNSET if data == b"null" else msgspec.Raw(data)
    return wire.SpecFunction(name, described or UNSET, parameters)


def _custom(row: Fields, name: str) -> wire.SpecFunction:
    """A function with one text. A grammar becomes part of the description: nothing constrains the sample."""
    described, form = row.text("description") or "", row.inner("format")
    definition = form.text("definition") if form is not None else None
    if form is not None and definition:
        syntax = form.text("syntax")
        language = f" ({syntax})" if syntax else ""
        described += f"\n\nThe input must match this grammar{language}:\n{definition}"
    text = {"type": "string", "description": "The whole input of the tool, as plain text."}
    parameters = {"type": "object", "properties": {"input": text}, "required": ["input"]}
    return wire.SpecFunction(name, described.lstrip("\n") or UNSET, msgspec.Raw(msgspec.json.encode(parameters)))


def offered(tools: Sequence[Tool], added: Sequence[Tool]) -> tuple[Tool, ...]:
    """Tools of the request, then those that the conversation declares; a later one of the same name replaces."""
    found = list(tools)
    places = {tool.name: i for i, tool in enumerate(found)}
    for tool in added:
        place = places.setdefault(tool.name, len(found))
        found[place : place + 1] = [tool]
    return tuple(found)


def chosen(choice: str | wire.ToolChoice | None, tools: tuple[Tool, ...]) -> tuple[str, tuple[Tool, ...]]:
    """(tool_choice of core, tools to offer). `allowed_tools` offers the allowed ones only.

    Raises BadRequest or Unsupported.
    """
    if choice is None:
        return "auto", tools
    if isinstance(choice, str):
        if choice in ("auto", "none", "required"):
            return choice, tools
        raise BadRequest(f"must be auto, none, required or an object, not {choice[:40]!r}", path="tool_choice")
    if choice.type == "allowed_tools":
        if choice.mode not in (None, "auto", "required"):
            raise BadRequest("must be auto or required", path="tool_choice.mode")
        allowed = {_named(tool.name, tool.namespace) for tool in choice.tools or () if tool.name}
        return choice.mode or "auto", tuple([tool for tool in tools if tool.name in allowed])
    if choice.type not in ("function", "custom"):
        what = f"tools of type {choice.type[:40]!r} are not run here and cannot be forced"
        raise Unsupported(what, path="tool_choice.type")
    if not choice.name:
        raise BadRequest("names no tool", path="tool_choice.name")
    return _named(choice.name, choice.namespace), tools


def _named(name: str | None, namespace: str | None) -> str:
    return f"{namespace}{SEPARATOR}{name}" if namespace else name or ""


# ------------------------------------------------------------------------------------------------- replies


def bare_name(tool: Tool) -> str:
    """The name within its namespace."""
    return tool.name[len(tool.namespace) + len(SEPARATOR) :] if tool.namespace else tool.name


def custom_input(arguments: str) -> str:
    """The text for a custom tool. Arguments that are no {"input": text} go out as they are."""
    try:
        return msgspec.json.decode(arguments, type=wire.CustomArguments).input
    except (msgspec.MsgspecError, RecursionError):
        return arguments


def repeated_tools(tools: Sequence[Tool]) -> list[Any]:
    """The request's tools as a response repeats them, in the flat form of this API."""
    out: list[Any] = []
    spaces: dict[str, list[Any]] = {}
    for tool in tools:
        flat = _flat(tool)
        if tool.namespace is None:
            out.append(flat)
        elif tool.namespace in spaces:
            spaces[tool.namespace].append(flat)
        else:
            inner = spaces[tool.namespace] = [flat]
            out.append({"type": "namespace", "name": tool.namespace, "description": "", "tools": inner})
    return out


def _flat(tool: Tool) -> dict[str, Any]:
    function = msgspec.json.decode(tool.spec, type=wire.Spec).function
    flat: dict[str, Any] = {"type": tool.kind, "name": bare_name(tool)}
    if function.description is not UNSET:
        flat["description"] = function.description
    if tool.kind == "function":
        flat["parameters"] = _NO_ARGUMENTS if function.parameters is UNSET else function.parameters
        flat["strict"] = False
    return flat


def repeated_choice(options: Options, tools: Sequence[Tool]) -> Any:
    """`tool_choice` as a response repeats it."""
    if options.tool_choice in ("auto", "none", "required"):
        return options.tool_choice
    for tool in tools:
        if tool.name == options.tool_choice:
            return {"type": tool.kind, "name": bare_name(tool)}
    return {"type": "function", "name": options.tool_choice}


_VALUE: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
