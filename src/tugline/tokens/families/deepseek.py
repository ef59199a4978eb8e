"""DeepSeek's replies: V3 and R1 with a fenced JSON call, V3.1 with a bare one, V3.2 and V4 with tags (DSML)."""

# ruff: noqa: RUF001  # the tokens are spelled with these very letters

from __future__ import annotations

import re
from collections.abc import Sequence

from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import (
    end_of_value,
    is_json,
    is_name,
    members_of,
    object_of,
    quoted,
    skip_blank,
    written,
)
from tugline.tokens.families.family import Family
from tugline.tokens.families.tagged import Block, ReadCall, Tagged, live, tagged

_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_SEPARATOR = "<｜tool▁sep｜>"
_STOP = "<｜end▁of▁sentence｜>"
_HEADER = "<｜Assistant｜>"
_RESULTS = ("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>")
_THINK = ("<think>", "</think>")
_FENCED = re.compile(r"\s*([^\s`]+)[ \t]*\n```(?:json)?[ \t]*\n(.*?)\n?```\s*", re.DOTALL)
_DSML = "｜DSML｜"


def _read_fenced(block: Block) -> Sequence[ToolCall]:
    """`function`, a separator, the name, then the arguments in a fence."""
    kind, found, rest = block.text.partition(block.char(_SEPARATOR))
    text = block.reading.plain(rest)
    if not found or kind.strip() != "function" or not text.rstrip().endswith("```"):
        return ()
    match = _FENCED.fullmatch(text)
    if match is None:
        return ()
    name, arguments = match.groups()
    return [ToolCall("", name, arguments)] if is_name(name) and is_json(arguments) else ()


def _read_bare(block: Block) -> Sequence[ToolCall]:
    """The name, a separator, the arguments."""
    head, found, rest = block.text.partition(block.char(_SEPARATOR))
    name, arguments = block.reading.plain(head).strip(), block.reading.plain(rest)
    return [ToolCall("", name, arguments)] if found and is_name(name) and is_json(arguments) else ()


def _read_dsml(block: Block) -> Sequence[ToolCall]:
    """What stands behind `<｜DSML｜invoke`: ` name="NAME">`, and parameters that say whether they are strings."""
    mark = block.char(_DSML)
    head, found, body = block.text.partition(">")
    name = block.reading.plain(head).strip()
    if not found or not name.startswith('name="') or not name.endswith('"'):
        return ()
    opener, closer = f'<{mark}parameter name="', f"</{mark}parameter>"
    members: list[tuple[str, str]] = []
    at = skip_blank(body, 0)
    while at < len(body):
        begun = body.find('">', at)
        key, said, kind = body[at + len(opener) : begun].partition('" string="')
        end = end_of_value(body, closer, begun + 2, opener)
        if not body.startswith(opener, at) or begun < 0 or not said or kind not in ("true", "false") or end < 0:
            return ()
        value = block.reading.plain(body[begun + 2 : end])
        if kind == "false" and not is_json(value):
            return ()
        members.append((block.reading.plain(key), quoted(value) if kind == "true" else value.strip()))
        at = skip_blank(body, end + len(closer))
    name, arguments = name.removeprefix('name="').removesuffix('"'), object_of(members)
    return [ToolCall("", name, arguments)] if is_name(name) and arguments is not None else ()


def _spell_call(call: ToolCall, *, fenced: bool) -> str:
    inside = f"{call.name}{_SEPARATOR}{call.arguments}"
    if fenced:
        inside = f"function{_SEPARATOR}{call.name}\n```json\n{call.arguments}\n```"
    return f"{_CALL[0]}{inside}{_CALL[1]}"


def _spell_v3(turn: Assistant) -> str:
    thought = f"<think>\n{turn.reasoning}\n</think>\n\n" if turn.reasoning else ""
    calls = "\n".join(_spell_call(c, fenced=True) for c in turn.calls)
    return thought + (turn.text or "") + (_SECTION[0] + calls + _SECTION[1] if calls else "")


def _spell_v31(turn: Assistant) -> str:
    thought = f"<think>{turn.reasoning}</think>" if turn.reasoning else ""
    calls = "".join(_spell_call(c, fenced=False) for c in turn.calls)
    return thought + (turn.text or "") + (_SECTION[0] + calls + _SECTION[1] if calls else "")


def _old(name: str, read: ReadCall, line: str) -> Family:
    """`line`: what the template breaks lines with around reasoning."""
    shape = Tagged(
        read=read,
        calls=(_SECTION, _CALL),
        header=_HEADER,
        reasoning=_THINK,
        spelled=True,
        lead=line,
        trail=line,
        behind=line * 2,
        inner=(_SEPARATOR,),
    )
    return Family(
        name=name,
        parse=tagged(shape),
        spell=_spell_v3 if line else _spell_v31,
        end=lambda turn: _STOP,
        reasoning=_THINK,
        calls=shape.calls,
        others=(_SEPARATOR, *_RESULTS),
        stop=(_STOP,),
        renderer="deepseek-v3" if line else None,
        live=live(shape),
        form=shape.form,
    )


def deepseek_v3() -> Family:
    """DeepSeek V3 and R1."""
    return _old("deepseek-v3", _read_fenced, "\n")


def deepseek_v31() -> Family:
    """DeepSeek V3.1."""
    return _old("deepseek-v3.1", _read_bare, "")


def _dsml(name: str, section: str, renderer: str | None, empty: str) -> Family:
    """`empty`: what stands in a call without arguments."""
    outer = (f"<{_DSML}{section}>", f"</{_DSML}{section}>")
    shape = Tagged(
        read=_read_dsml,
        calls=(outer, (f"<{_DSML}invoke", f"</{_DSML}invoke>")),
        header=_HEADER,
        reasoning=_THINK,
        spelled=True,
        before="\n\n",
        inner=(_DSML,),
    )

    def spell(turn: Assistant) -> str:
        thought = f"<think>{turn.reasoning}</think>" if turn.reasoning else ""
        calls = "".join(_spell_dsml(c, empty) for c in turn.calls)
        return thought + (turn.text or "") + (f"\n\n{outer[0]}\n{calls}{outer[1]}" if calls else "")

    return Family(
        name=name,
        parse=tagged(shape),
        spell=spell,
        end=lambda turn: _STOP,
        reasoning=_THINK,
        others=(_DSML,),
        stop=(_STOP,),
        renderer=renderer,
        live=live(shape),
        form=shape.form,
    )


def _spell_dsml(call: ToolCall, empty: str) -> str:
    members = members_of(call.arguments)
    lines = [call.arguments + "\n"] if members is None else []
    for key, value in members or []:
        kind = "true" if isinstance(value, str) else "false"
        lines.append(f'<{_DSML}parameter name="{key}" string="{kind}">{written(value)}</{_DSML}parameter>\n')
    return f'<{_DSML}invoke name="{call.name}">\n{"".join(lines) or empty}</{_DSML}invoke>\n'


def deepseek_v32() -> Family:
    """DeepSeek V3.2."""
    return _dsml("deepseek-v3.2", "function_calls", None, "")


def deepseek_v4() -> Family:
    """DeepSeek V4."""
    return _dsml("deepseek-v4", "tool_calls", "deepseek-v4", "\n")
