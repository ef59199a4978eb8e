"""A prompt beside one whole render of the chat template (V4): where they differ, and whether that was to be expected.

Both are cut at control tokens; runs between them are compared as text, because the ids of sampled text need not be the
tokenizer's own spelling.

special             other control tokens in the context: hard, the bridge is wrong for this template
context_text        other text in the context: hard
assistant_text      other text or structure in a sampled turn: soft, the reply parser or the template re-spelled it
reasoning_stripped  the render leaves sampled reasoning out: expected where history keeps it
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

import numpy as np

from tugline.core.columns import Ids, count, ids_array, take

Kind: TypeAlias = Literal["special", "context_text", "assistant_text", "reasoning_stripped"]
HARD: tuple[Kind, ...] = ("special", "context_text")

STRETCH = 1000
"""Pieces without anything to hold on to that are compared one by one; of a longer stretch only its ends are."""


@dataclass(frozen=True, slots=True)
class Deviation:
    """One difference. `position`: token of the prompt at which it begins. Texts as decoded, control tokens visible."""

    kind: Kind
    position: int
    prompt: str
    rendered: str


@dataclass(frozen=True, slots=True)
class Words:
    """How ids read: control ids, the two that enclose reasoning, and the text of a run of ids."""

    controls: frozenset[int]
    reasoning: tuple[int | None, int | None]
    text: Callable[[Ids], str]


@dataclass(frozen=True, slots=True)
class _Piece:
    start: int
    end: int
    key: int | str
    """A control id, or the text of a run without one."""


def compare(prompt: Ids, rendered: Ids, sampled: Sequence[tuple[int, int]], words: Words) -> tuple[Deviation, ...]:
    """Differences of a prompt from a render, in order. `sampled`: token ranges [start, end) of the prompt that a model
    sampled."""
    if prompt == rendered:
        return ()
    ours, theirs = _pieces(prompt, words), _pieces(rendered, words)
    found: list[Deviation] = []
    for i, j, k, m in _differences([p.key for p in ours], [p.key for p in theirs]):
        at = ours[i].start if i < len(ours) else count(prompt)
        end = ours[j - 1].end if j > i else at
        mine = words.text(take(prompt, at, end))
        other = words.text(take(rendered, theirs[k].start, theirs[m - 1].end)) if m > k else ""
        by_model = any(start < max(end, at + 1) and at < stop for start, stop in sampled)
        found.append(Deviation(_kind(ours[i:j], theirs[k:m], by_model, words), at, mine, other))
    return tuple(found)


def _differences(a: list[int | str], b: list[int | str]) -> Iterator[tuple[int, int, int, int]]:
    """(start, end) in `a` and in `b` of each place where they differ. What stands once in both and in one order holds
    them together, so that thousands of turns need not be compared with each other."""
    for i, j, k, m in _between(a, b):
        if j - i > STRETCH or m - k > STRETCH:
            yield i, j, k, m
            continue
        for tag, *place in SequenceMatcher(None, a[i:j], b[k:m], autojunk=False).get_opcodes():
            if tag != "equal":
                yield i + place[0], i + place[1], k + place[2], k + place[3]


def _between(a: list[int | str], b: list[int | str]) -> Iterator[tuple[int, int, int, int]]:
    """The stretches of `a` and `b` between what is the same in both beyond doubt."""
    i = k = 0
    for at, other in (*_anchors(a, b), (len(a), len(b))):
        while i < at and k < other and a[i] == b[k]:
            i, k = i + 1, k + 1
        j, m = at, other
        while i < j and k < m and a[j - 1] == b[m - 1]:
            j, m = j - 1, m - 1
        if i < j or k < m:
            yield i, j, k, m
        i, k = at, other


def _anchors(a: list[int | str], b: list[int | str]) -> list[tuple[int, int]]:
    """Places of what stands exactly once in both: the longest series that is in order in both."""
    ours, theirs = Counter(a), Counter(b)
    where = {key: n for n, key in enumerate(b) if theirs[key] == 1 == ours[key]}
    pairs = [(n, where[key]) for n, key in enumerate(a) if key in where]
    least: list[int] = []
    """Least last place in b of a series of each length."""
    rank = []
    for _, other in pairs:
        at = bisect_left(least, other)
        least[at : at + 1] = [other]
        rank.append(at)
    series: list[tuple[int, int]] = []
    wanted = len(least) - 1
    for pair, at in zip(reversed(pairs), reversed(rank), strict=True):
        if at == wanted:
            series.append(pair)
            wanted -= 1
    return series[::-1]


def _kind(ours: Sequence[_Piece], theirs: Sequence[_Piece], by_model: bool, words: Words) -> Kind:
    """`by_model`: a model sampled part of `ours`."""
    opens, closes = words.reasoning
    if opens is not None and any(p.key in (opens, closes) for p in (*ours, *theirs)):
        kept, mine = "", True
        for piece in ours:
            if piece.key in (opens, closes):
                mine = piece.key == closes
            elif mine:
                kept += str(piece.key)
        if kept.split() == "".join(str(p.key) for p in theirs).split():
            return "reasoning_stripped"
    if by_model:
        return "assistant_text"
    controls = [[p.key for p in side if isinstance(p.key, int)] for side in (ours, theirs)]
    return "special" if controls[0] != controls[1] else "context_text"


def _pieces(column: Ids, words: Words) -> list[_Piece]:
    values = ids_array(column)
    cuts = np.nonzero(np.isin(values, list(words.controls)))[0].tolist()
    out: list[_Piece] = []
    at = 0
    for cut in (*cuts, len(values)):
        if cut > at:
            out.append(_Piece(at, cut, words.text(take(column, at, cut))))
        if cut < len(values):
            out.append(_Piece(cut, cut + 1, int(values[cut])))
        at = cut + 1
    return out
