"""What a chat template accepts, found by trying it: the form of arguments, which roles may stand where, how many calls.

A template that refuses a shape of conversation with `raise_exception` would fail every later call of a session. Where
the same meaning can be said in a shape that it takes, that shape is used and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tugline.core.errors import Unsupported
from tugline.core.items import Assistant, Head, Item, System, Tool, ToolCall, ToolResult, UserText
from tugline.tokens.codec import Codec
from tugline.tokens.marks import JSON
from tugline.tokens.messages import Shape
from tugline.tokens.render import Ask, Renderer

_WORD, _OTHER, _OFFERED = "zQprobEQz", "zQotherQz", "zQtoolQz"
_SYSTEM, _USER, _MORE, _SAID = System("Be brief."), UserText("What is here?"), UserText("Go on."), Assistant("Nothing.")
_TOOL = (
    '{"type":"function","function":{"name":"zQtoolQz","description":"runs","parameters":'
    '{"type":"object","properties":{"cmd":{"type":"string","description":"a command"}},"required":["cmd"]}}}'
)
_HEAD = Head((Tool(_OFFERED, _TOOL),))
_BARE = Head((Tool(_OFFERED, '{"type":"function","function":{"name":"zQtoolQz"}}'),))
"""All that the APIs ask for."""


class _Tries:
    def __init__(self, codec: Codec, template: str, specials: dict[str, JSON]) -> None:
        self._made = codec, template, specials

    def text(self, shape: Shape, items: Sequence[Item], head: Head = _HEAD) -> str:
        """Template output, or "" when the template refuses."""
        try:
            return Renderer(*self._made, shape).compose(Ask(head, tuple(items))).text
        except Unsupported:
            return ""


def find_shape(codec: Codec, template: str, specials: dict[str, JSON]) -> Shape:
    """The shape of messages for a template. Runs it about ten times."""
    tries = _Tries(codec, template, specials)
    shape = Shape(developer="developer" in template)
    if "developer" in template:
        talk: list[Item] = [System(_WORD, "developer"), _USER]
        shape = replace(shape, developer=_WORD in tries.text(shape, talk))
    if _WORD not in tries.text(shape, [UserText(_WORD)]):
        parts = replace(shape, parts=True)
        shape = parts if _WORD in tries.text(parts, [UserText(_WORD)]) else shape
    shape = _users(tries, shape)
    shape = _calls(tries, shape)
    shape = _reasoning(tries, shape)
    shape = _systems(tries, shape)
    if not tries.text(shape, [_USER], _BARE):
        full = replace(shape, full_tools=True)
        shape = full if tries.text(full, [_USER], _BARE) else shape
    return replace(shape, unseen=_unseen(tries, shape))


def _users(tries: _Tries, shape: Shape) -> Shape:
    """Whether user messages may stand in a row."""
    row: list[Item] = [UserText(_OTHER), UserText(_WORD)]
    text = tries.text(shape, row)
    if _WORD in text and _OTHER in text:
        return shape
    joined = replace(shape, join_users=True)
    text = tries.text(joined, row)
    return joined if _WORD in text and _OTHER in text else shape


_ODD, _PLAIN = '{"cmd" :  "X"}', '{"cmd": "X"}'
"""With blanks that only a template keeps that prints the text as it is; and as templates write an object."""


def _once(arguments: str) -> str:
    return arguments.replace("X", _WORD)


def _called(arguments: str) -> list[Item]:
    return [_USER, Assistant(calls=(ToolCall("c1", "run", _once(arguments)),)), ToolResult("c1", "ok")]


def _same(tries: _Tries, string: Shape, parsed: Shape) -> bool:
    """Whether arguments printed as they were sampled are how the template writes them. Some templates have a notation
    of their own for objects, and print text into it. One that prints an object as Python does has none."""
    written = tries.text(parsed, _called(_PLAIN))
    return "'cmd'" in written or written == tries.text(string, _called(_PLAIN))


def _calls(tries: _Tries, shape: Shape) -> Shape:
    """The form of arguments and ids, and whether a turn may have several calls."""
    for short, null in ((False, False), (True, False), (False, True)):
        string = replace(shape, short_ids=short, null_text=null)
        parsed = replace(string, arguments="dict")
        verbatim = _once(_ODD) in tries.text(string, _called(_ODD))
        shown = _WORD in tries.text(parsed, _called(_ODD))
        if shown and not (verbatim and _same(tries, string, parsed)):
            shape = parsed
        elif _WORD in tries.text(string, _called(_ODD)):
            shape = string
        else:
            continue
        break
    else:
        return shape
    first, second = (ToolCall(f"c{n}", "run", f'{{"cmd": "{w}"}}') for n, w in enumerate((_OTHER, _WORD)))
    twice: list[Item] = [_USER, Assistant(calls=(first, second)), ToolResult("c0", "ok"), ToolResult("c1", "ok")]
    text = tries.text(shape, twice)
    if _WORD in text and _OTHER in text:
        return shape
    split = replace(shape, split_calls=True)
    text = tries.text(split, twice)
    return split if _WORD in text and _OTHER in text else shape


def _reasoning(tries: _Tries, shape: Shape) -> Shape:
    """Where the template looks for reasoning, and whether it takes text beside it."""
    call = ToolCall("c1", "run", '{"cmd": "ls"}')
    alone: list[Item] = [_USER, Assistant(reasoning=_WORD, calls=(call,)), ToolResult("c1", "ok")]
    keys = (shape.reasoning, "thinking", "reasoning")
    found = next((k for k in keys if _WORD in tries.text(replace(shape, reasoning=k), alone)), None)
    if found is None:
        return shape
    shape = replace(shape, reasoning=found)
    beside: list[Item] = [_USER, Assistant(_OTHER, _WORD, (call,)), ToolResult("c1", "ok")]
    lone = replace(shape, lone_reasoning=True)
    return lone if not tries.text(shape, beside) and tries.text(lone, beside) else shape


def _unseen(tries: _Tries, shape: Shape) -> frozenset[str]:
    """What the template leaves out without refusing it."""
    talk = tries.text(shape, [_SYSTEM, _USER])
    call = ToolCall("c1", "run", f'{{"cmd": "{_WORD}"}}')
    called = tries.text(shape, [_SYSTEM, _USER, Assistant(calls=(call,)), ToolResult("c1", _OTHER)])
    beside = tries.text(shape, [_SYSTEM, _USER, Assistant(_OFFERED, None, (call,)), ToolResult("c1", _OTHER)], Head())
    lost = {
        "text": _WORD in beside and _OFFERED not in beside,
        "tools": bool(talk) and _OFFERED not in talk,
        "calls": bool(called) and _WORD not in called,
        "results": bool(called) and _OTHER not in called,
    }
    return frozenset(name for name, is_lost in lost.items() if is_lost)


def _systems(tries: _Tries, shape: Shape) -> Shape:
    """Where system messages may stand. One that the template moves in front of earlier turns may not stand late: the
    prompt would change at its beginning."""
    if _WORD not in tries.text(shape, [System(_WORD), _USER]):
        folded = replace(shape, no_system=True)
        return folded if _WORD in tries.text(folded, [System(_WORD), _USER]) else shape
    late = tries.text(shape, [_SYSTEM, _USER, replace(_SAID, text=_OTHER), System(_WORD), _MORE])
    two = tries.text(shape, [_SYSTEM, System(_WORD), _USER])
    return replace(shape, fold_system=_WORD not in two or not 0 <= late.find(_OTHER) < late.rfind(_WORD))
