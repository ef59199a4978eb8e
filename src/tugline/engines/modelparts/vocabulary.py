"""tokenizer.json: what its tokens are called, and where it comes from when a directory has none."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tugline.core.errors import ConfigError, boundary
from tugline.engines.modelparts.files import LARGE, parsed, read

OTHERS = ("tekken.json", "tokenizer.model", "tiktoken.model", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
"""Files that transformers makes a tokenizer of when there is no tokenizer.json."""
_WORDS = 'def f(x): return {"a": 1}  # \u00e9\u6f22'
_HOW = (
    'make one where the packages that it needs are installed: python -c "from transformers import AutoTokenizer; '
    "AutoTokenizer.from_pretrained('{path}').save_pretrained('{path}')\""
)


class _Added(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    model: msgspec.Raw
    added_tokens: list[_Added] = []


class _Table(msgspec.Struct):
    vocab: dict[str, int]


class _Pairs(msgspec.Struct):
    vocab: list[tuple[str, float]]


class Vocabulary:
    """Content to id. The big table is decoded only when an added token does not answer."""

    def __init__(self, file: Path, raw: bytes) -> None:
        """Raises ConfigError naming the file."""
        tokenizer = parsed(file, raw, _Tokenizer)
        self._added = {a.content: a.id for a in tokenizer.added_tokens}
        self._model = tokenizer.model
        self._known: dict[str, int] | None = None

    @property
    def added(self) -> Collection[str]:
        """Contents of the added tokens."""
        return self._added.keys()

    def id_of(self, content: str) -> int | None:
        """The id of a token, or None."""
        found = self._added.get(content)
        return self._table().get(content) if found is None else found

    def content_of(self, token: int) -> str | None:
        """How a token is called, or None for no id of this tokenizer."""
        for table in (self._added, self._table()):
            for content, known in table.items():
                if known == token:
                    return content
        return None

    def size(self) -> int:
        """Largest id plus one."""
        return 1 + max([*self._added.values(), *self._table().values()], default=-1)

    def _table(self) -> dict[str, int]:
        if self._known is None:
            self._known = _decoded(self._model)
        return self._known


def _decoded(model: msgspec.Raw) -> dict[str, int]:
    try:
        return msgspec.json.decode(model, type=_Table).vocab
    except (msgspec.DecodeError, RecursionError):
        pass
    try:  # unigram models list pairs
        return {piece: n for n, (piece, _) in enumerate(msgspec.json.decode(model, type=_Pairs).vocab)}
    except (msgspec.DecodeError, RecursionError):
        return {}


def tokenizer_json(path: Path) -> tuple[bytes, str]:
    """The model directory's tokenizer and where it comes from. Raises ConfigError saying how to make one."""
    raw = read(path / "tokenizer.json", LARGE)
    if raw is not None:
        return raw, "tokenizer.json"
    found = [name for name in OTHERS if (path / name).exists()] + sorted(p.name for p in path.glob("*.tiktoken"))
    if not found:
        raise ConfigError("missing; a model directory needs its tokenizer", where=str(path / "tokenizer.json"))
    return _converted(path, found[0]), f"{found[0]}, converted by transformers"


def _converted(path: Path, source: str) -> bytes:
    """What transformers makes of another kind of tokenizer. Code of the directory's own is never run."""
    where = str(path / source)
    read(path / source, LARGE)  # a file that cannot be read is named as such
    try:
        with boundary(ConfigError, "transformers cannot convert it"), _quiet():
            from transformers import AutoTokenizer

            made = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
            backend = getattr(made, "backend_tokenizer", None)
            if backend is None:
                raise ConfigError(f"transformers loads it as {type(made).__name__}, which has no tokenizer.json")
            text = str(made.decode(made.encode(_WORDS, add_special_tokens=False)))
            if text.strip() != _WORDS:  # unreadable files can give a tokenizer without a vocabulary, and no error
                raise ConfigError(f"what transformers makes of it reads {_WORDS!r} as {text!r}")
            return str(backend.to_str()).encode()
    except ConfigError as err:
        hint = _HOW.format(path=path)
        raise ConfigError(f"there is no tokenizer.json, and {err.message}; {hint}", where=where) from err


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers says on its log what the error says too."""
    log = logging.getLogger("transformers")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
