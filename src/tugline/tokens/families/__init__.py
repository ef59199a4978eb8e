"""Reply formats: one file per family of models, and which of them a model belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tugline.tokens.families.deepseek import deepseek_v3, deepseek_v4, deepseek_v31, deepseek_v32
from tugline.tokens.families.detect import Detected, detect
from tugline.tokens.families.family import Family
from tugline.tokens.families.gemma4 import gemma4
from tugline.tokens.families.harmony import gpt_oss
from tugline.tokens.families.inkling import inkling
from tugline.tokens.families.kimi import kimi_k2
from tugline.tokens.families.listed import cohere, cohere_text, lfm2
from tugline.tokens.families.pairs import glm5, glm45, hy3, laguna_s, laguna_xs
from tugline.tokens.families.plain import plain
from tugline.tokens.families.qwen3 import granite4, qwen3
from tugline.tokens.families.schema import check_template, schema, understood
from tugline.tokens.families.textual import llama3, mistral, mistral_args, mistral_ids
from tugline.tokens.families.xml import minimax_m2, nemotron3, nemotron3_ultra, qwen35

_ALL = (
    *(plain, qwen3, qwen35, nemotron3, nemotron3_ultra, minimax_m2, glm45, glm5, hy3, laguna_xs, laguna_s),
    *(deepseek_v3, deepseek_v31, deepseek_v32, deepseek_v4, kimi_k2),
    *(gpt_oss, inkling, gemma4, llama3, mistral, mistral_ids, mistral_args),
    *(granite4, cohere, cohere_text, lfm2, schema),
)

__all__ = ["Detected", "Family", "check_template", "detect", "families", "understood"]


def families() -> Mapping[str, Family]:
    """Known families by the name that a model's `parser` setting gives."""
    return MappingProxyType({family.name: family for family in (make() for make in _ALL)})
