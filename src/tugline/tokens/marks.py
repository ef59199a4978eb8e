"""Harness text made harmless before a chat template sees it.

Where a string spells a control token, that piece alone is swapped for a placeholder of plain letters; the rest stays,
so that templates which trim, search or quote text behave as usual. The piece comes back as plain text when the
rendered prompt is encoded. A string that merely ends in the beginning of a control token (or begins with the end of
one, or is a piece of one) could complete it together with its neighbours: that piece is swapped too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from tugline.tokens.tokenfile import ends, trie

JSON: TypeAlias = "str | int | float | bool | list[JSON] | dict[str, JSON] | None"

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WIDTH = 5


class Screen:
    """Finds spelled control tokens. Immutable; made once per tokenizer.

    The work per character does not grow with the number of tokens, which is a thousand for some tokenizers.
    """

    def __init__(self, control: Iterable[str]) -> None:
        tokens = sorted(set(control), key=len, reverse=True)
        self._whole = re.compile(trie(tokens) or r"(?!)")
        self._heads, self._tails = ends(tokens)
        self._longest = max(map(len, tokens), default=0)
        self._firsts = _one_of(t[0] for t in tokens)
        self._lasts = _one_of(t[-1] for t in tokens)
        # In JSON text: what stands in front of a closing quote, or behind an opening one, and may be part of a token.
        self._closing = re.compile(f'{self._firsts.pattern}[^"]{{0,{self._longest}}}"')
        self._opening = re.compile(f'"[^"]{{0,{self._longest}}}?{self._lasts.pattern}')
        self._short = re.compile(f'"(?=([^"]{{1,{max(1, self._longest)}}})")')
        self._tokens = tuple(tokens)
        self._all = "\n\n".join(tokens)
        # In JSON text a token that has one of these is written differently.
        self._escaped = any(c in t for t in tokens for c in '"\\')

    def free(self, text: str) -> bool:
        """Whether `text` spells no complete control token."""
        return self._whole.search(text) is None

    def free_json(self, source: str) -> bool:
        """Whether no string in a JSON text can spell a control token or the loose end of one. May say no too often."""
        if self._escaped or _ESCAPE.search(source) or self._whole.search(source):
            return False
        return not (
            any(self._head(m.group()[:-1]) for m in self._closing.finditer(source))
            or any(self._tail(m.group()[1:]) for m in self._opening.finditer(source))
            or any(not _WORD.fullmatch(piece) for piece in self._pieces_in(source))
        )

    def words_in(self, source: str) -> set[str]:
        """Words that are strings of a JSON text and pieces of a control token: what `pieces` leaves without `words`.
        A text that is no JSON counts as one string."""
        if "\\" not in source and source[:1] in ("{", "["):
            found = self._pieces_in(source)
        else:
            try:
                found = {s for s in strings(msgspec.json.decode(source)) if s and s in self._all}
            except (msgspec.DecodeError, RecursionError):
                found = {source} if source and source in self._all else set()
        return {word for word in found if _WORD.fullmatch(word)}

    def around(self, words: set[str]) -> tuple[str, ...]:
        """Control tokens that have one of `words` inside."""
        return tuple(t for t in self._tokens if any(word in t for word in words))

    def _pieces_in(self, source: str) -> set[str]:
        """What stands between two quotes of a JSON text and is a piece of a token. It may find too much."""
        return {piece for piece in set(self._short.findall(source)) if piece in self._all}

    def clean(self, text: str, *, words: bool = True) -> bool:
        """Whether `text` can neither hold a control token nor complete one together with its neighbours.
        `words`: see `pieces`."""
        if not text:
            return True
        if text in self._all and (words or not _WORD.fullmatch(text)):
            return False
        return not (self._head(text) or self._tail(text) or self._whole.search(text))

    def pieces(self, text: str, *, words: bool = True) -> list[tuple[int, int, bool]]:
        """Spans to swap, ascending: (start, end, whole token). Without `words` a text that is a piece of a token is
        left alone if it is a mere word: templates compare such (`"type": "object"`)."""
        if text and text in self._all and self.free(text) and (words or not _WORD.fullmatch(text)):
            return [(0, len(text), False)]
        spans = [(m.start(), m.end(), True) for m in self._whole.finditer(text)]
        low = spans[0][0] if spans else len(text)
        if head := self._tail(text[:low]):
            spans.insert(0, (0, head, False))
        high = spans[-1][1] if spans else 0
        if tail := self._head(text[high:]):
            spans.append((len(text) - tail, len(text), False))
        return spans

    def _head(self, text: str) -> int:
        """Length of the longest end of `text` with which a token may begin."""
        window = text[-self._longest :] if self._longest else ""
        for match in self._firsts.finditer(window):
            if window[match.start() :] in self._heads:
                return len(window) - match.start()
        return 0

    def _tail(self, text: str) -> int:
        """Length of the longest beginning of `text` with which a token may end."""
        window = text[: self._longest]
        found = [m.end() for m in self._lasts.finditer(window) if window[: m.end()] in self._tails]
        return found[-1] if found else 0


_ESCAPE = re.compile(r"\\[u/]")
"""A JSON escape that can hide a control token from a search of the raw text."""


_WORD = re.compile(r"\w+")


def _one_of(letters: Iterable[str]) -> re.Pattern[str]:
    known = "".join(map(re.escape, sorted(set(letters))))
    return re.compile(f"[{known}]" if known else r"(?!)")


@dataclass(slots=True)
class Marks:
    """The placeholders of one render. `literals`: placeholder -> the text that it stands for."""

    screen: Screen
    nonce: str
    literals: dict[str, str]
    whole: set[str]
    """Placeholders that stand for a complete control token."""
    words: frozenset[str] = frozenset()
    """Words that `deep` does not leave alone: with the template's letters around them they spell a control token."""

    @property
    def placeholder(self) -> re.Pattern[str]:
        """Matches one placeholder."""
        return re.compile(f"{self.nonce}[a-z]{{{_WIDTH}}}")

    def deep(self, value: JSON) -> JSON:
        """A JSON value with every string in it made harmless, keys included.

        A mere word that is a piece of a token stays: templates compare such strings (`"type": "object"`).
        """
        if isinstance(value, str):
            return self.text(value, words=value in self.words)
        if isinstance(value, list):
            return [self.deep(v) for v in value]
        if isinstance(value, dict):
            return {self.text(k, words=k in self.words): self.deep(v) for k, v in value.items()}
        return value

    def text(self, text: str, *, words: bool = True) -> str:
        """One string made harmless, loose ends included. `words`: see `Screen.pieces`."""
        if self.screen.clean(text, words=words):
            return text
        out: list[str] = []
        at = 0
        for start, end, whole in self.screen.pieces(text, words=words):
            out += [text[at:start], self._new(text[start:end], whole)]
            at = end
        return "".join([*out, text[at:]])

    def restore(self, text: str) -> str:
        """`text` with each placeholder replaced by what it stands for."""
        return self.placeholder.sub(lambda m: self.literals.get(m.group(), m.group()), text)

    def altered(self, rendered: str) -> bool:
        """Whether the template changed the letters of a placeholder (upper case, a cut inside)."""
        if not self.literals:
            return False
        return rendered.lower().count(self.nonce.lower()) != len(self.placeholder.findall(rendered))

    def _new(self, literal: str, whole: bool) -> str:
        number, code = len(self.literals), ""
        for _ in range(_WIDTH):
            number, digit = divmod(number, len(_LETTERS))
            code = _LETTERS[digit] + code
        name = self.nonce + code
        self.literals[name] = literal
        if whole:
            self.whole.add(name)
        return name


def strings(value: JSON) -> Iterator[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for v in value:
            yield from strings(v)
    elif isinstance(value, dict):
        for k, v in value.items():
            yield k
            yield from strings(v)


def unused(base: str, texts: Iterable[str]) -> str:
    """A word of plain letters that occurs in none of `texts`, letter case ignored. Deterministic: equal prompts render
    equally, and text cannot be written to collide with it."""
    lowered = [low for text in texts if base.lower() in (low := text.lower())]
    word = base
    while any(word.lower() in low for low in lowered):
        word += "Qz"
    return word
