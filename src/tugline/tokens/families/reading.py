"""A sampled reply as one string in which each marker is one private character.

A marker that is one token of the tokenizer is found by its id alone: the same letters spelled by ordinary tokens stay
letters. Only where the tokenizer has no such token is a marker found by its letters. What a parser then searches is a
plain string, in one pass, and whatever it hands on is put back into the very characters that were sampled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tugline.core.items import ToolCall
from tugline.tokens.codec import Codec

_PRIVATE = range(0xF0000, 0xFFFFE)
"""Private use, plane 15: characters that no text means anything by. One that a reply does hold is left out."""


@dataclass(slots=True)
class Found:
    """What a parser that goes from message to message has read so far. `tokens`: of the reasoning."""

    reasoning: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    drift: set[str] = field(default_factory=set)
    tokens: int = 0


class Reading:
    """`text`: the reply, markers replaced. Built once per reply; the cost is linear in its length."""

    def __init__(self, codec: Codec, body: list[int], markers: Iterable[str]) -> None:
        """A marker may be made of another one and letters. Of two that are spelled by letters the longer is found."""
        self._codec = codec
        self._body = body
        names = list(dict.fromkeys(m for m in markers if m))
        ids = {token: name for name in names if (token := codec.token(name)) is not None}
        self._ids = {name: token for token, name in ids.items()}
        parts = list(_parts(codec, body, ids))
        self._chars: dict[str, str] = dict(zip(names, _unused(text for text, _ in parts), strict=False))
        self._known: dict[str, Mapping[int, int]] = {}
        self._letters: dict[int, str] = {ord(char): name for name, char in self._chars.items()}
        text = "".join(run if token is None else run + self._chars[ids[token]] for run, token in parts)
        self.text = self._spelled(text, [n for n in names if n not in self._ids])

    def _spelled(self, text: str, names: list[str]) -> str:
        """The text with the markers that are no token replaced, too."""
        forms: dict[str, str] = {}
        for name in names:
            form = name
            for inner in self._ids:
                form = form.replace(inner, self._chars[inner])
            forms[form] = self._chars[name]
        if not forms:
            return text
        pattern = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        return re.sub(pattern, lambda found: forms[found.group()], text)

    def char(self, marker: str) -> str:
        """The character that stands for a marker. Raises KeyError for one that was not asked for."""
        return self._chars[marker]

    def plain(self, text: str) -> str:
        """A piece of `text` as it was sampled."""
        return text if text.isascii() else text.translate(self._letters)

    def tokens(self, start: int, end: int) -> int:
        """How many tokens text[start:end] took: exact where markers that are tokens stand around it."""
        if start >= end:
            return 0
        return max(0, self._place(end, end) - (self._place(start - 1, start) if start else 0))

    def _place(self, marker: int, at: int) -> int:
        """Tokens before character `at`, where a marker stands at character `marker`, or none does."""
        if marker >= len(self.text):
            return len(self._body)
        token = self._ids.get(self._letters.get(ord(self.text[marker]), ""))
        if token is not None:
            return self._places(self.text[marker], token)[marker] + (marker < at)
        wanted = len(self.plain(self.text[:at]))
        low, high = 0, len(self._body)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if len(self._codec.decode(self._body[:middle])) < wanted else (low, middle)
        return low

    def _places(self, char: str, token: int) -> Mapping[int, int]:
        """Where a marker's character stands -> where its token does."""
        if char not in self._known:
            characters = (found.start() for found in re.finditer(re.escape(char), self.text))
            tokens = (i for i, t in enumerate(self._body) if t == token)
            self._known[char] = dict(zip(characters, tokens, strict=False))
        return self._known[char]


def _parts(codec: Codec, body: list[int], ids: Mapping[int, str]) -> Iterator[tuple[str, int | None]]:
    """Runs of ordinary text, each with the marker's id behind it."""
    start = 0
    for at, token in enumerate(body):
        if token in ids:
            yield text_between(codec, body, start, at), token
            start = at + 1
    yield text_between(codec, body, start, len(body)), None


def text_between(codec: Codec, body: list[int], start: int, end: int) -> str:
    """The text of body[start:end] as it reads behind body[start - 1]: some decoders drop a blank at the beginning."""
    if start >= end:
        return ""
    if start == 0:
        return codec.decode(body[:end])
    before, both = codec.decode(body[start - 1 : start]), codec.decode(body[start - 1 : end])
    return both[len(before) :] if both.startswith(before) else codec.decode(body[start:end])


def _unused(texts: Iterable[str]) -> Iterator[str]:
    taken = {char for text in texts if not text.isascii() for char in text if ord(char) >= _PRIVATE.start}
    return (char for char in map(chr, _PRIVATE) if char not in taken)
