"""Which family a model belongs to, by what its template and tokenizer say; names and paths are not looked at.

A row is a family and the strings that its templates write. Rows exclude each other: a template that two of them fit is
an error, not a guess.
"""

# ruff: noqa: RUF001  # the fullwidth bar is how some families spell their tokens

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tugline.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Detected:
    """A family's name, and what it was known by."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class _Row:
    family: str
    signs: tuple[str, ...]
    """Strings that the template must hold."""
    without: tuple[str, ...] = ()
    """Strings that it must not hold."""
    tokens: tuple[str, ...] = ()
    """Tokens that the tokenizer must have: the template does not write them, the model does."""


_ROWS = (
    _Row("qwen3", ("<tool_call>", "<|im_start|>", "arguments"), ("<function=", "<arg_key>", "<function name=")),
    _Row("granite-4", ("<tool_call>", "<|start_of_role|>"), ("<function=", "<arg_key>")),
    _Row("qwen3.5", ("<tool_call>", "<|im_start|>", "<function="), ("<think></think>",)),
    _Row("nemotron-3", ("<tool_call>", "<|im_start|>", "<function=", "<think></think>", "\\n</think>\\n")),
    _Row("nemotron-3-ultra", ("<tool_call>", "<|im_start|>", "<function=", "<think></think>"), ("\\n</think>\\n",)),
    _Row("minimax-m2", ("<minimax:tool_call>",)),
    _Row("glm-4.5", ("<arg_key>", "[gMASK]", "\\n<tool_call>'")),
    _Row("glm-5", ("<arg_key>", "[gMASK]"), ("\\n<tool_call>'",)),
    _Row("laguna-xs", ("<arg_key>", "</assistant>", "<assistant>\\n")),
    _Row("laguna-s", ("<arg_key>", "</assistant>"), ("<assistant>\\n",)),
    _Row("hy3", ("hy_Assistant", "tool_sep")),
    _Row("deepseek-v3", ("<｜tool▁calls▁begin｜>", "```json")),
    _Row("deepseek-v3", ("<｜Assistant｜>", "</think>"), ("<｜tool▁calls▁begin｜>", "｜DSML｜")),
    _Row("deepseek-v3.1", ("<｜tool▁calls▁begin｜>",), ("```json",)),
    _Row("deepseek-v3.2", ("｜DSML｜", "function_calls>")),
    _Row("deepseek-v4", ("｜DSML｜", "tool_calls>"), ("function_calls>",)),
    _Row("kimi-k2", ("<|tool_calls_section_begin|>",)),
    _Row("gpt-oss", ("<|start|>", "<|channel|>", "<|message|>"), ("<|eom|>",)),
    _Row("inkling", ("<|content_invoke_tool_json|>",)),
    _Row("gemma4", ("<|turn>", "<tool_call|>")),
    _Row("llama3", ("<|start_header_id|>", "ipython", "parameters"), ("<function=", ">>>", "<tool_call>")),
    _Row("mistral", ("[TOOL_CALLS]",), ("[ARGS]",)),
    _Row("mistral-ids", ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")),
    _Row("mistral-args", ("[TOOL_CALLS]", "[ARGS]"), ("[CALL_ID]",)),
    _Row("cohere", ("<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>")),
    _Row("cohere-text", ("<|CHATBOT_TOKEN|>", "<|START_TEXT|>"), ("<|START_RESPONSE|>",)),
    _Row("lfm2", ("<|tool_call_start|>",)),
    _Row("lfm2", ("<|im_start|>", "List of tools: ["), ("<|tool_call_start|>",), ("<|tool_call_start|>",)),
)
_SIGNS_OF_MORE = ("tool", "function", "think", "<|channel|>", "reasoning")
"""A template that holds none of these can show a model nothing but text."""


def detect(template: str, added: Collection[str]) -> Detected:
    """`added`: contents of the tokenizer's added tokens. Raises ConfigError naming what was seen."""
    fits = [row for row in _ROWS if _fits(row, template, added)]
    names = list(dict.fromkeys(row.family for row in fits))
    if len(names) == 1:
        signs = [s for row in fits for s in (*row.signs, *row.tokens)]
        tokens = [s for s in signs if s in added]
        how = f"tokens: {', '.join(tokens)}" if tokens else "none of them is one token: they are read by their letters"
        return Detected(names[0], f"the template writes {', '.join(signs)} ({how})")
    if not names and not any(sign in template for sign in _SIGNS_OF_MORE):
        return Detected("plain", "the template knows neither tools nor reasoning")
    seen = f"it looks like {' and '.join(names)}" if names else f"it holds {', '.join(_seen(template)) or 'no marker'}"
    raise ConfigError(
        f'the reply format of this chat template is unknown: {seen}. Set {{"parser": NAME}} to a family '
        f"({', '.join(sorted({row.family for row in _ROWS}))}), or to plain for text alone",
        where="parser",
    )


def _fits(row: _Row, template: str, added: Collection[str]) -> bool:
    written = all(s in template for s in row.signs) and not any(s in template for s in row.without)
    return written and all(t in added for t in row.tokens)


def _seen(template: str) -> list[str]:
    """Signs of any family that the template holds."""
    return list(dict.fromkeys(s for row in _ROWS for s in row.signs if s in template))
