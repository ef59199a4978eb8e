"""Inkling's replies: a row of segments, each begun by a token that says what it is."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tugline.core.columns import count, ids_list
from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import is_json, quoted
from tugline.tokens.families.family import Family, Form
from tugline.tokens.families.reading import Found, Reading
from tugline.tokens.families.tagged import failed, unknown_tools
from tugline.tokens.parse import Parsed, Sampled, body_of, finished, invalid_utf8

_MODEL, _TEXT, _THINKING = "<|message_model|>", "<|content_text|>", "<|content_thinking|>"
_JSON, _FREE = "<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"
_END, _STOP = "<|end_message|>", "<|content_model_end_sampling|>"
_MARKERS = (_MODEL, _TEXT, _THINKING, _JSON, _FREE, _END)


class _Call(msgspec.Struct):
    name: str
    args: msgspec.Raw = msgspec.Raw(b"{}")


def _parse(sampled: Sampled) -> Parsed:
    body = body_of(sampled)
    reading = Reading(sampled.codec, body, _MARKERS)
    found = Found(drift=invalid_utf8(sampled, body))
    ended = len(body) < count(sampled.ids) or sampled.finish == "stop"
    at, kind = 0, _opened(sampled)
    while at < len(reading.text):
        stop = reading.text.find(reading.char(_END), at)
        closed, stop = stop >= 0, stop if stop >= 0 else len(reading.text)
        _segment(sampled, reading, found, (at, stop, stop + closed), kind, closed or ended)
        at, kind = stop + closed, None
    unknown_tools(sampled, found.calls, found.drift)
    assistant = Assistant("".join(found.text) or None, "".join(found.reasoning) or None, tuple(found.calls))
    return finished(sampled, assistant, found.drift, found.tokens)


def _segment(
    sampled: Sampled, reading: Reading, found: Found, span: tuple[int, int, int], kind: str | None, closed: bool
) -> None:
    """One segment: a marker of its own says what it is, unless the prompt has said so (`kind`)."""
    at, stop, end = span
    text, marks = reading.text, {reading.char(m): m for m in (_TEXT, _THINKING, _JSON, _FREE)}
    begun = at + (text[at] == reading.char(_MODEL))
    mark = next((i for i in range(begun, stop) if text[i] in marks), -1)
    own = mark >= 0 and (kind is None or (mark == begun and marks[text[mark]] == kind))
    kind, start = (marks[text[mark]], mark + 1) if own else (kind, begun)
    bare = not own or mark == begun
    said, whole = reading.plain(text[start:stop]), reading.plain(text[at:end])
    if kind == _THINKING and bare:
        found.reasoning.append(said)
        found.tokens += reading.tokens(start, stop)
        if not closed:
            found.drift.add("reasoning_unclosed")
    elif kind == _JSON:
        calls = _call(reading.plain(text[begun:mark]).strip(), said) if closed else ()
        found.calls += calls
        if not calls:
            found.text.append(whole)
            failed(sampled, found.drift, cut=not closed)
    elif kind == _TEXT and bare:
        found.text.append(said)
    elif whole.strip():
        found.text.append(whole)
        found.drift.add("markup_unparsed")


def _call(name: str, text: str) -> Sequence[ToolCall]:
    """{"name", "args"}, and the same name in front or none."""
    try:
        call = msgspec.json.decode(text, type=_Call)
    except (msgspec.DecodeError, RecursionError):
        return ()
    arguments = bytes(call.args).decode()
    good = call.name and name in ("", call.name) and is_json(arguments)
    return [ToolCall("", call.name, arguments)] if good else ()


def _opened(sampled: Sampled) -> str | None:
    """The segment that the prompt has opened."""
    codec = sampled.codec
    kinds = {codec.token(m): m for m in _MARKERS}
    last = next((kinds[t] for t in reversed(ids_list(sampled.prompt)) if t in kinds), None)
    return last if last in (_TEXT, _THINKING) else None


def _spell(turn: Assistant) -> str:
    parts: list[str] = []
    if turn.reasoning:
        parts.append(_THINKING + turn.reasoning)
    if turn.text or not (turn.calls or turn.reasoning):
        parts.append(_TEXT + (turn.text or ""))
    parts += [f'{c.name}{_JSON}{{"name":{quoted(c.name)},"args":{c.arguments}}}' for c in turn.calls]
    return f"{_END}{_MODEL}".join(parts) + _END


def inkling() -> Family:
    """Inkling."""
    return Family(
        name="inkling",
        parse=_parse,
        spell=_spell,
        end=lambda turn: _STOP,
        others=(*_MARKERS, _STOP),
        stop=(_STOP,),
        renderer="inkling",
        form=Form(header=_MODEL),
    )
