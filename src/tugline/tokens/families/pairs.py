"""Families whose calls list keys and values in pairs of tags: GLM, Hunyuan 3, Laguna."""

from __future__ import annotations

from collections.abc import Sequence

from tugline.core.items import Assistant, ToolCall
from tugline.tokens.families.arguments import end_of_value, is_name, object_of, skip_blank, tagged_members, typed
from tugline.tokens.families.family import Family
from tugline.tokens.families.tagged import Block, ReadCall, Tagged, live, tagged

_PAIR = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def _read(separator: str, pair: tuple[str, str, str, str]) -> ReadCall:
    """A name, a separator where the family has one, then keys and values in turn."""

    def read(block: Block) -> Sequence[ToolCall]:
        marks = [block.char(m) for m in pair]
        text = block.text
        if separator:
            head, _, text = text.partition(block.char(separator))
        else:
            begun = text.find(marks[0])
            head, text = (text[:begun], text[begun:]) if begun >= 0 else (text, "")
        name = block.reading.plain(head).strip()
        members = _members(block, text, marks, name)
        arguments = None if members is None else object_of(members)
        return [ToolCall("", name, arguments)] if is_name(name) and arguments is not None else ()

    return read


def _members(block: Block, text: str, marks: list[str], name: str) -> list[tuple[str, str]] | None:
    """Keys and JSON values, or None when anything else stands among them."""
    key_opens, key_ends, value_opens, value_ends = marks
    plain, properties = block.reading.plain, block.schemas.of(name)
    members: list[tuple[str, str]] = []
    at = skip_blank(text, 0)
    while at < len(text):
        key_end = text.find(key_ends, at)
        start = skip_blank(text, key_end + len(key_ends))
        if not text.startswith(key_opens, at) or key_end < 0 or not text.startswith(value_opens, start):
            return None
        end = end_of_value(text, value_ends, start, key_opens)
        if end < 0:
            return None
        key = plain(text[at + len(key_opens) : key_end]).strip()
        members.append((key, typed(plain(text[start + len(value_opens) : end]), properties.get(key))))
        at = skip_blank(text, end + len(value_ends))
    return members


def _spell_call(call: ToolCall, ends: tuple[str, str], pair: tuple[str, str, str, str], line: str) -> str:
    """`ends`: what stands between the name and the arguments, and behind them. `line`: how tags are kept apart."""
    around = (pair[0], pair[1] + line + pair[2], pair[3] + line)
    return call.name + ends[0] + "".join(tagged_members(call.arguments, around)) + ends[1]


def _glm(name: str, line: str) -> Family:
    """`line`: what the template breaks lines with."""
    shape = Tagged(
        read=_read("", _PAIR),
        calls=(("<tool_call>", "</tool_call>"),),
        header="<|assistant|>",
        reasoning=("<think>", "</think>"),
        behind=line,
        before=line,
        inner=_PAIR,
    )

    def spell(turn: Assistant) -> str:
        thought = f"{line}<think>{turn.reasoning or ''}</think>"
        calls = (f"{line}<tool_call>{_spell_call(c, (line, ''), _PAIR, line)}</tool_call>" for c in turn.calls)
        return thought + (line + turn.text if turn.text else "") + "".join(calls)

    return Family(
        name=name,
        parse=tagged(shape),
        spell=spell,
        end=lambda turn: "<|observation|>" if turn.calls else "<|user|>",
        reasoning=shape.reasoning,
        calls=shape.calls,
        others=(*_PAIR, "<tool_response>", "</tool_response>"),
        stop=("<|user|>", "<|observation|>", "<|endoftext|>"),
        renderer=name,
        live=live(shape),
        form=shape.form,
    )


def glm45() -> Family:
    """GLM-4.5 and 4.6: a line for each tag."""
    return _glm("glm-4.5", "\n")


def glm5() -> Family:
    """GLM-4.7, 5 and later: no line breaks at all."""
    return _glm("glm-5", "")


def hy3(mark: str = ":opensource") -> Family:
    """Hunyuan 3. `mark` stands in each of its markers."""
    pair = tuple(f"{tag[:-1]}{mark}>" for tag in _PAIR)
    assert len(pair) == 4
    separator = f"<tool_sep{mark}>"
    section = (f"<tool_calls{mark}>", f"</tool_calls{mark}>")
    one = (f"<tool_call{mark}>", f"</tool_call{mark}>")
    shape = Tagged(
        read=_read(separator, pair),
        calls=(section, one),
        header=f"<｜hy_Assistant{mark}｜>",  # noqa: RUF001  # that is how the token is spelled
        reasoning=(f"<think{mark}>", f"</think{mark}>"),
        inner=(*pair, separator),
    )

    def spell(turn: Assistant) -> str:
        thought = f"{shape.reasoning[0]}{turn.reasoning or ''}{shape.reasoning[1]}"
        calls = (f"{one[0]}{_spell_call(c, (separator + chr(10), ''), pair, chr(10))}{one[1]}\n" for c in turn.calls)
        block = f"{section[0]}\n{''.join(calls)}{section[1]}" if turn.calls else ""
        return thought + (turn.text or "") + block

    stop = f"<｜hy_eos{mark}｜>"  # noqa: RUF001
    return Family(
        name="hy3",
        parse=tagged(shape),
        spell=spell,
        end=lambda turn: stop,
        reasoning=shape.reasoning,
        calls=shape.calls,
        others=shape.inner,
        stop=(stop,),
        renderer="hy3",
        live=live(shape),
        form=shape.form,
    )


def _laguna(name: str, line: str) -> Family:
    """`line`: what the template breaks lines with. The tags around keys and values are no tokens there."""
    shape = Tagged(
        read=_read("", _PAIR),
        calls=(("<tool_call>", "</tool_call>"),),
        header="<assistant>" + line,
        reasoning=("<think>", "</think>"),
        lead=line,
        trail=line,
        behind=line,
        before=line,
        tail=line,
        inner=_PAIR,
    )

    def spell(turn: Assistant) -> str:
        thought = f"<think>{line}{turn.reasoning}{line}</think>{line}" if turn.reasoning else f"</think>{line}"
        calls = "".join(f"<tool_call>{_spell_call(c, (line, ''), _PAIR, line)}</tool_call>{line}" for c in turn.calls)
        return thought + (turn.text + line if turn.text else "") + calls

    return Family(
        name=name,
        parse=tagged(shape),
        spell=spell,
        end=lambda turn: "</assistant>",
        reasoning=shape.reasoning,
        calls=shape.calls,
        others=("<tool_response>", "</tool_response>"),
        stop=("</assistant>",),
        renderer="laguna-xs.2" if line else "laguna-s-2.1",
        live=live(shape),
        form=shape.form,
    )


def laguna_xs() -> Family:
    """Laguna XS."""
    return _laguna("laguna-xs", "\n")


def laguna_s() -> Family:
    """Laguna S: no line breaks at all."""
    return _laguna("laguna-s", "")
