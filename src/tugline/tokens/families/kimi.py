"""Kimi K2's replies: a section of calls, each with an id that the model writes itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import is_json, is_name
from tugline.tokens.families.family import Family
from tugline.tokens.families.tagged import Block, Tagged, live, tagged

_SECTION = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
_CALL = ("<|tool_call_begin|>", "<|tool_call_end|>")
_ARGUMENTS = "<|tool_call_argument_begin|>"


def _read(block: Block) -> Sequence[ToolCall]:
    """`functions.NAME:N`, a separator, the arguments. The id is what was sampled: results are named after it."""
    head, found, rest = block.text.partition(block.char(_ARGUMENTS))
    call_id, arguments = block.reading.plain(head).strip(), block.reading.plain(rest)
    name = call_id.partition(":")[0]
    name = name.partition(".")[2] if "." in name else name
    good = found and is_name(name) and is_json(arguments)
    return [ToolCall(call_id, name, arguments)] if good else ()


def _spell(turn: Assistant) -> str:
    """Calls without an id are numbered from 0, as in a first turn."""
    thought = f"<think>{turn.reasoning}</think>" if turn.reasoning else ""
    calls = [replace(c, id=c.id or f"functions.{c.name}:{n}") for n, c in enumerate(turn.calls)]
    block = "".join(f"{_CALL[0]}{c.id}{_ARGUMENTS}{c.arguments}{_CALL[1]}" for c in calls)
    return thought + (turn.text or "") + (_SECTION[0] + block + _SECTION[1] if calls else "")


def kimi_k2() -> Family:
    """Kimi K2, K2 Thinking and K2.5."""
    shape = Tagged(
        read=_read,
        calls=(_SECTION, _CALL),
        header="<|im_assistant|>assistant<|im_middle|>",
        reasoning=("<think>", "</think>"),
        spelled=True,
        inner=(_ARGUMENTS,),
    )
    return Family(
        name="kimi-k2",
        parse=tagged(shape),
        spell=_spell,
        end=lambda turn: "<|im_end|>",
        reasoning=shape.reasoning,
        calls=shape.calls,
        others=(_ARGUMENTS,),
        stop=("<|im_end|>",),
        renderer="kimi-k2",
        live=live(shape),
        form=shape.form,
    )
