"""A prompt beside one whole render of the chat template (V4): where they differ, and whether that was to be expected.

Both are cut at control tokens; runs between them are compared as text, because the ids of sampled text need not be the
tokenizer's own spelling.

special             other control tokens in the context: hard, the bridge is wrong for this template
context_text        other text in the context: hard
assistant_text      other text or structure in a sampled turn: soft, the reply parser or the template re-spelled it
reasoning_stripped  the render leaves sampled reasoning out: expected where history keeps it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal, TypeAlias

import numpy as np

from tugline.core.columns import Ids, count, ids_array, take

Kind: TypeAlias = Literal["special", "context_text", "assistant_text", "reasoning_stripped"]
HARD: tuple[Kind, ...] = ("special", "context_text")


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
    matcher = SequenceMatcher(None, [p.key for p in ours], [p.key for p in theirs], autojunk=False)
    found: list[Deviation] = []
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            continue
        at = ours[i].start if i < len(ours) else count(prompt)
        end = ours[j - 1].end if j > i else at
        mine = words.text(take(prompt, at, end))
        other = words.text(take(rendered, theirs[k].start, theirs[m - 1].end)) if m > k else ""
        by_model = any(start < max(end, at + 1) and at < stop for start, stop in sampled)
        found.append(Deviation(_kind(ours[i:j], theirs[k:m], by_model, words), at, mine, other))
    return tuple(found)


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
