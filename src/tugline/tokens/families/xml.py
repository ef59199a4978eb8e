"""Families whose calls name their arguments in tags: Qwen3.5 and later, Qwen3-Coder, Nemotron 3, MiniMax M2.

Values stand between tags without quotes. They are handed on unstripped, but for the line breaks that the template
writes around them, and typed by the tool's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import (
    end_of_value,
    is_name,
    object_of,
    skip_blank,
    tagged_members,
    typed,
)
from tugline.tokens.families.family import Family
from tugline.tokens.families.tagged import Block, Tagged, live, tagged


@dataclass(frozen=True, slots=True)
class _Tags:
    """How a call is written: what stands around names, and what the template breaks lines with inside a value."""

    function: tuple[str, str, str]
    """Before the name, behind it, and at the end."""
    parameter: tuple[str, str, str]
    lines: str = ""


_FUNCTION = _Tags(("<function=", ">", "</function>"), ("<parameter=", ">", "</parameter>"), "\n")
_INVOKE = _Tags(("<invoke", ">", ""), ('<parameter name="', '">', "</parameter>"))


def _read_function(block: Block) -> Sequence[ToolCall]:
    """`<function=NAME>` with a `<parameter=KEY>` for each argument."""
    text = block.plain().strip()
    opener, behind, closer = _FUNCTION.function
    if not text.startswith(opener):
        return ()
    name, found, body = text[len(opener) :].partition(behind)
    return _call(block, name.strip(), body.removesuffix(closer), _FUNCTION) if found else ()


def _read_invoke(block: Block) -> Sequence[ToolCall]:
    """` name="NAME">` with a `<parameter name="KEY">` for each argument: what stands behind `<invoke`."""
    head, found, body = block.plain().partition(">")
    name = head.strip().removeprefix('name="')
    if not found or not name.endswith('"') or not head.strip().startswith('name="'):
        return ()
    return _call(block, name.removesuffix('"'), body, _INVOKE)


def _call(block: Block, name: str, body: str, tags: _Tags) -> Sequence[ToolCall]:
    """The call, or none when anything in its body is no parameter: nothing is left out in silence."""
    opener, middle, closer = tags.parameter
    properties = block.schemas.of(name)
    members: list[tuple[str, str]] = []
    at = skip_blank(body, 0)
    while at < len(body):
        begun = body.find(middle, at)
        if not body.startswith(opener, at) or begun < 0:
            return ()
        key, start = body[at + len(opener) : begun], begun + len(middle)
        end = end_of_value(body, closer, start, opener)
        if end < 0:
            return ()
        value = body[start:end]
        if tags.lines:
            value = value.removeprefix(tags.lines).removesuffix(tags.lines)
        members.append((key, typed(value, properties.get(key))))
        at = skip_blank(body, end + len(closer))
    arguments = object_of(members)
    return [ToolCall("", name, arguments)] if is_name(name) and arguments is not None else ()


def _function(call: ToolCall, *, python: bool) -> str:
    around = ("<parameter=", ">\n", "\n</parameter>\n")
    values = "".join(tagged_members(call.arguments, around, python=python))
    return f"<tool_call>\n<function={call.name}>\n{values}</function>\n</tool_call>"


def _spell_qwen35(turn: Assistant) -> str:
    thought = f"<think>\n{turn.reasoning}\n</think>\n\n" if turn.reasoning else ""
    calls = "\n".join(_function(c, python=True) for c in turn.calls)
    return thought + (turn.text or "") + ("\n\n" if turn.text and calls else "") + calls


def _spell_nemotron3(line: str) -> Callable[[Assistant], str]:
    """`line`: what stands before and behind the closer of reasoning."""

    def spell(turn: Assistant) -> str:
        thought = f"<think>\n{turn.reasoning}{line}</think>{line}" if turn.reasoning else "<think></think>"
        calls = "".join(_function(c, python=True) + "\n" for c in turn.calls)
        said = thought + (turn.text or "")
        return said + ("\n" if calls and not said.endswith("\n") else "") + calls

    return spell


def _spell_minimax(turn: Assistant) -> str:
    thought = f"<think>\n{turn.reasoning}\n</think>\n\n" if turn.reasoning else ""
    around = ('<parameter name="', '">', "</parameter>\n")
    calls = [f'<invoke name="{c.name}">\n{"".join(tagged_members(c.arguments, around))}</invoke>\n' for c in turn.calls]
    block = f"\n<minimax:tool_call>\n{''.join(calls)}</minimax:tool_call>" if calls else ""
    return thought + (turn.text or "") + (block if thought or turn.text else block.removeprefix("\n"))


def _qwen_like(
    name: str, renderer: str | None, spell: Callable[[Assistant], str], breaks: tuple[str, str, str]
) -> Family:
    """`breaks`: what the template writes before and behind the closer of reasoning, and before calls."""
    shape = Tagged(
        read=_read_function,
        calls=(("<tool_call>", "</tool_call>"),),
        header="<|im_start|>assistant\n",
        reasoning=("<think>", "</think>"),
        lead="\n",
        trail=breaks[0],
        behind=breaks[1],
        before=breaks[2],
    )
    return Family(
        name=name,
        parse=tagged(shape),
        spell=spell,
        end=lambda turn: "<|im_end|>",
        reasoning=shape.reasoning,
        calls=shape.calls,
        others=("<tool_response>", "</tool_response>"),
        stop=("<|im_end|>",),
        renderer=renderer,
        live=live(shape),
        form=shape.form,
    )


def qwen35() -> Family:
    """Qwen3.5, 3.6, 3.8 and Qwen3-Coder."""
    return _qwen_like("qwen3.5", "qwen3.5", _spell_qwen35, ("\n", "\n\n", "\n\n"))


def nemotron3() -> Family:
    """Nemotron 3 Nano and Super."""
    return _qwen_like("nemotron-3", "nemotron-3", _spell_nemotron3("\n"), ("\n", "\n", "\n"))


def nemotron3_ultra() -> Family:
    """Nemotron 3 Ultra and 3.5: no line breaks around the end of reasoning."""
    return _qwen_like("nemotron-3-ultra", "nemotron-3", _spell_nemotron3(""), ("", "", "\n"))


def minimax_m2() -> Family:
    """MiniMax M2: any number of `<invoke>` in one `<minimax:tool_call>`."""
    shape = Tagged(
        read=_read_invoke,
        calls=(("<minimax:tool_call>", "</minimax:tool_call>"), ("<invoke", "</invoke>")),
        bare=False,
        header="]~b]ai\n",
        reasoning=("<think>", "</think>"),
        lead="\n",
        trail="\n",
        behind="\n\n",
        before="\n",
    )
    return Family(
        name="minimax-m2",
        parse=tagged(shape),
        spell=_spell_minimax,
        end=lambda turn: "[e~[",
        reasoning=shape.reasoning,
        calls=shape.calls[:1],
        others=("]~b]", "<response>", "</response>"),
        stop=("[e~[",),
        renderer="minimax-m2",
        live=live(shape),
        form=shape.form,
    )
