"""Qwen3's replies: `<think>` reasoning, text, then JSON calls in `<tool_call>` blocks. Also Qwen2.5 and Hermes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import is_json, quoted
from tugline.tokens.families.family import Family
from tugline.tokens.families.tagged import Block, Tagged, live, tagged


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


def json_call(text: str) -> Sequence[ToolCall]:
    """A call {"name", "arguments"} whose arguments are the very characters sampled, or none."""
    try:
        call = msgspec.json.decode(text, type=_Call)
    except (msgspec.DecodeError, RecursionError):
        return ()
    arguments = bytes(call.arguments).decode()
    return [ToolCall("", call.name, arguments)] if call.name and is_json(arguments) else ()


def _read(block: Block) -> Sequence[ToolCall]:
    return json_call(block.plain())


def _spell(turn: Assistant) -> str:
    calls = [f'<tool_call>\n{{"name": {quoted(c.name)}, "arguments": {c.arguments}}}\n</tool_call>' for c in turn.calls]
    thought = f"<think>\n{turn.reasoning}\n</think>\n\n" if turn.reasoning else ""
    return thought + "\n".join([*([turn.text] if turn.text else []), *calls])


def _hermes(name: str, header: str, stop: str, renderer: str | None) -> Family:
    shape = Tagged(
        read=_read,
        calls=(("<tool_call>", "</tool_call>"),),
        header=header,
        reasoning=("<think>", "</think>"),
        lead="\n",
        trail="\n",
        behind="\n\n",
        before="\n",
    )
    return Family(
        name=name,
        parse=tagged(shape),
        spell=_spell,
        end=lambda turn: stop,
        reasoning=shape.reasoning,
        calls=shape.calls,
        others=("<tool_response>", "</tool_response>"),
        stop=(stop,),
        renderer=renderer,
        live=live(shape),
        form=shape.form,
    )


def qwen3() -> Family:
    """Qwen2.5, Qwen3, Hermes, and many others with ChatML turns."""
    return _hermes("qwen3", "<|im_start|>assistant\n", "<|im_end|>", "qwen3")


def granite4() -> Family:
    """Granite 4: the same calls between other turns."""
    return _hermes("granite-4", "<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>", None)
