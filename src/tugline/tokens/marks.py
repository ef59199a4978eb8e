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

JSON: TypeAlias = "str | int | float | bool | list[JSON] | dict[str, JSON] | None"

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WIDTH = 5


class Screen:
    """Finds spelled control tokens. Immutable; made once per tokenizer."""

    def __init__(self, control: Iterable[str]) -> None:
        tokens = sorted(set(control), key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, tokens)) or r"(?!)")
        heads = {t[:n] for t in tokens for n in range(1, len(t))}
        tails = {t[n:] for t in tokens for n in range(1, len(t))}
        self._heads = tuple(sorted(heads, key=len, reverse=True))
        self._tails = tuple(sorted(tails, key=len, reverse=True))
        self._all = "\n\n".join(tokens)

    def free(self, text: str) -> bool:
        """Whether `text` spells no complete control token."""
        return self._whole.search(text) is None

    def clean(self, text: str) -> bool:
        """Whether `text` can neither hold a control token nor complete one together with its neighbours."""
        return not (
            text.endswith(self._heads)
            or text.startswith(self._tails)
            or (text in self._all and text != "")
            or self._whole.search(text)
        )

    def pieces(self, text: str) -> list[tuple[int, int, bool]]:
        """Spans to swap, ascending: (start, end, whole token)."""
        if text and text in self._all and self.free(text):
            return [(0, len(text), False)]
        spans = [(m.start(), m.end(), True) for m in self._whole.finditer(text)]
        low = spans[0][0] if spans else len(text)
        head = next((t for t in self._tails if len(t) <= low and text.startswith(t)), "")
        if head:
            spans.insert(0, (0, len(head), False))
        high = spans[-1][1] if spans else 0
        tail = next((h for h in self._heads if len(text) - len(h) >= high and text.endswith(h)), "")
        if tail:
            spans.append((len(text) - len(tail), len(text), False))
        return spans


@dataclass(slots=True)
class Marks:
    """The placeholders of one render. `literals`: placeholder -> the text that it stands for."""

    screen: Screen
    nonce: str
    literals: dict[str, str]
    whole: set[str]
    """Placeholders that stand for a complete control token."""

    @property
    def placeholder(self) -> re.Pattern[str]:
        """Matches one placeholder."""
        return re.compile(f"{self.nonce}[a-z]{{{_WIDTH}}}")

    def deep(self, value: JSON) -> JSON:
        """A JSON value with complete control tokens taken out of every string in it, keys included.

        Loose ends stay: templates compare such strings (`"type": "object"`) and quote them.
        """
        if isinstance(value, str):
            return value if self.screen.free(value) else self.text(value)
        if isinstance(value, list):
            return [self.deep(v) for v in value]
        if isinstance(value, dict):
            return {str(self.deep(k)): self.deep(v) for k, v in value.items()}
        return value

    def text(self, text: str) -> str:
        """One string made harmless, loose ends included."""
        if self.screen.clean(text):
            return text
        out: list[str] = []
        at = 0
        for start, end, whole in self.screen.pieces(text):
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
