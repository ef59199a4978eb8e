"""Our reading of a reply beside that of `renderers`, family by family, on replies that are well formed.

The library strips what it returns and takes arguments apart; so what is compared is reasoning and text without blanks
at their ends, names, and arguments as values.
"""

# ruff: noqa: RUF001  # tokens are spelled with these very letters

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from renderers import parsing
from renderers.base import ToolCallParseStatus

from tugline.core.columns import Ids, concat, ids_list
from tugline.core.items import Assistant
from tugline.tokens.families import families
from tugline.tokens.parse import Shim
from unit.tokens.family_kit import TOOLS, chat, prompts, split_up, turns

SPECS = [msgspec.json.decode(t.spec) for t in TOOLS]


@dataclass(frozen=True)
class Call:
    """How the library's function for a family is called."""

    parse: Callable[..., Any]
    markers: dict[str, str]
    """Parameter -> token."""
    tools: bool = False
    prefilled: str = "prefilled_thinking"
    stop: bool = True


_THINK = {"think_id": "<think>", "think_end_id": "</think>"}
_TOOL = {"tool_call_id": "<tool_call>", "tool_call_end_id": "</tool_call>"}
_PAIRS = {"arg_key_id": "<arg_key>", "arg_key_end_id": "</arg_key>",
          "arg_value_id": "<arg_value>", "arg_value_end_id": "</arg_value>"}  # fmt: skip
_H = ":opensource"
CALLS = {
    "qwen3": Call(parsing.parse_qwen3, {**_TOOL, "reasoning_end_id": "</think>"}),
    "qwen3.5": Call(parsing.parse_qwen35, {**_THINK, **_TOOL}, tools=True),
    "nemotron-3": Call(parsing.parse_qwen35, {**_THINK, **_TOOL}, tools=True),
    "nemotron-3-ultra": Call(parsing.parse_qwen35, {**_THINK, **_TOOL}, tools=True),
    "minimax-m2": Call(
        parsing.parse_minimax,
        {**_THINK, "tool_call_id": "<minimax:tool_call>", "tool_call_end_id": "</minimax:tool_call>"},
        tools=True,
    ),
    "glm-4.5": Call(parsing.parse_glm, {**_THINK, **_TOOL, **_PAIRS}, tools=True),
    "glm-5": Call(parsing.parse_glm, {**_THINK, **_TOOL, **_PAIRS}, tools=True),
    "laguna-xs": Call(parsing.parse_laguna_xs2, {**_THINK, **_TOOL}, tools=True),
    "hy3": Call(
        parsing.parse_hy3,
        {k: v.replace(">", f"{_H}>") for k, v in {**_THINK, **_TOOL, **_PAIRS, "tool_calls_id": "<tool_calls>",
                                                  "tool_sep_id": "<tool_sep>"}.items()}
        | {"assistant_id": f"<｜hy_Assistant{_H}｜>"},
        tools=True,
    ),
    "deepseek-v3": Call(
        parsing.parse_deepseek_v3,
        {"tool_calls_begin_id": "<｜tool▁calls▁begin｜>", "tool_calls_end_id": "<｜tool▁calls▁end｜>",
         "tool_call_begin_id": "<｜tool▁call▁begin｜>", "tool_call_end_id": "<｜tool▁call▁end｜>",
         "tool_sep_id": "<｜tool▁sep｜>"},
    ),
    "deepseek-v4": Call(
        parsing.parse_deepseek_v4,
        {"think_start_id": "<think>", "think_end_id": "</think>"},
        prefilled="thinking_enabled",
    ),
    "kimi-k2": Call(
        parsing.parse_kimi_k2,
        {f"{k}_id": f"<|{k}|>" for k in ("tool_calls_section_begin", "tool_calls_section_end", "tool_call_begin",
                                         "tool_call_argument_begin", "tool_call_end")},
    ),
    "inkling": Call(
        parsing.parse_inkling,
        {"message_model_id": "<|message_model|>", "content_text_id": "<|content_text|>",
         "content_thinking_id": "<|content_thinking|>", "invoke_json_id": "<|content_invoke_tool_json|>",
         "invoke_text_id": "<|content_invoke_tool_text|>", "end_message_id": "<|end_message|>"},
    ),
    "llama3": Call(parsing.parse_llama_3, {}, prefilled=""),
}  # fmt: skip


def library(name: str, column: Ids, *, prefilled: bool) -> Any:
    call, model = CALLS[name], chat(name)
    found = {k: model.codec.token(v) for k, v in call.markers.items()}
    more: dict[str, Any] = {call.prefilled: prefilled} if call.prefilled else {}
    if call.tools:
        more["tools"] = SPECS
    return call.parse(Shim(model.codec), ids_list(column), stop_ids=set(model.stop_ids), **found, **more)


@pytest.mark.parametrize("name", sorted(CALLS))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_library_reads_the_same(name: str, data: st.DataObject) -> None:
    family, model = families()[name], chat(name)
    turn = data.draw(turns(name))
    if name == "llama3":  # the library reads one call
        turn = replace(turn, calls=turn.calls[:1])
    opened = [p for p in prompts(name)[:2] if name != "llama3"] or prompts(name)[:1]
    prompt = data.draw(st.sampled_from(opened))
    column = concat([model.encode(family.write(turn, prompt)), model.encode(family.end(turn))])
    column = split_up(name, column, data.draw(st.integers(0, 99)))
    ours: Assistant = model.parse(model.encode(family.stop[0] + prompt), column, "stop", TOOLS).assistant
    theirs = library(name, column, prefilled=prompt != prompts(name)[0])
    assert (theirs.content or "").strip() == (ours.text or "").strip()
    assert (theirs.reasoning_content or "").strip() == (ours.reasoning or "").strip()
    assert [c.name for c in theirs.tool_calls] == [c.name for c in ours.calls]
    for got, want in zip(theirs.tool_calls, ours.calls, strict=True):
        assert got.status in (ToolCallParseStatus.OK, ToolCallParseStatus.INVALID_JSON)
        assert stripped(got.arguments) == stripped(msgspec.json.decode(want.arguments))


def stripped(value: Any) -> Any:
    """The library takes blanks off the ends of values, and knows no boolean as Python prints it."""
    if isinstance(value, dict):
        return {k: v.strip() if isinstance(v, str) else str(v) if isinstance(v, bool) else v for k, v in value.items()}
    return value
