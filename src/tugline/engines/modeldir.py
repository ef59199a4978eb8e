"""What a model directory says about the policy, read once and checked, without loading weights or a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tugline.core.errors import ConfigError

_SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model directory's contents that the gateway and the engines need."""

    path: Path
    name: str
    tokenizer_json: bytes
    template: str
    """The chat template's source."""
    parser: str
    """Name of the reply format, e.g. `qwen3`."""
    stop: tuple[str, ...]
    """Stop tokens by content; the first one ends a scripted turn."""
    stop_ids: tuple[int, ...]
    context: int
    """Window in tokens: prompt + sampled."""
    vocab: int
    """Size of the output layer: every valid id is below it."""
    specials: Mapping[str, str] = field(default_factory=dict)
    """`bos_token`, `eos_token`, ...: names that templates use, where the tokenizer's settings give them."""


class _Tugline(msgspec.Struct):
    parser: str | None = None
    stop: list[str] | None = None
    context: int | None = None
    name: str | None = None


class _Config(msgspec.Struct):
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    eos_token_id: int | list[int] | None = None


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class _Added(msgspec.Struct):
    id: int
    content: str


class _Tokenizer(msgspec.Struct):
    model: msgspec.Raw
    added_tokens: list[_Added] = []


class _Bpe(msgspec.Struct):
    vocab: dict[str, int]


def read_model_dir(path: Path) -> ModelFiles:
    """Read and check a model directory.

    tokenizer.json must be there; tugline.json {"parser", "stop", "context"} wins over what chat_template.jinja or
    tokenizer_config.json, generation_config.json and config.json say. Raises ConfigError naming the file.
    """
    if not path.is_dir():
        raise ConfigError("no such model directory", where=str(path))
    raw = _bytes(path / "tokenizer.json")
    if raw is None:
        raise ConfigError("missing; a model directory needs its tokenizer", where=str(path / "tokenizer.json"))
    tokenizer = _parse(path / "tokenizer.json", raw, _Tokenizer)
    own = _optional(path / "tugline.json", _Tugline) or _Tugline()
    config = _optional(path / "config.json", _Config) or _Config()
    settings = _optional(path / "tokenizer_config.json", dict[str, Any]) or {}
    template = _template(path, settings)
    vocab = _Vocabulary(tokenizer)
    stop, stop_ids = _stops(path, own, config, settings, vocab)
    context = own.context or config.max_position_embeddings
    if not context or context < 1:
        raise ConfigError('the context is unknown: set {"context": TOKENS}', where=str(path / "tugline.json"))
    return ModelFiles(
        path=path,
        name=own.name or path.resolve().name,
        tokenizer_json=raw,
        template=template,
        parser=own.parser or _guess_parser(path, template),
        stop=stop,
        stop_ids=stop_ids,
        context=context,
        vocab=config.vocab_size or vocab.size(),
        specials={n: text for n in _SPECIALS if (text := _content(settings.get(n)))},
    )


def require_weights(path: Path) -> None:
    """Raises ConfigError unless the directory holds what a real engine loads."""
    for name in ("config.json", "model.safetensors"):
        if not (path / name).is_file() and not (name.startswith("model") and any(path.glob("model-*.safetensors"))):
            raise ConfigError("missing; the embedded engine loads it", where=str(path / name))


class _Vocabulary:
    """Content to id. The big table is decoded only when an added token does not answer."""

    def __init__(self, tokenizer: _Tokenizer) -> None:
        self._added = {a.content: a.id for a in tokenizer.added_tokens}
        self._model = tokenizer.model

    def id_of(self, content: str) -> int | None:
        found = self._added.get(content)
        return self._table().get(content) if found is None else found

    def content_of(self, token: int) -> str | None:
        for table in (self._added, self._table()):
            for content, known in table.items():
                if known == token:
                    return content
        return None

    def size(self) -> int:
        return 1 + max([*self._added.values(), *self._table().values()], default=-1)

    def _table(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._model, type=_Bpe).vocab
        except msgspec.DecodeError:
            return {}  # unigram models list pairs; their special tokens are added tokens


def _stops(
    path: Path, own: _Tugline, config: _Config, settings: Mapping[str, Any], vocab: _Vocabulary
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    if own.stop is not None:
        found = [(s, vocab.id_of(s)) for s in own.stop]
        missing = [s for s, token in found if token is None]
        if missing or not found:
            raise ConfigError(
                f"stop tokens {missing} are not in the tokenizer", where=f"{path / 'tugline.json'} [stop]"
            )
        return tuple(own.stop), tuple(token for _, token in found if token is not None)
    generation = _optional(path / "generation_config.json", _GenerationConfig) or _GenerationConfig()
    eos = generation.eos_token_id if generation.eos_token_id is not None else config.eos_token_id
    ids = [eos] if isinstance(eos, int) else list(eos or [])
    if not ids and (named := vocab.id_of(_content(settings.get("eos_token")) or "")) is not None:
        ids = [named]
    pairs = [(vocab.content_of(i), i) for i in ids]
    if not pairs or any(content is None for content, _ in pairs):
        raise ConfigError(
            'no stop token is known: set {"stop": ["<|im_end|>"]}, or eos_token_id in generation_config.json',
            where=str(path / "tugline.json"),
        )
    return tuple(c for c, _ in pairs if c is not None), tuple(i for _, i in pairs)


def _template(path: Path, settings: Mapping[str, Any]) -> str:
    raw = _bytes(path / "chat_template.jinja")
    if raw is not None:
        try:
            return raw.decode()
        except UnicodeDecodeError as err:
            raise ConfigError(f"not UTF-8: {err}", where=str(path / "chat_template.jinja")) from err
    inline = settings.get("chat_template")
    if isinstance(inline, list):  # named templates: the default one is meant
        inline = next((t.get("template") for t in inline if t.get("name") == "default"), None)
    if not isinstance(inline, str) or not inline:
        raise ConfigError(
            "missing, and tokenizer_config.json has no chat_template", where=str(path / "chat_template.jinja")
        )
    return inline


def _guess_parser(path: Path, template: str) -> str:
    if "<tool_call>" in template and "<function=" not in template and "<|im_start|>" in template:
        return "qwen3"
    raise ConfigError(
        'the reply format is unknown: set {"parser": "qwen3"} or another family', where=str(path / "tugline.json")
    )


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) and text else None


def _bytes(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as err:
        raise ConfigError(f"cannot be read: {err}", where=str(file)) from err


def _optional(file: Path, kind: type[_T]) -> _T | None:
    raw = _bytes(file)
    return None if raw is None else _parse(file, raw, kind)


def _parse(file: Path, raw: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as err:
        raise ConfigError(f"not valid: {err}", where=str(file)) from err
