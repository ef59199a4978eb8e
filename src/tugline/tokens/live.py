"""A reply's text while it is sampled: what the parse of the whole reply is sure to say, and nothing else.

Ids go in as they come; deltas come out whose sum is the beginning of the reasoning, then of the text, that the family's
parser will give. What later ids may still change stays here: half a character, what may become a marker or a stop
string, line breaks that the parser takes off, and everything from the first call on, for text may follow a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from tugline.core.columns import Ids, ids_list
from tugline.core.items import Delta
from tugline.tokens.codec import Codec
from tugline.tokens.parse import common_prefix, prompt_state

PATIENCE = 256
"""Tokens without the end of a character in sight, after which no more is shown."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known before the first id. `prompt`: the ids behind the last stop token of the prompt."""

    codec: Codec
    stop: frozenset[int]
    prompt: Ids
    strings: tuple[str, ...]
    """Stop strings. The text shown ends before one."""


class LiveParser(Protocol):
    """One reply under way."""

    def feed(self, column: Ids) -> list[Delta]:
        """What the next ids (int32[n]) make certain."""
        ...


LiveFamily: TypeAlias = Callable[[Opening], LiveParser]


class Tail:
    """The text of a run of ids that grows, as far as later ids leave it as it is."""

    def __init__(self, codec: Codec, before: int | None = None) -> None:
        """`before`: the id in front of the run."""
        self._codec = codec
        self._before: list[int] = [] if before is None else [before]
        """The last id whose text has been given: decoders treat the first of a run differently."""
        self._fresh: list[int] = []
        self._given = 0
        """Characters of the fresh ids that have been given."""
        self._bytes = {token for b in range(256) if (token := codec.token(f"<0x{b:02X}>")) is not None}
        self.lost = False
        """Nothing more can be said for certain before the end."""

    def add(self, token: int) -> None:
        """One more id."""
        self._fresh.append(token)

    def read(self) -> str:
        """New text that stays. Half a character does not."""
        ready = self._fresh
        if self._bytes:  # one wrong byte among them changes how the whole run reads
            n = len(ready)
            while n and ready[n - 1] in self._bytes:
                n -= 1
            ready = ready[:n]
        if not ready or self.lost:
            return ""
        text = self._text(ready)
        sure = text.rstrip("\ufffd")
        new, self._given = sure[self._given :], max(self._given, len(sure))
        if len(sure) == len(text):
            self._before, self._fresh, self._given = ready[-1:], self._fresh[len(ready) :], 0
        self.lost = self.lost or len(self._fresh) > PATIENCE
        return new

    def end(self) -> str:
        """All that is left: the run has ended."""
        return self._text(self._fresh)[self._given :] if self._fresh else ""

    def _text(self, fresh: list[int]) -> str:
        if not self._before:
            return self._codec.decode(fresh)
        before, both = self._codec.decode(self._before), self._codec.decode(self._before + fresh)
        if not both.startswith(before):
            self.lost = True
        return both[len(before) :]


class Hold:
    """Text on its way out, without the line breaks at its end and what may belong to a string that ends it."""

    def __init__(self, strings: Sequence[str], breaks: int = 1) -> None:
        """`breaks`: how many line breaks the parser may take off at the end."""
        self._strings = strings
        self._breaks = breaks
        self._kept = ""
        self.stopped = False
        """A string that ends it is there: whether it ends the reply is known at the end."""

    def more(self, text: str) -> str:
        """What may leave."""
        self._kept += text
        if self.stopped:
            return ""
        cut, shorter = self._sure(self._kept), self._kept
        for _ in range(self._breaks):
            shorter = shorter.removesuffix("\n")
            cut = min(cut, len(shorter), self._sure(shorter))
        self.stopped = any(s in self._kept for s in self._strings)
        out, self._kept = self._kept[:cut], self._kept[cut:]
        return out

    def end(self, trail: str) -> str:
        """The rest, when nothing follows and `trail` goes. Nothing when a string that ends it is there."""
        return "" if self.stopped else self._kept.removesuffix(trail)

    def _sure(self, text: str) -> int:
        cut = len(text)
        for string in self._strings:
            found = text.find(string)
            if found >= 0:
                cut = min(cut, found)
            longest = min(len(string) - 1, len(text))
            cut = min(cut, next((len(text) - n for n in range(longest, 0, -1) if text.endswith(string[:n])), cut))
        return cut


class PlainLive:
    """Everything is text."""

    def __init__(self, opening: Opening) -> None:
        self._stop = opening.stop
        self._tail = Tail(opening.codec)
        self._hold = Hold(opening.strings)
        self._over = False

    def feed(self, column: Ids) -> list[Delta]:
        """See LiveParser."""
        for token in ids_list(column):
            self._over = self._over or token in self._stop
            if not self._over:
                self._tail.add(token)
        text = self._hold.more(self._tail.read())
        return [Delta("text", text)] if text else []


