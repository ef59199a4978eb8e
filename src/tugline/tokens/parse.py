"""Sampled ids to reasoning, text and calls: structure by token id, content verbatim.

The `renderers` library finds where reasoning and calls begin and end; the strings handed on are then cut out of the
decoded ids by us, unstripped and never re-serialised, so that what a harness sees is what was sampled. Only the line
breaks that the template itself writes around a region are taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import msgspec

from tugline.core.columns import Ids, count, ids_list, take
from tugline.core.items import Assistant, Tool, ToolCall
from tugline.core.turn import Finish
from tugline.tokens.codec import Codec, positions
from tugline.tokens.live import LiveFamily, PlainLive, Qwen3Live

_PROMPT_TAIL = 512
"""Tokens of the prompt that are searched for the start of the assistant turn."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A reply without call ids (""). `finish`: what to tell the harness; `length` is never hidden behind a call."""

    assistant: Assistant
    finish: Literal["stop", "tool_calls", "length"]
    drift: tuple[str, ...]
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a parser gets. `prompt`: the ids behind the last stop token of the prompt; `ids`: sampled, stop included."""

    codec: Codec
    stop: frozenset[int]
    prompt: Ids
    ids: Ids
    finish: Finish
    tools: Sequence[Tool]


Parser: TypeAlias = Callable[[Sampled], Parsed]


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of models spells its replies. Markers that are single tokens also serve the bridge."""

    parse: Parser
    reasoning: tuple[str, str] = ("", "")
    call: tuple[str, str] = ("", "")
    others: tuple[str, ...] = ()
    live: LiveFamily | None = None
    """Shows replies while they are sampled."""

    @property
    def markers(self) -> tuple[str, ...]:
        """Every string that the family reads as structure."""
        return tuple(m for m in (*self.reasoning, *self.call, *self.others) if m)


def prompt_tail(prompt: Ids, stop: frozenset[int]) -> Ids:
    """The end of a prompt: behind its last stop token, at most 512 tokens."""
    tail = take(prompt, max(0, count(prompt) - _PROMPT_TAIL))
    found = positions(tail, stop)
    return take(tail, int(found[-1]) + 1) if len(found) else tail


