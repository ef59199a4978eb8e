"""The pilot's own tokenizer: byte-level BPE trained on a harness' prompt and on task text.

Four choices make copying easy for a small model: digits and newlines stand alone, a key and its equals sign are
one token, and so is each word of the families' closed list.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tugline.tasks.families.words import ALL, EXTENSIONS, KEYS
from tugline.training.pilot.conversation import CONTROL_SPECIALS, PLAIN_SPECIALS

_PIECES = r"\p{N}|\n| ?\p{L}+=?| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORD_WEIGHT = 200
"""How often each word of the closed list is counted, so that it becomes one token."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer with exactly `vocab_size` entries, the added tokens last. Deterministic for the same texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    specials = len(CONTROL_SPECIALS) + len(PLAIN_SPECIALS)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        min_frequency=1,
    )
    words = [w for w in (*ALL, *EXTENSIONS, "cfg") for _ in range(_WORD_WEIGHT)]
    words += [f"{w}=" for w in KEYS for _ in range(_WORD_WEIGHT)]
    words += [f" {w}" for w in ALL for _ in range(_WORD_WEIGHT)]
    tokenizer.train_from_iterator([*texts, *words], trainer)
    tokenizer.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in CONTROL_SPECIALS])
    tokenizer.add_tokens([AddedToken(s, normalized=False, special=False) for s in PLAIN_SPECIALS])
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"the texts give {tokenizer.get_vocab_size()} tokens, not {vocab_size}")
    return tokenizer
