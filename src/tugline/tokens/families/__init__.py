"""Reply formats: one file per family of models, and which of them a model belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tugline.tokens.families.detect import Detected, detect
from tugline.tokens.families.family import Family
from tugline.tokens.families.plain import plain
from tugline.tokens.families.qwen3 import qwen3

__all__ = ["Detected", "Family", "detect", "families"]


def families() -> Mapping[str, Family]:
    """Known families by the name that a model's `parser` setting gives."""
    return MappingProxyType({family.name: family for family in (plain(), qwen3())})
