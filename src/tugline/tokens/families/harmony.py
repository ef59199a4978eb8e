"""gpt-oss (Harmony): a reply is a row of messages, each with a channel and perhaps a recipient.

`analysis` is reasoning; a message to `functions.NAME` is a call; `final`, and `commentary` to nobody, are text. The
first message begins behind the `<|start|>assistant` of the prompt. `<|return|>` and `<|call|>` end the turn; `<|end|>`
ends a message only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tugline.core.columns import count, ids_list
from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import is_json, is_name
from tugline.tokens.families.family import Family, Form
from tugline.tokens.families.reading import Found, Reading
from tugline.tokens.families.tagged import failed, unknown_tools
from tugline.tokens.parse import Parsed, Sampled, body_of, finished, invalid_utf8

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_END, _RETURN, _CALL = "<|end|>", "<|return|>", "<|call|>"
_CONSTRAIN = "<|constrain|>"
_MARKERS = (_START, _CHANNEL, _MESSAGE, _END, _RETURN, _CALL, _CONSTRAIN)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_HEADER = re.compile(
    r"\s*+(?:assistant)?+\s*+(?:to=(?P<first>[^\s<]++))?+\s*+"
    r"(?:<\|channel\|>\s*+(?P<channel>[a-z]++)\s*+(?:to=(?P<second>[^\s<]++))?+\s*+(?:<\|constrain\|>)?+\s*+[a-z_]*+)?+"
    r"\s*+"
)
"""Role, recipient, channel, recipient, format of the arguments: each where it may stand. Nothing is tried twice: a
model may sample any number of blanks between them."""


@dataclass(frozen=True, slots=True)
class _Message:
    """A message in a text: [begin, end) with its markers, [start, stop) what it says."""

    begin: int
    start: int
    stop: int
    end: int
    channel: str
    recipient: str
    closed: bool


def _parse(sampled: Sampled) -> Parsed:
    body = body_of(sampled)
    reading = Reading(sampled.codec, body, _MARKERS)
    found = Found(drift=invalid_utf8(sampled, body))
    ended = len(body) < count(sampled.ids) or sampled.finish == "stop"
    at = 0
    for message in _messages(sampled, reading, ended=ended):
        _junk(sampled, reading, found, (at, message.begin))
        _add(sampled, reading, message, found)
        at = message.end
    _junk(sampled, reading, found, (at, len(reading.text)))
    unknown_tools(sampled, found.calls, found.drift)
    assistant = Assistant("".join(found.text) or None, "".join(found.reasoning) or None, tuple(found.calls))
    return finished(sampled, assistant, found.drift, found.tokens)


def _junk(sampled: Sampled, reading: Reading, found: Found, span: tuple[int, int]) -> None:
    """Text that stands in no message: shown, and named."""
    text = reading.plain(reading.text[slice(*span)])
    if text.strip():
        found.text.append(text)
        called = span[1] == len(reading.text) and _RECIPIENT.search(text)
        if called:
            failed(sampled, found.drift, cut=True)
        else:
            found.drift.add("markup_unparsed")


def _add(sampled: Sampled, reading: Reading, message: _Message, found: Found) -> None:
    said = reading.plain(reading.text[message.start : message.stop])
    whole = reading.plain(reading.text[message.begin : message.end])
    if message.recipient:
        call = _call(sampled, message, said)
        if call is not None:
            found.calls.append(call)
        else:
            found.text.append(whole)
            failed(sampled, found.drift, cut=not message.closed)
    elif message.channel == "analysis":
        found.reasoning.append(said)
        found.tokens += reading.tokens(message.start, message.stop)
        if not message.closed:
            found.drift.add("reasoning_unclosed")
    elif message.channel in ("final", "commentary"):
        found.text.append(said)
    else:
        found.text.append(whole)
        found.drift.add("markup_unparsed")


def _call(sampled: Sampled, message: _Message, said: str) -> ToolCall | None:
    name = message.recipient.removeprefix("functions.")
    known = name != message.recipient or any(t.name == name for t in sampled.tools)
    return ToolCall("", name, said) if message.closed and known and is_name(name) and is_json(said) else None


def _messages(sampled: Sampled, reading: Reading, *, ended: bool) -> Iterator[_Message]:
    """`ended`: the stop token that stood behind the last message is gone."""
    text = reading.text
    closers = [reading.char(m) for m in (_END, _RETURN, _CALL)]
    ends = re.compile("|".join(map(re.escape, (reading.char(_START), *closers))))
    begin = 0
    header, whole, _ = _prompt_header(sampled).partition(_MESSAGE)
    start = 0 if whole else -1  # where the prompt has written the header in full, the reply begins with the message
    while True:
        if start < 0:
            opening = text.find(reading.char(_MESSAGE), begin)
            if opening < 0:
                return
            begin = max(begin, text.rfind(reading.char(_START), begin, opening))
            header, start = header + reading.plain(text[begin:opening]), opening + 1
        found = ends.search(text, start)
        stop = found.start() if found else len(text)
        end = stop + 1 if found and found.group() in closers else stop
        yield _Message(begin, start, stop, end, *_header(header), closed=bool(found) or ended)
        begin, header, start = end, "", -1


def _header(head: str) -> tuple[str, str]:
    """Channel and recipient; two empty words where the header is none."""
    found = _HEADER.fullmatch(head.removeprefix(_START))
    return (found["channel"] or "", found["first"] or found["second"] or "") if found else ("", "")


def _prompt_header(sampled: Sampled) -> str:
    """What the prompt has written of the first message: `assistant`, or more."""
    return sampled.codec.decode(ids_list(sampled.prompt)).rpartition(_START)[2]


def _spell(turn: Assistant) -> str:
    if len(turn.calls) > 1:
        raise ConfigError("a turn of this family ends with its first call", where="parser")
    parts: list[str] = []
    if turn.reasoning:
        parts.append(f"{_CHANNEL}analysis{_MESSAGE}{turn.reasoning}")
    if turn.text or not (turn.calls or turn.reasoning):
        parts.append(f"{_CHANNEL}{'commentary' if turn.calls else 'final'}{_MESSAGE}{turn.text or ''}")
    parts += [f" to=functions.{c.name}{_CHANNEL}commentary json{_MESSAGE}{c.arguments}" for c in turn.calls]
    return f"{_END}{_START}assistant".join(parts)


def gpt_oss() -> Family:
    """gpt-oss and others that speak Harmony."""
    return Family(
        name="gpt-oss",
        parse=_parse,
        spell=_spell,
        end=lambda turn: _CALL if turn.calls else _RETURN,
        others=_MARKERS,
        stop=(_RETURN, _CALL),
        renderer="gpt-oss",
        form=Form(header=f"{_START}assistant"),
    )
