"""How a model family writes a turn, and other token spellings of the same bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, ToolCall
from tugline.engines.script import Step
from tugline.tokens.families import Family, families

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How SentencePiece vocabularies call the tokens of single bytes."""
_THOUGHT = "zQthoughtQz"


def turn_of(step: Step) -> Assistant:
    """What a scripted turn says."""
    calls = tuple(ToolCall("", c.name, c.arguments) for c in step.calls)
    return Assistant(step.text or None, step.reasoning or None, calls)


def family_of(parser: str) -> Family:
    """Raises ConfigError for an unknown family."""
    family = families().get(parser)
    if family is None:
        raise ConfigError(f"scripts cannot be spelled for parser {parser!r}; use explicit ids", where="parser")
    return family


def spell(parser: str, step: Step, prompt: str = "") -> str:
    """A scripted turn in the family's own format, without the stop token. `prompt`: the end of the text that it stands
    behind; where that has opened the reasoning, the turn goes on inside.

    Raises ConfigError for an unknown family and for a turn that the format cannot hold.
    """
    family, turn = family_of(parser), turn_of(step)
    opening, closing = family.reasoning
    at = prompt.rfind(opening) if opening else -1
    if at < 0 or at < prompt.rfind(closing):
        return family.spell(turn)
    given, thought = prompt[at:], turn.reasoning or _THOUGHT
    spelled = family.spell(Assistant(turn.text, thought, turn.calls))
    begun = spelled.find(opening)
    lead = spelled[begun : spelled.find(thought)]
    if begun < 0 or not (lead.startswith(given) or not given.removeprefix(opening).strip()):
        return family.spell(turn)
    rest = spelled[begun:]
    shared = next(n for n in range(len(given), -1, -1) if rest.startswith(given[:n]))
    return rest[shared:].replace(_THOUGHT, "", 1)


def stop_of(parser: str, step: Step, stop: Sequence[str]) -> str:
    """The stop token behind a scripted turn: the family's where the model has it, else the model's first."""
    family = families().get(parser)
    word = family.end(turn_of(step)) if family is not None else ""
    return word if word in stop else stop[0]


class Respeller:
    """Replaces tokens by random splits into smaller ones: ids that no encoder gives, for the same text.

    Works for byte-level and SentencePiece vocabularies; the latter's tokens may also fall into bytes.
    """

    def __init__(self, tokenizer_json: bytes, tokenizer: Any) -> None:
        """`tokenizer` is a `tokenizers.Tokenizer` of the same JSON."""
        added = {a.id for a in msgspec.json.decode(tokenizer_json, type=_Added).added_tokens}
        ordinary = {
            piece: token for piece, token in tokenizer.get_vocab(with_added_tokens=False).items() if token not in added
        }
        self._bytes = {int(m.group(1), 16): t for piece, t in ordinary.items() if (m := _BYTE.fullmatch(piece))}
        self._ids: dict[str, int] = {p: t for p, t in ordinary.items() if not _BYTE.fullmatch(p)}
        self._pieces = {token: piece for piece, token in self._ids.items()}
        self._decode = tokenizer.decode
        self._anchor = self._ids.get("a", next(iter(self._ids.values()), 0))
        """An ordinary token in front: decoders treat a text's first token in ways of their own."""

    def respell(self, column: Sequence[int], rate: float, rng: random.Random) -> list[int]:
        """Each ordinary token is split with probability `rate` where it can be. Added tokens stay whole.

        A split that would read differently is not made; if all of them together do, the column comes back unchanged.
        """
        out: list[int] = []
        for token in column:
            piece = self._pieces.get(token)
            split = piece is not None and rate > 0 and rng.random() < rate
            out += self._split(piece, rng) if split and piece is not None else [token]
        same = self._decode(out, skip_special_tokens=False) == self._decode(list(column), skip_special_tokens=False)
        return out if same else list(column)

    def _split(self, piece: str, rng: random.Random) -> list[int]:
        whole = self._ids[piece]
        made = self._halves(piece, rng)
        if made != [whole] and self._reads(made) == self._reads([whole]):
            return made
        return [whole]

    def _halves(self, piece: str, rng: random.Random) -> list[int]:
        cuts = [i for i in range(1, len(piece)) if piece[:i] in self._ids and piece[i:] in self._ids]
        if not cuts:
            return self._fallen(piece)
        at = rng.choice(cuts)
        out: list[int] = []
        for half in (piece[:at], piece[at:]):
            out += self._halves(half, rng) if rng.random() < 0.3 else [self._ids[half]]
        return out

    def _fallen(self, piece: str) -> list[int]:
        """The bytes of a piece that cannot be cut, where the vocabulary has them all."""
        values = piece.replace("\u2581", " ").encode()
        found = [self._bytes[v] for v in values if v in self._bytes]
        return found if len(found) == len(values) else [self._ids[piece]]

    def _reads(self, column: list[int]) -> str:
        return str(self._decode([self._anchor, *column, self._anchor], skip_special_tokens=False))


class _AddedToken(msgspec.Struct):
    id: int


class _Added(msgspec.Struct):
    added_tokens: list[_AddedToken] = []
