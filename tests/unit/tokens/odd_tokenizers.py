"""Small tokenizers, one for each habit that real ones have beside control tokens."""

from __future__ import annotations

import string
from collections.abc import Callable
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTROL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
TAGS = ("<think>", "</think>", "<tool_call>")
TEMPLATE = "{{ bos_token }}<|im_start|><|im_end|><think></think><tool_call>"
_TEXTS = (
    "The quick brown fox reads the file, then it writes the answer.",
    'def main(argv):\n    return {"name": "run", "arguments": {"path": "a.txt"}}',
    "word word x y z 0 1 2 3 4 5 6 7 8 9 < > | / _ ä é 日本 im_start im_end think tool_call",
)
_BYTES = [f"<0x{n:02X}>" for n in range(256)]
_METASPACE = pre_tokenizers.Metaspace


def _finish(made: Tokenizer, *, normalized: bool = False, **flags: bool) -> bytes:
    special = [AddedToken(c, normalized=normalized, special=True, **flags) for c in CONTROL]
    made.add_special_tokens(special)
    made.add_tokens([AddedToken(c, normalized=normalized, special=False, **flags) for c in TAGS])
    made.add_tokens([AddedToken(c, normalized=False, special=False) for c in ("<td>", "   ")])
    return str(made.to_str()).encode()


def _bpe(level: bool = True, **model: object) -> Tokenizer:
    made = Tokenizer(models.BPE(**model))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet()) if level else list("\u2581" + string.printable)
    if level:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
    else:
        made.pre_tokenizer = _METASPACE()
    special = [] if level else ["<unk>", *_BYTES]
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=special, show_progress=False, min_frequency=1
    )
    made.train_from_iterator(_TEXTS, trainer)
    return made


def _sentencepiece(scheme: str = "", **flags: bool) -> bytes:
    """As converted SentencePiece models: blanks become a letter that may be put in front; unknown letters are bytes.
    Control tokens stand among the model's own entries."""
    trained = _bpe(level=False)
    base = trained.get_vocab(with_added_tokens=False)
    merges = [tuple(m) for m in _json(trained)["model"]["merges"]]
    first = len(base)
    vocab = base | {c: first + n for n, c in enumerate(CONTROL)}
    made = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if scheme:
        made.pre_tokenizer = _METASPACE(prepend_scheme=scheme, split=False)
    else:
        made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _finish(made, **flags)


def _unigram() -> bytes:
    """Control tokens and byte tokens are entries that the model finds in plain text."""
    pieces = [("<unk>", 0.0), *((c, -1.0) for c in CONTROL), *((b, -12.0) for b in _BYTES)]
    letters = sorted({c for t in _TEXTS for c in t if c != " "} | {"\u2581"})
    words = ("\u2581word", "\u2581the", "im_", "end", "start", "think", "\u2581x", "tool")
    vocab = [*pieces, *((c, -8.0) for c in letters), *((w, -5.0) for w in words)]
    made = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    made.pre_tokenizer = _METASPACE(prepend_scheme="always")
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")])
    return _finish(made)


def _wordlevel() -> bytes:
    """No bytes: what it does not know becomes the unknown token. Control tokens are words of its own."""
    words = (
        "<unk>",
        *CONTROL,
        "word",
        "x",
        "y",
        "z",
        "a",
        "b",
        "im_end",
        "think",
        "<",
        ">",
        "|",
        "9",
        ".",
        "é",
        "日本",
    )
    made = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _finish(made)


def _normalizing(normalizer: object, *, normalized: bool) -> bytes:
    made = _bpe()
    made.normalizer = normalizer
    return _finish(made, normalized=normalized)


def _ignoring() -> bytes:
    """Whole words are looked up first, and control tokens are among the entries."""
    trained = _bpe()
    base = trained.get_vocab(with_added_tokens=False)
    merges = [tuple(m) for m in _json(trained)["model"]["merges"]]
    vocab = base | {c: len(base) + n for n, c in enumerate(CONTROL)}
    made = Tokenizer(models.BPE(vocab, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(r"\s+|\S+"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    made.decoder = decoders.ByteLevel()
    return _finish(made)


def _with_bos() -> bytes:
    made = Tokenizer.from_str(_finish(_bpe()).decode())
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(c, made.token_to_id(c)) for c in ("<s>", "</s>")]
    )
    return str(made.to_str()).encode()


def _sparse() -> bytes:
    """Ids with gaps, control tokens among the model's entries."""
    trained = _bpe()
    base = trained.get_vocab(with_added_tokens=False)
    merges = [tuple(m) for m in _json(trained)["model"]["merges"]]
    vocab = {t: n + 7 * (n > 300) for t, n in base.items()}
    vocab |= {c: 600 + 3 * n for n, c in enumerate((*CONTROL, *TAGS, "<td>", "   "))}
    made = Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return _finish(made)


def _colliding() -> bytes:
    """Broken: new tokens were numbered into a gap that is none, so that control tokens share ids with words."""
    trained = _bpe()
    base = trained.get_vocab(with_added_tokens=False)
    merges = [tuple(m) for m in _json(trained)["model"]["merges"]]
    made = Tokenizer(models.BPE({t: n + 7 * (n > 300) for t, n in base.items()}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return _finish(made)


def _json(tokenizer: Tokenizer) -> dict[str, dict[str, list[list[str]]]]:
    import msgspec

    found: dict[str, dict[str, list[list[str]]]] = msgspec.json.decode(tokenizer.to_str())
    return found


@cache
def _made(name: str) -> bytes:
    return (KINDS | BROKEN)[name]()


def tokenizer(name: str) -> bytes:
    """tokenizer.json of a kind."""
    return _made(name)


KINDS: dict[str, Callable[[], bytes]] = {
    "byte-level": lambda: _finish(_bpe()),
    "swallows-right": lambda: _finish(_bpe(), rstrip=True),
    "swallows-left": lambda: _finish(_bpe(), lstrip=True),
    "swallows-both": lambda: _finish(_bpe(), lstrip=True, rstrip=True),
    "nfc": lambda: _normalizing(normalizers.NFC(), normalized=False),
    "nfc-normalized": lambda: _normalizing(normalizers.NFC(), normalized=True),
    "nfkc-normalized": lambda: _normalizing(normalizers.NFKC(), normalized=True),
    "lowercase": lambda: _normalizing(normalizers.Lowercase(), normalized=False),
    "lowercase-normalized": lambda: _normalizing(normalizers.Lowercase(), normalized=True),
    "prepend": lambda: _sentencepiece(),
    "prepend-swallows": lambda: _sentencepiece(rstrip=True),
    "metaspace-first": lambda: _sentencepiece("first"),
    "metaspace-always": lambda: _sentencepiece("always"),
    "metaspace-never": lambda: _sentencepiece("never"),
    "unigram": _unigram,
    "word-level": _wordlevel,
    "ignore-merges": _ignoring,
    "adds-bos": _with_bos,
    "gaps": _sparse,
}
BROKEN: dict[str, Callable[[], bytes]] = {
    "single-word": lambda: _finish(_bpe(), single_word=True),
    "colliding": _colliding,
}
"""Those that cannot be told safely."""
