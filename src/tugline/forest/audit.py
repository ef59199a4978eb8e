"""False forks made visible: how much of a new root's prompt an earlier turn already holds.

Roots share their head with others; a root that shares far more was probably a conversation that failed to attach.
Ids decide nothing here: they only tell on the keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from tugline.core.columns import common_prefix, count
from tugline.forest.forest import Forest

NEWEST = 32
"""Leaves compared with a new root. Each costs one comparison of bytes, and a join if it is not hot."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """`tokens` of a root's prompt (of `prompt` tokens) are a prefix of full(`turn_id`)."""

    turn_id: str
    tokens: int
    prompt: int


def root_overlap(forest: Forest, turn_id: str) -> Overlap | None:
    """The longest prefix that a root's prompt shares with an earlier leaf; None without earlier leaves.

    Raises KeyError for an unknown turn. Call it after a root was committed, not for every turn.
    """
    prompt = forest.prompt(turn_id)
    seq = forest.turns[turn_id].seq
    earlier = [leaf for leaf in forest.leaves() if forest.turns[leaf].seq < seq][-NEWEST:]
    shared = [Overlap(leaf, common_prefix(prompt, forest.full(leaf)), count(prompt)) for leaf in earlier]
    return max(shared, key=lambda overlap: overlap.tokens, default=None)
