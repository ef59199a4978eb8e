"""Qwen3's replies: `<think>` reasoning, text, then JSON calls in `<tool_call>` blocks. Also Qwen2.5 and Hermes.

The `renderers` library finds where reasoning and calls begin and end; the strings handed on are then cut out of the
decoded ids by us, unstripped and never re-serialised, so that what a harness sees is what was sampled. Only the line
breaks that the template itself writes around a region are taken off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from tugline.core.columns import ids_list
from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.family import Family
from tugline.tokens.live import Qwen3Live
from tugline.tokens.parse import Parsed, Sampled, Shim, body_of, finished, invalid_utf8


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


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


def _parse(sampled: Sampled) -> Parsed:
    """`<think>` reasoning, then text, then JSON calls in `<tool_call>` blocks."""
    body = body_of(sampled)
    region = _reasoning(sampled, body)
    decode = sampled.codec.decode
    reasoning: str | None = None
    if region.state != "none":
        reasoning = decode(body[region.start : region.end])
        if region.leading_break:
            reasoning = reasoning.removeprefix("\n")
        if region.state == "closed":
            reasoning = reasoning.removesuffix("\n")
    drift = invalid_utf8(sampled, body)
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
    return finished(sampled, assistant, drift, max(0, region.end - region.start))


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


def _spell(turn: Assistant) -> str:
    calls = [
        f'<tool_call>\n{{"name": {msgspec.json.encode(c.name).decode()}, "arguments": {c.arguments}}}\n</tool_call>'
        for c in turn.calls
    ]
    thought = f"<think>\n{turn.reasoning}\n</think>\n\n" if turn.reasoning else ""
    return thought + "\n".join([*([turn.text] if turn.text else []), *calls])


def _end(turn: Assistant) -> str:
    return "<|im_end|>"


def qwen3() -> Family:
    """`<think>` reasoning, then text, then JSON calls in `<tool_call>` blocks."""
    return Family(
        name="qwen3",
        parse=_parse,
        reasoning=("<think>", "</think>"),
        calls=(("<tool_call>", "</tool_call>"),),
        others=("<tool_response>", "</tool_response>"),
        stop=("<|im_end|>",),
        spell=_spell,
        end=_end,
        renderer="qwen3",
        live=Qwen3Live,
    )
