"""A toy gateway around a forest: a byte encoder, sampled turns, and the spellings of real harnesses."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tugline.core.columns import Floats, Ids, concat, count, ids, last, take
from tugline.core.contracts import JournalEntry
from tugline.core.items import Assistant, Head, Item, Request, Tool, ToolCall, ToolResult, UserText
from tugline.core.turn import Finish, Role, Sampling, Turn
from tugline.forest.attach import Attachment
from tugline.forest.forest import Forest

STOP, SEP = 1, 2
DIGEST = b"template"
HEAD = Head((Tool("bash", '{"type":"function","function":{"name":"bash"}}'),))


def encode(value: object) -> Ids:
    """A separator and one id per UTF-8 byte."""
    return ids([SEP, *(10 + byte for byte in repr(value).encode("utf-8", "surrogatepass"))])


def logprobs(n: int, seed: int) -> Floats:
    return Floats((-np.random.default_rng(seed).random(n)).astype("<f4").tobytes())


@dataclass(frozen=True)
class Said:
    """What the policy samples next."""

    reply: Assistant
    finish: Finish = "stop"
    trim: bool = False
    """Replace the parent's stop by the next prompt's own."""
    untrainable: str | None = None
    role: Role = "main"
    versions: tuple[tuple[int, int], ...] = ((0, 1),)


class World:
    """One session, its turns in commit order and each turn's conversation as the harness holds it."""

    def __init__(self, session_id: str = "ses") -> None:
        self.forest = Forest(session_id, DIGEST)
        self.said: dict[str, tuple[Head, tuple[Item, ...]]] = {}
        """Turn -> head and items up to and with the turn's echo, verbatim."""

    @property
    def turns(self) -> list[Turn]:
        return list(self.forest.turns.values())

    def sample(self, request: Request, said: Said, attached: Attachment | None = None, seed: int = 0) -> Turn:
        """The turn that answers a request; not committed."""
        attached = attached or self.forest.attach(request)
        before = self.forest.full(attached.parent.turn_id) if attached.parent else Ids(b"")
        keep = count(before) - (1 if said.trim and last(before) == STOP else 0)
        bridge = concat([encode(item) for item in attached.tail] or [encode("continue")])
        sampled = concat([encode(said.reply), ids([STOP] if said.finish == "stop" else [])])
        exact, lenient = self.forest.keys(attached, said.reply)
        number = len(self.said) + seed
        return Turn(
            turn_id=f"turn_{len(self.said):04d}_{seed}",
            session_id=self.forest.session_id,
            seq=number,
            parent=attached.parent.turn_id if attached.parent else None,
            keep=keep,
            bridge=bridge,
            sampled=sampled,
            logprobs=logprobs(count(sampled), number),
            version_runs=said.versions,
            finish=said.finish,
            prompt_len=keep + count(bridge),
            head=request.head,
            items=attached.tail,
            echo=said.reply,
            key_exact=exact,
            key_lenient=lenient,
            sampling=Sampling(),
            role=said.role,
            drift=attached.drift,
            untrainable=said.untrainable,
        )

    def commit(self, request: Request, turn: Turn) -> Turn:
        self.forest.commit(turn)
        self.said[turn.turn_id] = (request.head, (*request.items, turn.echo))
        return turn

    def call(self, items: Sequence[Item], said: Said | Assistant, head: Head = HEAD) -> Turn:
        """Attach, sample and commit."""
        request = ask(items, head)
        return self.commit(request, self.sample(request, said if isinstance(said, Said) else Said(said)))

    def after(self, turn: Turn, *tail: Item) -> tuple[Item, ...]:
        """The conversation of a turn, verbatim, and what follows."""
        return (*self.said[turn.turn_id][1], *tail)

    def entry(self, turn: Turn) -> JournalEntry:
        """What an honest engine wrote down."""
        prompt = self.forest.prompt(turn.turn_id)
        return JournalEntry(
            turn.turn_id, turn.session_id, prompt, turn.sampled, turn.logprobs, turn.finish, turn.version_runs
        )

    def parent_full(self, turn: Turn) -> Ids:
        return self.forest.full(turn.parent) if turn.parent else Ids(b"")