@dataclass(frozen=True, slots=True)
class Marks:
    """How a family's replies are told apart while they grow. What line breaks are taken off: see its parser."""

    header: str
    reasoning: tuple[str, str]
    openers: tuple[str, ...]
    """What begins a call."""
    lead: str = ""
    trail: str = ""
    behind: str = ""
    breaks: int = 1
    """How many line breaks the parser may take off at the end of text."""
    spelled: bool = False
    """Reasoning markers that are no token count, too."""


class MarkedLive:
    """Reasoning, then text; silent from the first call on."""

    def __init__(self, opening: Opening, marks: Marks) -> None:
        codec = self._codec = opening.codec
        self._marks, self._stop = marks, opening.stop
        opener, closer = (codec.token(m) if m else None for m in marks.reasoning)
        self._think, self._unthink = opener, closer
        tokens = {m: codec.token(m) for m in marks.openers}
        self._calls = frozenset(t for t in tokens.values() if t is not None)
        self._strings = (*opening.strings, *(m for m, token in tokens.items() if token is None))
        self._header = ids_list(codec.encode(marks.header))
        self._prompt = prompt_state(codec, opening.prompt, marks.reasoning, marks.header)
        self._state: Literal["start", "reasoning", "markup", "text", "silent"] = "start"
        self._head: list[int] = []
        self._tail, self._hold = Tail(codec), Hold(self._strings)
        self._lead, self._whole, self._front = "", False, ""
        self._out: list[Delta] = []
        if opener is None or closer is None:
            self._enter("text", "")
            if marks.spelled and marks.reasoning[0]:
                self._state = "silent"  # what is reasoning is known only at the end

    def feed(self, column: Ids) -> list[Delta]:
        """See LiveParser."""
        for token in ids_list(column):
            if token in self._stop:
                self._read()
                self._state = "silent"
            elif self._state == "start":
                self._begin(token)
            else:
                self._next(token)
        self._read()
        out, self._out = self._out, []
        return _joined(out)

    def _begin(self, token: int) -> None:
        """Reasoning or not: decided by the first id that is not blank."""
        head = self._head
        blank = not self._codec.decode(head).strip() if token == self._think else False
        head.append(token)
        n = len(self._header)
        if n and head[:n] == self._header:
            self._state = "silent"
        elif head == self._header[: len(head)]:
            return
        elif blank:
            self._enter("reasoning", self._marks.lead, token)
        elif self._spoken():
            inside = self._prompt in ("inside", "at_opener")
            lead = self._marks.lead if self._prompt == "at_opener" else ""
            if inside:
                self._enter("reasoning", lead)
            else:
                self._enter("text", self._marks.behind if self._prompt == "behind_closer" else "")
            for each in head:
                self._next(each)

    def _spoken(self) -> bool:
        probe = Tail(self._codec)
        for token in self._head:
            probe.add(token)
        if len(self._head) > PATIENCE:
            self._state = "silent"
            return False
        return bool(probe.read().strip()) or self._head[-1] in self._calls

    def _enter(self, state: Literal["reasoning", "text"], lead: str, behind: int | None = None) -> None:
        """`lead`: what is taken off in front; `behind`: the marker that stands before."""
        self._state, self._lead, self._front = state, lead, ""
        self._whole = state == "reasoning"
        breaks = len(self._marks.trail) if state == "reasoning" else self._marks.breaks
        self._tail, self._hold = Tail(self._codec, behind), Hold(self._strings, breaks)

    def _next(self, token: int) -> None:
        if self._state in ("reasoning", "markup") and token == self._unthink:
            self._close_reasoning(token)
        elif self._state in ("reasoning", "text") and token in self._calls:
            self._read()
            # a close marker behind it would make it reasoning
            self._state = "markup" if self._state == "reasoning" else "silent"
            self._tail.add(token)
        elif self._state != "silent":
            self._tail.add(token)

    def _read(self) -> None:
        if self._state in ("reasoning", "text"):
            self._say(self._hold.more(self._stripped(self._tail.read())))

    def _close_reasoning(self, closer: int) -> None:
        if self._tail.lost:
            self._state = "silent"
            return
        self._state = "reasoning"
        self._say(self._hold.more(self._stripped(self._tail.end(), last=True)))
        self._say(self._hold.end(self._marks.trail))
        if self._hold.stopped:
            self._state = "silent"
        else:
            self._enter("text", self._marks.behind, closer)

    def _stripped(self, text: str, *, last: bool = False) -> str:
        """The text without what is taken off in front. In reasoning that goes as a whole or not at all."""
        if not self._lead or not (text or last):
            return text
        self._front += text
        if self._lead.startswith(self._front) and self._front != self._lead and not last:
            return ""
        whole, part = self._front.removeprefix(self._lead), self._front[common_prefix(self._front, self._lead) :]
        self._lead = ""
        return whole if self._whole else part

    def _say(self, text: str) -> None:
        if text:
            self._out.append(Delta("reasoning" if self._state == "reasoning" else "text", text))


def _joined(deltas: list[Delta]) -> list[Delta]:
    out: list[Delta] = []
    for more in deltas:
        if out and out[-1].kind == more.kind:
            out[-1] = Delta(more.kind, out[-1].text + more.text)
        else:
            out.append(more)
    return out
