"""Schemas in Gemini's spelling (OpenAPI 3.0) to JSON Schema.

Templates and constrained sampling read JSON Schema, and a declaration must be the same in every API that carries it.
"""

from __future__ import annotations

from typing import Any

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose value maps names to schemas: their keys are no keywords."""
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
SINGLE = (
    *("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties", "additionalItems"),
)
COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
"""64-bit integers, which protocol buffers write as text."""

KEYWORDS = {
    "any_of": "anyOf",
    "prefix_items": "prefixItems",
    "additional_properties": "additionalProperties",
    "property_ordering": "propertyOrdering",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
    "defs": "$defs",
    "ref": "$ref",
}
"""How the Python SDK spells some keywords, by what they are."""


def respell(schema: Any) -> bool:
    """Type names in lower case, keywords in camelCase, in place and in order: STRING is string, `any_of` is `anyOf`.

    True if something changed.
    """
    changed = False
    stack = [schema]
    while stack:
        node = stack.pop()
        if not isinstance(node, dict):
            continue
        if not KEYWORDS.keys().isdisjoint(node):
            renamed = {KEYWORDS.get(name, name): value for name, value in node.items()}
            node.clear()
            node.update(renamed)
            changed = True
        kind = node.get("type")
        lower = _lower(kind)
        if lower != kind:
            node["type"] = lower
            changed = True
        stack += _children(node)
    return changed


def strict(schema: Any) -> None:
    """What has a meaning in OpenAPI 3.0 only, in the words of JSON Schema, in place: `nullable`, counts as text. The
    order of properties is none of JSON Schema's business."""
    stack = [schema]
    while stack:
        node = stack.pop()
        if not isinstance(node, dict):
            continue
        stack += _children(node)
        node.pop("propertyOrdering", None)
        for name in COUNTS:
            count = node.get(name)
            if isinstance(count, str) and count.isascii() and count.isdigit() and len(count) < 19:
                node[name] = int(count)
        if node.pop("nullable", None) is True:
            _allow_null(node)


def _allow_null(node: dict[str, Any]) -> None:
    if isinstance(node.get("type"), str):
        node["type"] = [node["type"], "null"]
    if isinstance(node.get("enum"), list) and None not in node["enum"]:
        node["enum"].append(None)
    if isinstance(node.get("anyOf"), list) and "type" not in node:
        node["anyOf"].append({"type": "null"})


def _lower(kind: Any) -> Any:
    if isinstance(kind, str):
        return kind.lower() if kind.isupper() else kind
    return [_lower(k) if isinstance(k, str) else k for k in kind] if isinstance(kind, list) else kind


def _children(node: dict[str, Any]) -> list[Any]:
    out: list[Any] = []
    for name in MAPS:
        if isinstance(node.get(name), dict):
            out += node[name].values()
    for name in LISTS:
        if isinstance(node.get(name), list):
            out += node[name]
    for name in SINGLE:
        if isinstance(node.get(name), dict):
            out.append(node[name])
    if isinstance(node.get("items"), list):
        out += node["items"]
    return out