def ask(items: Sequence[Item], head: Head = HEAD) -> Request:
    return Request("policy", head, tuple(items))


def user(text: str) -> UserText:
    return UserText(text)


def say(text: str | None = None, *calls: ToolCall, reasoning: str | None = None) -> Assistant:
    return Assistant(text, reasoning, calls)


def bash(call_id: str, arguments: str) -> ToolCall:
    return ToolCall(call_id, "bash", arguments)


def result(call_id: str, text: str) -> ToolResult:
    return ToolResult(call_id, text)


def with_arguments(items: Sequence[Item], spell: Any) -> tuple[Item, ...]:
    """Every call's arguments spelled anew."""
    return tuple(
        replace(i, calls=tuple(replace(c, arguments=spell(c.arguments)) for c in i.calls))
        if isinstance(i, Assistant)
        else i
        for i in items
    )


def renamed(items: Sequence[Item]) -> tuple[Item, ...]:
    """Every call id made anew, results following."""
    names: dict[str, str] = {}
    out: list[Item] = []
    for item in items:
        if isinstance(item, Assistant):
            names.update({c.id: f"new-{len(names) + n}" for n, c in enumerate(item.calls)})
            item = replace(item, calls=tuple(replace(c, id=names[c.id]) for c in item.calls))
        elif isinstance(item, ToolResult):
            item = replace(item, call_id=names.get(item.call_id, item.call_id))
        out.append(item)
    return tuple(out)


def without_reasoning(items: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(replace(i, reasoning=None) if isinstance(i, Assistant) else i for i in items)


def trimmed_reasoning(items: Sequence[Item]) -> tuple[Item, ...]:
    return tuple(
        replace(i, reasoning=(i.reasoning or "").strip() or None) if isinstance(i, Assistant) else i for i in items
    )


def python(text: str) -> str:
    """json.dumps(json.loads(...)): OpenHands."""
    return json.dumps(json.loads(text))


def javascript(text: str) -> str:
    """JSON.stringify(JSON.parse(...)): pi, opencode."""
    return _stringify(json.loads(text, parse_int=float, parse_float=float))


def _stringify(value: Any) -> str:
    if isinstance(value, dict):
        whole = [k for k in value if re.fullmatch(r"0|[1-9]\d*", k) and int(k) < 2**32 - 1]
        names = sorted(whole, key=int) + [k for k in value if k not in whole]
        return "{" + ",".join(f"{_stringify(k)}:{_stringify(value[k])}" for k in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_stringify, value)) + "]"
    if isinstance(value, float):
        return _number(value)
    return json.dumps(value, ensure_ascii=False)


def _number(value: float) -> str:
    if math.isinf(value):
        return "null"
    if value == 0:
        return "0"
    sign, body = ("-", -value) if value < 0 else ("", value)
    mantissa, _, exponent = f"{body!r}e0".partition("e")
    exponent = exponent.removesuffix("e0") or "0"
    whole, _, fraction = mantissa.partition(".")
    fraction = "" if fraction == "0" else fraction
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    if 0 < point <= 21:
        shown = digits.ljust(point, "0") if len(digits) <= point else f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        shown = "0." + "0" * -point + digits
    else:
        tail = f".{digits[1:]}" if len(digits) > 1 else ""
        shown = f"{digits[0]}{tail}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return sign + shown


def bits(column: Floats, index: int, value: int) -> Floats:
    """A float column with one value's 32 bits replaced."""
    array = np.frombuffer(column, "<u4").copy()
    array[index] = value
    return Floats(array.tobytes())


def poke(column: Ids, index: int, value: int) -> Ids:
    """An id column with one id replaced."""
    return concat([take(column, 0, index), ids([value]), take(column, index + 1)])
