"""Replies of models that say themselves how they are read: transformers' `response_template` in tokenizer_config.json.

transformers' own parser reads them, by letters. What it strips is stripped, and there is no way back from a turn to
what a model would write.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tugline.core.columns import ids_list
from tugline.core.errors import ConfigError, Unsupported, boundary
from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import is_json
from tugline.tokens.families.family import Family
from tugline.tokens.families.tagged import failed, unknown_tools
from tugline.tokens.parse import Parsed, Sampled, body_of, finished, invalid_utf8

_REASONING = ("reasoning_content", "thinking", "reasoning")
_LONG = 400_000
"""Characters from which on a reply is text: the library's patterns are the model's own, and nobody knows their cost."""


def schema() -> Family:
    """A model of any family whose tokenizer settings hold a `response_template`."""
    return Family(name="schema", parse=_parse, spell=_spell, end=lambda turn: "")


def check_template(template: bytes) -> None:
    """Raises ConfigError when transformers does not understand a `response_template` (JSON)."""
    with boundary(ConfigError, "response_template in tokenizer_config.json"):
        _load(template)


def understood(template: bytes) -> bool:
    """Whether transformers understands a `response_template` (JSON)."""
    try:
        check_template(template)
    except ConfigError:
        return False
    return True


def _load(template: bytes) -> Any:
    from transformers.utils.chat_parsing.response_templates import load_response_template

    return load_response_template(msgspec.json.decode(template))


def _parse(sampled: Sampled) -> Parsed:
    body = body_of(sampled)
    text = sampled.codec.decode(body)
    drift = invalid_utf8(sampled, body)
    try:
        assistant, thoughts = _read(sampled, text)
    except Unsupported:
        failed(sampled, drift, cut=sampled.finish != "stop")
        assistant, thoughts = Assistant(text or None), 0
    unknown_tools(sampled, assistant.calls, drift)
    return finished(sampled, assistant, drift, thoughts)


def _read(sampled: Sampled, text: str) -> tuple[Assistant, int]:
    """The turn, and how many tokens its reasoning takes when it is encoded. Raises Unsupported."""
    from transformers.utils.chat_parsing import parse_response

    if len(text) > _LONG:
        raise Unsupported("too long for a parser whose patterns are the model's own")
    prefix = sampled.codec.decode(ids_list(sampled.prompt))
    with boundary(Unsupported, "transformers cannot read this reply"):
        spec = _load(sampled.response_template or b"")
        tools = [msgspec.json.decode(t.spec) for t in sampled.tools]
        message = parse_response(text, spec, prefix=prefix, tools=tools)
        calls = [_call(c) for c in message.get("tool_calls") or []]
        reasoning = next((str(message[k]) for k in _REASONING if message.get(k)), None)
        content = message.get("content")
    if not isinstance(content, str | None):
        raise Unsupported("content is no text")
    spent = len(ids_list(sampled.codec.encode(reasoning))) if reasoning else 0
    return Assistant(content or None, reasoning, tuple(calls)), spent


def _call(given: Any) -> ToolCall:
    function = given.get("function", given)
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    name = function["name"]
    if not isinstance(name, str) or not name or not is_json(text):
        raise Unsupported("a call has no name, or arguments that are no JSON")
    call_id = given.get("id")
    return ToolCall(call_id if isinstance(call_id, str) else "", name, text)


def _spell(turn: Assistant) -> str:
    if turn.calls or turn.reasoning:
        raise ConfigError("a response_template says how replies are read, not how they are written", where="parser")
    return turn.text or ""
