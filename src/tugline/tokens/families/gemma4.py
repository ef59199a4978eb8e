"""Gemma 4's replies: thoughts in a channel, calls in an object notation of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import is_json, is_name, members_of, object_of, quoted, skip_blank
from tugline.tokens.families.family import Family
from tugline.tokens.families.tagged import Block, Tagged, live, tagged

_QUOTE = '<|"|>'
_DEPTH = 64
"""Arguments that nest deeper are no call."""


class _Unreadable(Exception):
    """Not the notation."""


class _Values:
    """Reads `{key:value,...}`: keys bare, strings between quote tokens, the rest as JSON writes it."""

    def __init__(self, block: Block, text: str) -> None:
        self._text, self._quote, self._plain = text, block.char(_QUOTE), block.reading.plain

    def whole(self) -> str:
        """The one object that the text is, as JSON. Raises _Unreadable."""
        value, at = self._value(0, _DEPTH)
        if skip_blank(self._text, at) < len(self._text) or not value.startswith("{"):
            raise _Unreadable
        return value

    def _value(self, at: int, depth: int) -> tuple[str, int]:
        at = skip_blank(self._text, at)
        match self._text[at : at + 1]:
            case "{" if depth:
                return self._object(at + 1, depth - 1)
            case "[" if depth:
                return self._array(at + 1, depth - 1)
            case char if char == self._quote:
                text, at = self._string(at)
                return quoted(text), at
        return self._literal(at)

    def _string(self, at: int) -> tuple[str, int]:
        end = self._text.find(self._quote, at + 1)
        if end < 0:
            raise _Unreadable
        return self._plain(self._text[at + 1 : end]), end + 1

    def _literal(self, at: int) -> tuple[str, int]:
        end = at
        while end < len(self._text) and self._text[end] not in ",}]":
            end += 1
        text = self._plain(self._text[at:end]).strip()
        if not text or any(c in text for c in "{["):
            raise _Unreadable
        return text if is_json(text) else quoted(text), end

    def _object(self, at: int, depth: int) -> tuple[str, int]:
        members: list[tuple[str, str]] = []
        at = skip_blank(self._text, at)
        while self._text[at : at + 1] != "}":
            key, at = self._key(at)
            value, at = self._value(at, depth)
            members.append((key, value))
            at = self._after(at, "}")
        found = object_of(members)
        if found is None:
            raise _Unreadable
        return found, at + 1

    def _key(self, at: int) -> tuple[str, int]:
        at = skip_blank(self._text, at)
        if self._text[at : at + 1] == self._quote:
            key, at = self._string(at)
            at = skip_blank(self._text, at)
        else:
            end = at
            while end < len(self._text) and self._text[end] not in ":,{}[]":
                end += 1
            key, at = self._plain(self._text[at:end]).strip(), end
        if self._text[at : at + 1] != ":" or not key:
            raise _Unreadable
        return key, at + 1

    def _array(self, at: int, depth: int) -> tuple[str, int]:
        values: list[str] = []
        at = skip_blank(self._text, at)
        while self._text[at : at + 1] != "]":
            value, at = self._value(at, depth)
            values.append(value)
            at = self._after(at, "]")
        return f"[{', '.join(values)}]", at + 1

    def _after(self, at: int, closer: str) -> int:
        """Behind a comma, or at the closer."""
        at = skip_blank(self._text, at)
        if self._text[at : at + 1] == ",":
            return skip_blank(self._text, at + 1)
        if self._text[at : at + 1] != closer:
            raise _Unreadable
        return at


def _read(block: Block) -> Sequence[ToolCall]:
    """`call:NAME{...}`."""
    head, found, rest = block.text.strip().partition("{")
    name = block.reading.plain(head).strip()
    if not found or not name.startswith("call:"):
        return ()
    try:
        arguments = _Values(block, found + rest).whole()
    except _Unreadable:
        return ()
    name = name.removeprefix("call:").strip()
    return [ToolCall("", name, arguments)] if is_name(name) else ()


def _spell_value(value: object) -> str:
    match value:
        case None | bool():
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return f"{_QUOTE}{value}{_QUOTE}"
        case dict():
            return "{" + ",".join(f"{k}:{_spell_value(v)}" for k, v in _sorted(value.items())) + "}"
        case list():
            return "[" + ",".join(map(_spell_value, value)) + "]"
    return str(value)


def _sorted(members: Iterable[tuple[str, object]]) -> list[tuple[str, object]]:
    """As jinja's `dictsort` has it."""
    return sorted(members, key=lambda pair: pair[0].lower())


def _spell_call(call: ToolCall) -> str:
    members = members_of(call.arguments)
    inside = call.arguments
    if members is not None:
        inside = "{" + ",".join(f"{k}:{_spell_value(v)}" for k, v in _sorted(members)) + "}"
    return f"<|tool_call>call:{call.name}{inside}<tool_call|>"


def _spell(turn: Assistant) -> str:
    thought = f"<|channel>thought\n{turn.reasoning}\n<channel|>" if turn.reasoning else ""
    return thought + (turn.text or "") + "".join(map(_spell_call, turn.calls))


def gemma4() -> Family:
    """Gemma 4. A turn that calls ends with the token that opens the tool's response."""
    shape = Tagged(
        read=_read,
        calls=(("<|tool_call>", "<tool_call|>"),),
        header="<|turn>model\n",
        reasoning=("<|channel>", "<channel|>"),
        lead="thought\n",
        trail="\n",
        inner=(_QUOTE,),
    )
    return Family(
        name="gemma4",
        parse=tagged(shape),
        spell=_spell,
        end=lambda turn: "<|tool_response>" if turn.calls else "<turn|>",
        reasoning=shape.reasoning,
        calls=shape.calls,
        others=(_QUOTE, "<|tool_response>", "<tool_response|>"),
        stop=("<turn|>", "<|tool_response>"),
        renderer="gemma4",
        live=live(shape),
        form=shape.form,
    )
