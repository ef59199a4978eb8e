"""How many tokens a model can see, and how large its output layer is, from config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx", "max_sequence_length")
"""Names that configurations give the window, most usual first."""
_SCALED = ("yarn", "linear", "dynamic", "ntk")
"""Kinds of rotary scaling whose factor is not in the configured length. Those of Llama 3 and LongRoPE are."""
_NEVER = 1 << 40
"""Tokenizers say 1e30 for "no limit"."""


class Config(msgspec.Struct):
    """What is read of config.json. Models that see images nest the text model's part."""

    model_type: str | None = None
    vocab_size: int | None = None
    eos_token_id: int | list[int] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    """As `rope_scaling`, in files of transformers 5; by kind of layer where these differ."""
    max_position_embeddings: int | None = None
    n_positions: int | None = None
    max_seq_len: int | None = None
    seq_length: int | None = None
    n_ctx: int | None = None
    max_sequence_length: int | None = None
    text_config: dict[str, Any] | None = None
    llm_config: dict[str, Any] | None = None
    language_config: dict[str, Any] | None = None

    @property
    def text(self) -> Config:
        """The part about text. Raises msgspec.ValidationError."""
        for name in ("text_config", "llm_config", "language_config"):
            nested = getattr(self, name)
            if nested:
                return msgspec.convert(nested, Config)
        return self


def window(config: Config, settings: Mapping[str, Any]) -> tuple[int, str] | None:
    """(tokens, where it stands), or None when no file says. `settings`: tokenizer_config.json."""
    text, nested = config.text, "text_config." if config.text is not config else ""
    for part, prefix in ((text, nested), (config, "")):
        for name in _LENGTHS:
            length = getattr(part, name)
            if length:
                factor, why = _stretch(part, length)
                return int(length * factor), f"config.json [{prefix}{name}]{why}"
    length = settings.get("model_max_length")
    if isinstance(length, int | float) and not isinstance(length, bool) and 0 < length < _NEVER:
        return int(length), "tokenizer_config.json [model_max_length]"
    return None


def _stretch(config: Config, length: int) -> tuple[float, str]:
    """By how much rotary scaling makes the window longer than the configured length.

    As inference engines read it: the factor counts from `original_max_position_embeddings` where that is named.
    """
    rope = config.rope_scaling or config.rope_parameters or {}
    rope = next((r for r in (rope.get("full_attention"), rope) if isinstance(r, dict)), {})
    kind, factor = rope.get("rope_type", rope.get("type")), rope.get("factor")
    original = rope.get("original_max_position_embeddings")
    number = isinstance(factor, int | float) and not isinstance(factor, bool) and 1 < factor < _NEVER
    if kind not in _SCALED or not number or (config.model_type or "").startswith("gemma3"):
        return 1.0, ""  # Gemma 3 counts its scaling in already
    assert isinstance(factor, int | float)
    if isinstance(original, int) and original > 0:
        return max(1.0, original * factor / length), f", {kind} x {factor:g} of {original}"
    return float(factor), f", {kind} x {factor:g}"
