"""The tokens that end a turn, and who says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tugline.core.errors import ConfigError
from tugline.engines.modelparts.files import optional
from tugline.engines.modelparts.vocabulary import Vocabulary
from tugline.tokens.families import Family


class _Generation(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


@dataclass(frozen=True, slots=True)
class Stops:
    """`tokens`: content -> (id, who names it)."""

    tokens: Mapping[str, tuple[int, tuple[str, ...]]]


def named(words: Sequence[str], vocabulary: Vocabulary, where: str) -> Stops:
    """Exactly these tokens. Raises ConfigError for one that is none."""
    found = {word: vocabulary.id_of(word) for word in words}
    missing = [word for word, token in found.items() if token is None]
    if missing or not found:
        raise ConfigError(f"stop tokens {missing} are not in the tokenizer", where=where)
    return Stops({word: (token, (where,)) for word, token in found.items() if token is not None})


def gathered(
    path: Path, eos: int | list[int] | None, settings: Mapping[str, Any], vocabulary: Vocabulary, family: Family
) -> Stops:
    """What generation_config.json (else config.json, `eos`), tokenizer_config.json and the family say, together.

    A token that the family reads as structure inside a turn never ends one, whoever says so: GPT-OSS writes <|end|>
    behind each message of a turn. Raises ConfigError when nothing is left.
    """
    generation = optional(path / "generation_config.json", _Generation) or _Generation()
    listed, place = generation.eos_token_id, "generation_config.json"
    if listed is None:
        listed, place = eos, "config.json"
    said: list[tuple[str, str]] = []
    for token in [listed] if isinstance(listed, int) else listed or ():
        content = vocabulary.content_of(token)
        if content is None:
            raise ConfigError(
                f"eos_token_id {token} is no token of this tokenizer; check that both are of one model, or set "
                '{"stop": [...]} in tugline.json',
                where=str(path / place),
            )
        said.append((content, place))
    word = content_in(settings.get("eos_token"))
    if word is not None and vocabulary.id_of(word) is not None:
        said.append((word, "tokenizer_config.json"))
    said += [(word, f"family {family.name}") for word in family.stop if vocabulary.id_of(word) is not None]
    inside = set(family.markers) - set(family.stop)
    tokens: dict[str, tuple[int, tuple[str, ...]]] = {}
    for word, who in said:
        known = vocabulary.id_of(word)
        if known is not None and word not in inside:
            tokens[word] = (known, (*(tokens[word][1] if word in tokens else ()), who))
    if not tokens:
        raise ConfigError(
            'no stop token is known: set {"stop": ["<|im_end|>"]}, or eos_token_id in generation_config.json',
            where=str(path / "tugline.json"),
        )
    return Stops(tokens)


def content_in(token: Any) -> str | None:
    """The text of a token as tokenizer_config.json has it: text, or an object with `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None
