"""A gateway in miniature for tests of forest and trajectory: a toy encoder, no template, no engine.

Ids are code points; role marks and the stop id lie beyond them. Every sample is made by the test itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tugline.core.columns import Ids, concat, count, floats, ids, take
from tugline.core.items import Assistant, Head, Item, Request, Tool, ToolCall, ToolResult, UserText
from tugline.core.turn import Role, Sampling, Turn
from tugline.forest.attach import Attachment
from tugline.forest.forest import Forest

MARK = 0x110000
STOP = MARK + 1
GEN = MARK + 2
TOOLS = Head(tools=(Tool("bash", '{"type":"function","function":{"name":"bash"}}'),))
DIGEST = b"template"


def encode(text: str) -> list[int]:
    """One id per character."""
    return [ord(char) for char in text]


def render(items: Sequence[Item]) -> Ids:
    """What a template would make of items, and the opening of the next turn."""
    out: list[int] = []
    for item in items:
        out.append(MARK)
        if isinstance(item, Assistant):
            calls = "".join(f"<{c.name}{c.arguments}>" for c in item.calls)
            out += encode((item.reasoning or "") + (item.text or "") + calls)
        else:
            out += encode(getattr(item, "text", ""))
        out.append(STOP)
    return ids([*out, MARK, GEN])


@dataclass(frozen=True)
class Shape:
    """How a sample comes out."""

    stop: bool = True
    trim: bool = False
    """The next prompt drops this turn's parent's stop."""
    versions: tuple[tuple[int, int], ...] = ((0, 1),)
    role: Role = "main"
    untrainable: str | None = None


PLAIN = Shape()


@dataclass
class Session:
    """Serves calls the way the gateway does: attach, bridge, sample, commit."""

    forest: Forest = field(default_factory=lambda: Forest("ses_1", DIGEST))
    head: Head = TOOLS
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    last: Attachment | None = None

    def request(self, items: Sequence[Item], head: Head | None = None) -> Request:
        return Request("any", head or self.head, tuple(items))

    def call(self, items: Sequence[Item], said: Assistant, shape: Shape = PLAIN, head: Head | None = None) -> Turn:
        """One exchange: the turn that answers `items` with `said`."""
        self.last = at = self.forest.attach(self.request(items, head))
        turn = self.make(at, said, shape, head)
        self.forest.commit(turn)
        return turn

    def make(self, at: Attachment, said: Assistant, shape: Shape = PLAIN, head: Head | None = None) -> Turn:
        """The turn that would be committed."""
        seq = len(self.forest.turns)
        before = self.forest.full(at.parent.turn_id) if at.parent else Ids(b"")
        trim = shape.trim and at.parent is not None and at.parent.finish == "stop"
        keep = count(before) - trim
        bridge = render(at.tail)
        spoken = render([said])
        sampled = take(spoken, 1, count(spoken) - 2 if shape.stop else count(spoken) - 3)
        exact, lenient = self.forest.keys(at, said)
        return Turn(
            turn_id=f"turn_{seq}",
            session_id=self.forest.session_id,
            seq=seq,
            parent=at.parent.turn_id if at.parent else None,
            keep=keep,
            bridge=bridge,
            sampled=sampled,
            logprobs=floats(-self.rng.random() for _ in range(count(sampled))),
            version_runs=shape.versions,
            finish="stop" if shape.stop else "length",
            prompt_len=keep + count(bridge),
            head=head or self.head,
            items=at.tail,
            echo=said,
            key_exact=exact,
            key_lenient=lenient,
            sampling=Sampling(),
            role=shape.role,
            drift=at.drift,
            untrainable=shape.untrainable,
        )


def say(text: str | None = None, *arguments: str, reasoning: str | None = None, stem: str = "c") -> Assistant:
    """A model turn with one bash call per arguments text."""
    calls = tuple(ToolCall(f"{stem}_{i}", "bash", a) for i, a in enumerate(arguments))
    return Assistant(text, reasoning, calls)


def results(said: Assistant, text: str = "ok") -> tuple[ToolResult, ...]:
    """One result per call, in order."""
    return tuple(ToolResult(call.id, f"{text} {i}") for i, call in enumerate(said.calls))


def user(text: str) -> UserText:
    return UserText(text)


def respell(said: Assistant, spell: Callable[[str], str]) -> Assistant:
    """The turn with every call's arguments passed through `spell`."""
    calls = tuple(ToolCall(c.id, c.name, spell(c.arguments)) for c in said.calls)
    return Assistant(said.text, said.reasoning, calls)


def joined(parts: Sequence[Ids]) -> Ids:
    """Oracle for full(): plain concatenation."""
    return concat(parts)
