"""Which family a model belongs to, by what its template and tokenizer say; names and paths are not looked at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tugline.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Detected:
    """A family's name, and what it was known by."""

    name: str
    why: str


def detect(template: str, added: Collection[str]) -> Detected:
    """`added`: contents of the tokenizer's added tokens. Raises ConfigError naming what was seen."""
    if "<tool_call>" in template and "<function=" not in template and "<|im_start|>" in template:
        return Detected("qwen3", "the template writes <tool_call> and <|im_start|>, but not <function=")
    raise ConfigError('the reply format is unknown: set {"parser": "qwen3"} or another family', where="parser")
