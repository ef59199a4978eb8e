"""Seeded conversations that look for trouble: what a turn says, how it ends, and what a harness puts behind it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import msgspec

from tugline.core.items import Assistant, Item, System, ToolCall, ToolResult, UserText

_PLAIN = (
    "say",
    "1",
    "a  b",
    "é",
    "日本",
    "🙂",
    "{",
    "x\n\ny",
    "def f():\n    return 1\n",
    "e\u0301",
    "\t",
    "\r\n",
    "0.5",
)
_ODD = ("\nled by a line", "  led by blanks", "\n\n", " ", "ends in a line\n", "\t\tx", "")
Cut = Literal["", "text", "reasoning", "call"]


@dataclass(frozen=True, slots=True)
class Step:
    """One sampled turn, where it is cut off ("" = it is not), and what follows."""

    turn: Assistant
    cut: Cut
    tail: tuple[Item, ...]
    whole_tail: tuple[Item, ...]
    """What follows where the turn is not cut: behind a cut one a user asks for the rest."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a template can show."""

    roles: frozenset[str]
    parallel: int
    """Calls of one turn; 0 = no tools."""
    specials: Sequence[str]
    """Strings that harness text may spell: control tokens and pieces of them."""


class Talk:
    """Makes the conversation of one seed, turn by turn."""

    def __init__(self, seed: int, limits: Limits) -> None:
        self._rng = random.Random(seed)
        self._seed = seed
        self._limits = limits
        self._calls = 0
        self._clean = self._rng.random() < 0.6
        """Most conversations spell no control token, as most do in life."""

    def start(self) -> tuple[Item, ...]:
        """A system message and what the user wants."""
        return System(f"Be brief. {self._text()}"), UserText(self._text() or "go")

    def step(self) -> Step:
        """The next turn."""
        rng, most = self._rng, self._limits.parallel
        calls = tuple(self._call() for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 3)[: 5 + (most > 1) + (most > 2)])))
        if not most:
            calls = ()
        text = self._text() or None if not calls or rng.random() < 0.4 else None
        reasoning = f"because {self._words()}" if rng.random() < 0.6 else None
        if not calls and text is None:
            text = "Well."
        kinds: list[Cut] = ["text"] if text else []
        kinds += ["reasoning"] if reasoning else []
        kinds += ["call"] if calls else []
        cut: Cut = rng.choice(kinds) if rng.random() < 0.2 else ""
        if "user" not in self._limits.roles:
            cut = ""
        tail = self._tail(calls)
        return Step(
            Assistant(text, reasoning, calls), cut, (UserText(f"go on {self._words()}"),) if cut else tail, tail
        )

    def _tail(self, calls: Sequence[ToolCall]) -> tuple[Item, ...]:
        rng, roles = self._rng, self._limits.roles
        tail: list[Item] = [ToolResult(c.id, self._result()) for c in calls]
        if len(tail) > 1 and rng.random() < 0.3:
            tail.reverse()
        if not calls or ("user" in roles and rng.random() < 0.25):
            tail.append(UserText(self._text() or "and now?"))
            if rng.random() < 0.1:
                tail.append(UserText(self._words()))
        if "system" in roles and rng.random() < 0.08:
            tail.append(System(self._words()))
        return tuple(tail)

    def _call(self) -> ToolCall:
        self._calls += 1
        rng = self._rng
        value: object = {}
        if rng.random() < 0.75:
            value = {"cmd": self._text()}
        if rng.random() < 0.2:
            value = {"cmd": self._words(), "opts": {"deep": [1, 2.5, None, True, {"k": self._words()}]}, "n": -3}
        spelled = msgspec.json.encode(value).decode()
        if rng.random() < 0.15:
            spelled = spelled.replace('":', '" :  ', 1)
        return ToolCall(f"call_{self._seed}_{self._calls}", rng.choice(("run", "read")), spelled)

    def _result(self) -> str:
        return self._rng.choice((self._text(), "", f"  {self._words()}", f"\n{self._words()}\n", '{"a": 1}'))

    def _text(self) -> str:
        rng = self._rng
        if rng.random() < 0.15:
            return rng.choice(_ODD)
        words = [self._words() for _ in range(rng.choice((1, 1, 2, 3)))]
        if not self._clean and self._limits.specials and rng.random() < 0.5:
            words.insert(rng.randrange(len(words) + 1), rng.choice(self._limits.specials))
        return rng.choice((" ", "", "\n")).join(words)

    def _words(self) -> str:
        return f"{self._rng.choice(_PLAIN)} {self._rng.randrange(999)}"


def hostile(control: Sequence[str]) -> tuple[str, ...]:
    """Control tokens, pieces of them, and what looks like a turn."""
    some = list(control)
    pieces = [piece for token in some for piece in (token[: len(token) // 2], token[len(token) // 2 :]) if piece]
    joined = [f"{a}\n{b}" for a, b in pairwise(some)]
    return (*some, *pieces, *joined)
