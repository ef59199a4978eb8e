"""How a model family writes a turn, and other token spellings of the same bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, ToolCall
from tugline.engines.script import Step
from tugline.tokens.families import families


def spell(parser: str, step: Step) -> str:
    """A scripted turn in the family's own format, without the stop token. Raises ConfigError for an unknown family and
    for a turn that the format cannot hold."""
    family = families().get(parser)
    if family is None:
        raise ConfigError(f"scripts cannot be spelled for parser {parser!r}; use explicit ids", where="parser")
    calls = tuple(ToolCall("", c.name, c.arguments) for c in step.calls)
    return family.spell(Assistant(step.text or None, step.reasoning or None, calls))


class Respeller:
    """Replaces tokens by random splits into smaller ones: ids that no encoder gives, for the same text."""

    def __init__(self, tokenizer_json: bytes, tokenizer: Any) -> None:
        """`tokenizer` is a `tokenizers.Tokenizer` of the same JSON."""
        added = {a.id for a in msgspec.json.decode(tokenizer_json, type=_Added).added_tokens}
        self._ids: dict[str, int] = {
            piece: token for piece, token in tokenizer.get_vocab(with_added_tokens=False).items() if token not in added
        }
        self._pieces = {token: piece for piece, token in self._ids.items()}
        self._decode = tokenizer.decode

    def respell(self, column: Sequence[int], rate: float, rng: random.Random) -> list[int]:
        """Each ordinary token is split with probability `rate` where it can be. Added tokens stay whole.

        The column comes back unchanged when the tokenizer is not byte-level and the splits would read differently.
        """
        out: list[int] = []
        for token in column:
            piece = self._pieces.get(token)
            split = piece is not None and rate > 0 and rng.random() < rate
            out += self._split(piece, rng) if split and piece is not None else [token]
        same = self._decode(out, skip_special_tokens=False) == self._decode(list(column), skip_special_tokens=False)
        return out if same else list(column)

    def _split(self, piece: str, rng: random.Random) -> list[int]:
        cuts = [i for i in range(1, len(piece)) if piece[:i] in self._ids and piece[i:] in self._ids]
        if not cuts:
            return [self._ids[piece]]
        at = rng.choice(cuts)
        out: list[int] = []
        for half in (piece[:at], piece[at:]):
            out += self._split(half, rng) if rng.random() < 0.3 else [self._ids[half]]
        return out


class _AddedToken(msgspec.Struct):
    id: int


class _Added(msgspec.Struct):
    added_tokens: list[_AddedToken] = []
