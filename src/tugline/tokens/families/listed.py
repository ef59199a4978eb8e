"""Families that write all calls of a turn as one list: Cohere in JSON, LFM2 as Python would."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import is_json, is_name, members_of, object_of, quoted, skip_blank
from tugline.tokens.families.family import Family
from tugline.tokens.families.tagged import Block, Tagged, live, tagged


class _CohereCall(msgspec.Struct):
    tool_name: str
    parameters: msgspec.Raw = msgspec.Raw(b"{}")
    tool_call_id: str = ""


def _read_cohere(block: Block) -> Sequence[ToolCall]:
    """Ids are what was sampled."""
    try:
        calls = msgspec.json.decode(block.plain(), type=list[_CohereCall])
    except (msgspec.DecodeError, RecursionError):
        return ()
    found = [ToolCall(c.tool_call_id, c.tool_name, bytes(c.parameters).decode()) for c in calls]
    return found if all(c.name and is_json(c.arguments) for c in found) else ()


def _cohere(name: str, frame: tuple[str, str]) -> Family:
    shape = Tagged(
        read=_read_cohere,
        calls=(("<|START_ACTION|>", "<|END_ACTION|>"),),
        header="<|CHATBOT_TOKEN|>",
        reasoning=("<|START_THINKING|>", "<|END_THINKING|>"),
        frame=frame,
    )

    def spell(turn: Assistant) -> str:
        thought = f"<|START_THINKING|>{turn.reasoning}<|END_THINKING|>" if turn.reasoning else ""
        text = f"{frame[0]}{turn.text or ''}{frame[1]}" if turn.text or not turn.calls else ""
        each = [
            f'    {{"tool_call_id": {quoted(c.id or str(n))}, "tool_name": {quoted(c.name)}, '
            f'"parameters": {c.arguments}}}'
            for n, c in enumerate(turn.calls)
        ]
        lines = ",\n".join(each)
        return thought + text + (f"<|START_ACTION|>[\n{lines}\n]<|END_ACTION|>" if each else "")

    return Family(
        name=name,
        parse=tagged(shape),
        spell=spell,
        end=lambda turn: "<|END_OF_TURN_TOKEN|>",
        reasoning=shape.reasoning,
        calls=shape.calls,
        others=(*frame, "<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>"),
        stop=("<|END_OF_TURN_TOKEN|>",),
        form=shape.form,
    )


def cohere() -> Family:
    """Command R7B and later: text between `<|START_RESPONSE|>` and `<|END_RESPONSE|>`."""
    return _cohere("cohere", ("<|START_RESPONSE|>", "<|END_RESPONSE|>"))


def cohere_text() -> Family:
    """Cohere 2 MoE: text between `<|START_TEXT|>` and `<|END_TEXT|>`."""
    return _cohere("cohere-text", ("<|START_TEXT|>", "<|END_TEXT|>"))


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_DEPTH = 64
"""Arguments that nest deeper are no call."""


class _Unreadable(Exception):
    """Not a list of calls."""


class _Python:
    """Reads `[name(key=value, ...), ...]`: names, keyword arguments and literals, nothing that runs."""

    def __init__(self, text: str) -> None:
        self._text = text

    def calls(self) -> list[ToolCall]:
        """Raises _Unreadable."""
        found: list[ToolCall] = []
        at = self._expect("[", 0)
        while self._peek(at) != "]":
            call, at = self._call(at)
            found.append(call)
            at = self._after(at, "]")
        if skip_blank(self._text, at + 1) < len(self._text):
            raise _Unreadable
        return found

    def _call(self, at: int) -> tuple[ToolCall, int]:
        name, at = self._word(at, "(")
        members: list[tuple[str, str]] = []
        at = skip_blank(self._text, at + 1)
        while self._peek(at) != ")":
            key, at = self._word(at, "=")
            value, at = self._value(at + 1, _DEPTH)
            members.append((key, value))
            at = self._after(at, ")")
        arguments = object_of(members)
        if arguments is None:
            raise _Unreadable
        return ToolCall("", name, arguments), at + 1

    def _value(self, at: int, depth: int) -> tuple[str, int]:
        at = skip_blank(self._text, at)
        match self._peek(at):
            case "'" | '"':
                text, at = self._string(at)
                return quoted(text), at
            case "[" if depth:
                values: list[str] = []
                at = skip_blank(self._text, at + 1)
                while self._peek(at) != "]":
                    value, at = self._value(at, depth - 1)
                    values.append(value)
                    at = self._after(at, "]")
                return f"[{', '.join(values)}]", at + 1
            case "{" if depth:
                return self._object(at, depth - 1)
        end = at
        while end < len(self._text) and self._text[end] not in ",)]}":
            end += 1
        text = self._text[at:end].strip()
        text = _WORDS.get(text, text)
        if not is_json(text) or text[:1] in "[{":
            raise _Unreadable
        return text, end

    def _object(self, at: int, depth: int) -> tuple[str, int]:
        members: list[tuple[str, str]] = []
        at = skip_blank(self._text, at + 1)
        while self._peek(at) != "}":
            if self._peek(at) not in ("'", '"'):
                raise _Unreadable
            key, at = self._string(at)
            value, at = self._value(self._expect(":", at), depth)
            members.append((key, value))
            at = self._after(at, "}")
        found = object_of(members)
        if found is None:
            raise _Unreadable
        return found, at + 1

    def _string(self, at: int) -> tuple[str, int]:
        quote, out = self._text[at], list[str]()
        at += 1
        while (char := self._peek(at)) != quote:
            if char == "\\":
                known = _ESCAPES.get(self._peek(at + 1))
                out.append(char + self._text[at + 1] if known is None else known)
                at += 2
            else:
                out.append(char)
                at += 1
        return "".join(out), at + 1

    def _word(self, at: int, end: str) -> tuple[str, int]:
        at = skip_blank(self._text, at)
        stop = at
        while stop < len(self._text) and self._text[stop] not in "()[]{},='\" \n":
            stop += 1
        name = self._text[at:stop]
        if not is_name(name) or self._peek(stop) != end:
            raise _Unreadable
        return name, stop

    def _after(self, at: int, closer: str) -> int:
        """Behind a comma, or at the closer."""
        at = skip_blank(self._text, at)
        if self._peek(at) == ",":
            return skip_blank(self._text, at + 1)
        if self._peek(at) != closer:
            raise _Unreadable
        return at

    def _expect(self, char: str, at: int) -> int:
        at = skip_blank(self._text, at)
        if self._peek(at) != char:
            raise _Unreadable
        return skip_blank(self._text, at + 1)

    def _peek(self, at: int) -> str:
        if at >= len(self._text):
            raise _Unreadable
        return self._text[at]


def _read_lfm2(block: Block) -> Sequence[ToolCall]:
    try:
        return _Python(block.plain()).calls()
    except _Unreadable:
        return ()


def _spell_python(value: object) -> str:
    match value:
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
            return f"'{escaped}'"
        case dict() | list():
            return json.dumps(value, ensure_ascii=False)
    return str(value)


def _spell_lfm2_call(call: ToolCall) -> str:
    members = members_of(call.arguments)
    if members is None:
        return f"{call.name}({call.arguments})"
    return f"{call.name}({', '.join(f'{k}={_spell_python(v)}' for k, v in members)})"


def lfm2() -> Family:
    """LFM2 and LFM2.5."""
    shape = Tagged(
        read=_read_lfm2,
        calls=(("<|tool_call_start|>", "<|tool_call_end|>"),),
        header="<|im_start|>assistant\n",
        reasoning=("<think>", "</think>"),
    )

    def spell(turn: Assistant) -> str:
        thought = f"<think>{turn.reasoning}</think>" if turn.reasoning else ""
        calls = ", ".join(map(_spell_lfm2_call, turn.calls))
        return thought + (turn.text or "") + (f"<|tool_call_start|>[{calls}]<|tool_call_end|>" if calls else "")

    return Family(
        name="lfm2",
        parse=tagged(shape),
        spell=spell,
        end=lambda turn: "<|im_end|>",
        reasoning=shape.reasoning,
        calls=shape.calls,
        others=("<|tool_response_start|>", "<|tool_response_end|>", "<|tool_list_start|>", "<|tool_list_end|>"),
        stop=("<|im_end|>",),
        live=live(shape),
        form=shape.form,
    )