def parse_plain(sampled: Sampled) -> Parsed:
    """Everything is text."""
    body = _body(sampled)
    text = sampled.codec.decode(body)
    return _finished(sampled, Assistant(text=text or None), _utf8(sampled, body), 0)


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class Shim:
    """The little of a transformers tokenizer that `renderers` asks for."""

    unk_token_id = None

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def decode(self, ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return self._codec.decode(ids, specials=not skip_special_tokens)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return ids_list(self._codec.encode(text))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._codec.token(token)


@dataclass(frozen=True, slots=True)
class _Region:
    """Reasoning in `ids`: [start, end) without markers, the rest from `rest` on. `closed` by its own marker."""

    start: int
    end: int
    rest: int
    state: Literal["none", "closed", "by_call", "open"]
    leading_break: bool
    prefilled: bool = False
    """The prompt had opened it."""


def parse_qwen3(sampled: Sampled) -> Parsed:
    """`<think>` reasoning, then text, then JSON calls in `<tool_call>` blocks."""
    body = _body(sampled)
    region = _reasoning(sampled, body)
    decode = sampled.codec.decode
    reasoning: str | None = None
    if region.state != "none":
        reasoning = decode(body[region.start : region.end])
        if region.leading_break:
            reasoning = reasoning.removeprefix("\n")
        if region.state == "closed":
            reasoning = reasoning.removesuffix("\n")
    drift = _utf8(sampled, body)
    text, calls = "", list[ToolCall]()
    if region.state == "open":
        drift.add("reasoning_unclosed")
    else:
        text, calls, notes = _content(sampled, body, region)
        drift |= notes
    offered = {t.name for t in sampled.tools}
    if any(c.name not in offered for c in calls):
        drift.add("unknown_tool")
    assistant = Assistant(text=text or None, reasoning=reasoning or None, calls=tuple(calls))
    return _finished(sampled, assistant, drift, max(0, region.end - region.start))


def _reasoning(sampled: Sampled, body: list[int]) -> _Region:
    from renderers.reasoning import prompt_ends_in_reasoning, scan_reasoning

    codec, shim = sampled.codec, Shim(sampled.codec)
    think, unthink, call = codec.token("<think>"), codec.token("</think>"), codec.token("<tool_call>")
    if think is None or unthink is None:
        return _Region(0, 0, 0, "none", False)
    prompt = ids_list(sampled.prompt)
    prefilled = bool(prompt_ends_in_reasoning(shim, prompt))
    found = scan_reasoning(
        shim,
        body,
        prefilled=prefilled,
        open_id=think,
        close_id=unthink,
        tool_start_id=call,
        tool_start_closes_reasoning=True,
    )
    if found.text is None:
        return _Region(0, 0, 0, "none", False)
    opening = next((i for i, t in enumerate(body) if t == think), -1)
    explicit = opening >= 0 and not codec.decode(body[:opening]).strip()
    start = opening + 1 if explicit else 0
    breaks = explicit or (bool(prompt) and prompt[-1] == think)
    if found.is_open:
        return _Region(start, len(body), len(body), "open", breaks, prefilled)
    end = body.index(call if found.closed_by_tool else unthink, start)  # type: ignore[arg-type]  # call is known here
    if found.closed_by_tool:
        return _Region(start, end, end, "by_call", breaks, prefilled)
    return _Region(start, end, end + 1, "closed", breaks, prefilled)


def _content(sampled: Sampled, body: list[int], region: _Region) -> tuple[str, list[ToolCall], set[str]]:
    """Text and calls behind the reasoning. What is no valid call stays in the text, markers included."""
    decode = sampled.codec.decode
    parts: list[str] = []
    calls: list[ToolCall] = []
    drift: set[str] = set()
    at = region.rest
    for start, end, closed in _attempts(sampled, body, region):
        before = decode(body[at:start])
        call = _call(decode(body[start + 1 : end - 1])) if closed else None
        if call is None:
            drift.add("tool_call_cut" if not closed and sampled.finish != "stop" else "tool_parse_failed")
            parts += [before, decode(body[start:end])]
        else:
            # One line break stands between text and a call, and between two calls.
            parts.append(before.removesuffix("\n") if not calls or before.strip() else "")
            calls.append(call)
        at = end
    rest = decode(body[at:])
    parts.append(rest if not calls or rest.strip() else "")
    text = "".join(parts)
    if region.state == "closed":
        text = text.removeprefix("\n\n") if text.startswith("\n\n") else text.removeprefix("\n")
    return text, calls, drift


def _attempts(sampled: Sampled, body: list[int], region: _Region) -> list[tuple[int, int, bool]]:
    """Spans of `<tool_call>` blocks with their markers, and whether the closing one is there."""
    from renderers.base import ToolCallParseStatus
    from renderers.parsing import parse_qwen3 as structure

    codec = sampled.codec
    call, uncall = codec.token("<tool_call>"), codec.token("</tool_call>")
    if call is None or uncall is None or call not in body[region.rest :]:
        return []
    try:
        found: Any = structure(
            Shim(codec),
            body,
            stop_ids=set(),
            tool_call_id=call,
            tool_call_end_id=uncall,
            reasoning_end_id=codec.token("</think>"),
            prefilled_thinking=region.prefilled,
        )
    except RecursionError:  # a block of nothing but opening brackets
        return [(body.index(call, region.rest), len(body), False)]
    return [(*a.token_span, a.status != ToolCallParseStatus.UNCLOSED_BLOCK) for a in found.tool_calls]


def _call(text: str) -> ToolCall | None:
    """A call whose arguments are the very characters sampled, or None when the block is not one."""
    try:
        call = msgspec.json.decode(text, type=_Call)
        msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, RecursionError):
        return None
    return ToolCall("", call.name, bytes(call.arguments).decode()) if call.name else None


def _body(sampled: Sampled) -> list[int]:
    """Sampled ids up to the stop token."""
    found = positions(sampled.ids, sampled.stop)
    return ids_list(take(sampled.ids, 0, int(found[0]) if len(found) else None))


def _utf8(sampled: Sampled, body: list[int]) -> set[str]:
    """`invalid_utf8` when more U+FFFD come out than were sampled as that very character."""
    text = sampled.codec.decode(body)
    if "\ufffd" not in text:
        return set()
    sign = ids_list(sampled.codec.encode("\ufffd"))
    honest = sum(body[i : i + len(sign)] == sign for i in range(len(body)))
    return {"invalid_utf8"} if text.count("\ufffd") > honest else set()


def _finished(sampled: Sampled, assistant: Assistant, drift: set[str], reasoning_tokens: int) -> Parsed:
    finish: Literal["stop", "tool_calls", "length"] = "length"
    if sampled.finish == "stop":
        finish = "tool_calls" if assistant.calls else "stop"
    return Parsed(assistant, finish, tuple(sorted(drift)), reasoning_tokens)


def families() -> Mapping[str, Family]:
    """Known families by the name that a model's `parser` setting gives."""
    return MappingProxyType(
        {
            "plain": Family(parse_plain, live=PlainLive),
            "qwen3": Family(
                parse_qwen3,
                reasoning=("<think>", "</think>"),
                call=("<tool_call>", "</tool_call>"),
                others=("<tool_response>", "</tool_response>"),
                live=Qwen3Live,
            ),
        }
    )
