"""Families whose calls are JSON with few tokens around it: Llama 3, Mistral."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

import msgspec

from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import is_json, is_name, quoted
from tugline.tokens.families.family import Family, Form
from tugline.tokens.families.reading import Reading
from tugline.tokens.families.tagged import Block, Tagged, failed, live, tagged, unknown_tools
from tugline.tokens.parse import Parsed, Sampled, body_of, finished, invalid_utf8

_TAG = "<|python_tag|>"
_BUILTIN = re.compile(r"([A-Za-z_]\w*)\.call\(([A-Za-z_]\w*)=(\".*\")\)", re.DOTALL)


class _LlamaCall(msgspec.Struct):
    name: str
    parameters: msgspec.Raw = msgspec.Raw(b"")
    arguments: msgspec.Raw = msgspec.Raw(b"")


def _parse_llama3(sampled: Sampled) -> Parsed:
    """The whole reply is JSON, or text. Only where tools were offered is JSON a call."""
    body = body_of(sampled)
    reading = Reading(sampled.codec, body, (_TAG,))
    drift = invalid_utf8(sampled, body)
    tag = reading.char(_TAG)
    before, tagged_, rest = reading.text.partition(tag)
    if not tagged_:
        before, rest = "", reading.text
    inside = reading.plain(rest).strip()
    calls = _llama_calls(inside) if sampled.tools else []
    if tagged_ and not calls:
        calls = _builtin(inside)
    text = reading.plain(before) if calls else reading.plain(reading.text)
    if not calls and (tagged_ or (sampled.tools and _looks_like_a_call(inside))):
        failed(sampled, drift, cut=True)
    unknown_tools(sampled, calls, drift)
    return finished(sampled, Assistant(text or None, None, tuple(calls)), drift, 0)


def _looks_like_a_call(text: str) -> bool:
    return text.startswith('{"name"') or text.startswith('{ "name"')


def _llama_calls(text: str) -> list[ToolCall]:
    """One call, or several with semicolons between them. None when anything else is there."""
    calls: list[ToolCall] = []
    decoder = json.JSONDecoder(parse_int=str)
    at = 0
    while at < len(text):
        if text[at] != "{":
            return []
        try:
            _, end = decoder.raw_decode(text, at)
            call = msgspec.json.decode(text[at:end], type=_LlamaCall)
        except (ValueError, msgspec.DecodeError, RecursionError):
            return []
        arguments = (bytes(call.parameters) or bytes(call.arguments) or b"{}").decode()
        if not call.name or not is_json(arguments):
            return []
        calls.append(ToolCall("", call.name, arguments))
        at = end
        while at < len(text) and text[at] in "; \n":
            at += 1
    return calls


def _builtin(text: str) -> list[ToolCall]:
    """`NAME.call(KEY="VALUE")`, as the template writes calls of the tools that the model knows by itself."""
    match = _BUILTIN.fullmatch(text)
    if match is None or not is_json(match.group(3)):
        return []
    return [ToolCall("", match.group(1), f"{{{quoted(match.group(2))}: {match.group(3)}}}")]


def _spell_llama3(turn: Assistant) -> str:
    if turn.reasoning or (turn.text and turn.calls):
        raise ConfigError("a turn of this family is text or calls, and has no reasoning", where="parser")
    if not turn.calls:
        return turn.text or ""
    return "; ".join(f'{{"name": {quoted(c.name)}, "parameters": {c.arguments}}}' for c in turn.calls)


def llama3() -> Family:
    """Llama 3.1 to 3.3."""
    return Family(
        name="llama3",
        parse=_parse_llama3,
        spell=_spell_llama3,
        end=lambda turn: "<|eot_id|>",
        others=(_TAG,),
        stop=("<|eot_id|>", "<|eom_id|>"),
        renderer="llama-3",
        form=Form(header="<|start_header_id|>assistant<|end_header_id|>\n\n"),
    )


_MARK, _ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class _MistralCall(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    id: str = ""


def _read_mistral(block: Block) -> Sequence[ToolCall]:
    """A JSON list of calls, or a name and arguments with markers before them. Ids are what was sampled."""
    head, found, rest = block.text.partition(block.char(_ARGS))
    if not found:
        return _read_list(block.plain())
    name, _, call_id = head.partition(block.char(_ID))
    plain = block.reading.plain
    arguments = plain(rest).strip()
    good = is_name(plain(name).strip()) and is_json(arguments)
    return [ToolCall(plain(call_id).strip(), plain(name).strip(), arguments)] if good else ()


def _read_list(text: str) -> Sequence[ToolCall]:
    try:
        calls = msgspec.json.decode(text, type=list[_MistralCall])
    except (msgspec.DecodeError, RecursionError):
        return ()
    found = [ToolCall(c.id, c.name, bytes(c.arguments).decode()) for c in calls]
    return found if all(c.name and is_json(c.arguments) for c in found) else ()


def _spell_list(calls: Sequence[ToolCall]) -> str:
    each = [
        f'{{"name": {quoted(c.name)}, "arguments": {c.arguments}, "id": {quoted(c.id or _call_id(n))}}}'
        for n, c in enumerate(calls)
    ]
    return f"{_MARK}[{', '.join(each)}]" if calls else ""


def _spell_named(calls: Sequence[ToolCall]) -> str:
    return "".join(f"{_MARK}{c.name}{_ID}{c.id or _call_id(n)}{_ARGS}{c.arguments}" for n, c in enumerate(calls))


def _spell_bare(calls: Sequence[ToolCall]) -> str:
    return "".join(f"{_MARK}{c.name}{_ARGS}{c.arguments}" for c in calls)


def _call_id(n: int) -> str:
    """Nine letters and digits: what the templates ask for."""
    return f"call{n:05d}"


def _mistral(name: str, spell_calls: Callable[[Sequence[ToolCall]], str]) -> Family:
    shape = Tagged(
        read=_read_mistral,
        calls=((_MARK, ""),),
        header="[/INST]",
        reasoning=("[THINK]", "[/THINK]"),
        inner=(_ARGS, _ID),
    )

    def spell(turn: Assistant) -> str:
        thought = f"[THINK]{turn.reasoning}[/THINK]" if turn.reasoning else ""
        return thought + (turn.text or "") + spell_calls(turn.calls)

    return Family(
        name=name,
        parse=tagged(shape),
        spell=spell,
        end=lambda turn: "</s>",
        reasoning=shape.reasoning,
        others=(_MARK, _ARGS, _ID, "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        stop=("</s>",),
        live=live(shape),
        form=shape.form,
    )


def mistral() -> Family:
    """Mistral Nemo and before: a list of calls with ids."""
    return _mistral("mistral", _spell_list)


def mistral_ids() -> Family:
    """Mistral Small 3.2: name, id and arguments with markers between."""
    return _mistral("mistral-ids", _spell_named)


def mistral_args() -> Family:
    """Devstral, Ministral 3: name and arguments."""
    return _mistral("mistral-args", _spell_bare)
