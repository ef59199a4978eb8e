"""Reply formats beside real templates and tokenizers: what is detected, and that a model writes as its template does.

Needs the corpus, see corpus_kit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from corpus_kit import HOW, corpus_cases
from tugline.core.columns import concat
from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, Tool, ToolCall
from tugline.testing.corpus import Case
from tugline.tokens.families import detect, families
from tugline.tokens.model import ChatModel

pytestmark = [pytest.mark.real, pytest.mark.corpus, pytest.mark.timeout(600)]
if not corpus_cases():
    pytest.skip(HOW, allow_module_level=True)
FULL = any(case.package.startswith("llama-cpp") for case in corpus_cases())
"""The whole corpus is there, not only what is quick to fetch."""

EXPECTED = {
    "qwen3": "*Bielik* *MiMo-VL *Hermes* *QwQ* *Qwen2.5-7B* *Qwen3-0.6B npm/qwen3 trl/qwen2_5 trl/qwen3 "
    "trl/qwen3_instruct_2507 trl/qwen3_vl",
    "granite-4": "*granite-4.*",
    "qwen3.5": "*Qwen3-Coder *Qwen3.5-4B *StepFun* trl/qwen3_5_* trl/qwen3_6 trl/qwen3_8",
    "nemotron-3": "*Nemotron-3-Nano* trl/nemotron_3_nano trl/nemotron_3_super",
    "nemotron-3-ultra": "trl/nemotron_3_ultra trl/nemotron_3_5_lightning",
    "minimax-m2": "*MiniMax-M2",
    "glm-4.5": "*GLM-4.6 trl/glm4moe",
    "glm-5": "*GLM-4.7*",
    "laguna-xs": "*Laguna-XS*",
    "laguna-s": "*Laguna-S-*",
    "hy3": "*Hy3",
    "deepseek-v3": "*R1-Distill* *llama-cpp-deepseek-r1 npm/deepseek_v3 trl/deepseek_r1_distill trl/deepseekv3",
    "deepseek-v3.1": "*DeepSeek-V3.1",
    "deepseek-v3.2": "*DeepSeek-V3.2",
    "deepseek-v4": "*DeepSeek-V4*",
    "kimi-k2": "*Kimi-K2*",
    "gpt-oss": "*gpt-oss* *llm-jp* trl/gptoss",
    "gemma4": "*gemma-4* trl/gemma4* trl/diffusion_gemma",
    "llama3": "*meta-llama-Llama-3* trl/llama3_1 trl/llama3_2",
    "mistral": "*Mistral-Nemo*",
    "mistral-ids": "*Mistral-Small*",
    "mistral-args": "*Ministral* *Devstral*",
    "cohere": "*command-r7b* trl/cohere2",
    "cohere-text": "*Cohere2MoE",
    "lfm2": "*LFM2.5-8B* trl/lfm2_2_5* trl/lfm2_v2",
    "plain": "*gemma-2-* *Phi-3.5* npm/gemma3 npm/llama3* trl/cohere trl/gemma trl/gemma3 trl/idefics3 trl/llama3 "
    "trl/llava_next trl/phi3* trl/qwen2_5_vl trl/smolvlm",
    "": "*Apertus* *Apriel* *Seed-OSS *c4ai-command-r-plus* *GigaChat* *SmolLM3* *Kimi-K3 *LFM2-8B* *LFM2.5-Instruct "
    "*MiniMax-M1 *MiniMax-M3 *Nemotron-Nano-v2 *Reka* *Spark* *firefunction* *granite-3.3* *ling-3* *rwkv* "
    "*functionary* *muse* *MiniCPM* *Solar* trl/lfm2",
}
"""Family -> templates by name pattern; the empty one: refused, with a message that says how to override it."""


def expected(name: str) -> str:
    base = name.removesuffix("_training")
    found = {family for family, row in EXPECTED.items() for pattern in row.split() if Path(base).match(pattern)}
    assert len(found) == 1, (name, found)
    return found.pop()


def added(case: Case) -> list[str]:
    return [a["content"] for a in msgspec.json.decode(case.tokenizer_json)["added_tokens"]]


def test_every_template_is_the_family_it_should_be() -> None:
    wrong = []
    for case in corpus_cases():
        try:
            found = detect(case.template, added(case)).name
        except ConfigError as err:
            assert "Set {" in str(err)
            found = ""
        if found != expected(case.name):
            wrong.append((case.name, found, expected(case.name)))
    assert wrong == []


# ------------------------------------------------------------------------------------------- beside the template

ARGUMENTS = '{"cmd": "x y", "n": 1}'
TURNS = {
    "text": Assistant("Hello\n\nyou"),
    "think": Assistant("Hello", "Because\nso"),
    "call": Assistant(None, None, (ToolCall("", "run", ARGUMENTS),)),
    "all": Assistant("Hello", "Because", (ToolCall("", "run", ARGUMENTS),)),
    "two": Assistant(None, "Hm", (ToolCall("", "run", ARGUMENTS), ToolCall("", "run", "{}"))),
}
SPEC = {
    "type": "function",
    "function": {
        "name": "run",
        "description": "Runs",
        "parameters": {
            "type": "object",
            "properties": {"cmd": {"type": "string", "description": "c"}, "n": {"type": "integer", "description": "n"}},
            "required": ["cmd"],
        },
    },
}
TOOLS = (Tool("run", msgspec.json.encode(SPEC).decode()),)
SWITCHES: tuple[dict[str, Any], ...] = (
    {}, {"enable_thinking": True}, {"thinking": True}, {"enable_thinking": False}, {"reasoning_effort": "high"},
)  # fmt: skip
OTHERWISE = {
    "*Bielik*": "think call all",  # writes its line breaks in its own way
    "*QwQ*": "text call",  # its history has no thoughts, its prompt ends with them
    "*StepFun*": "text think call all two",  # other line breaks
    "*R1-Distill*": "text call",
    "*deepseek_r1_distill": "text",
    "*deepseekv3": "text call",
    "*Kimi-K2-Thinking": "text",
    "*MiniMax-M2": "text call",
    "*Cohere2MoE": "text call",
    "*gemma-4-31B-it-interleaved": "call all two",
    "*gemma-4-31B-it": "all",
    "*diffusion_gemma": "all",  # text behind the calls
    "*gemma4": "all",
    "*gemma4_v[345]": "all",
    "*gemma4_v2": "call",
    "*llm-jp*": "call",
}
"""Templates and turns where the template itself writes a history that no model has sampled behind its own prompt."""


def message(turn: Assistant, *, parsed: bool) -> dict[str, Any]:
    out: dict[str, Any] = {"role": "assistant", "content": turn.text or ""}
    if turn.reasoning:
        out |= {"reasoning_content": turn.reasoning, "thinking": turn.reasoning}
    if turn.calls:
        out["tool_calls"] = [
            {
                "id": c.id or "call00000",
                "type": "function",
                "function": {"name": c.name, "arguments": msgspec.json.decode(c.arguments) if parsed else c.arguments},
            }
            for c in turn.calls
        ]
    return out


def rendered(case: Case, messages: list[dict[str, Any]], generation: bool, switch: dict[str, Any]) -> str | None:
    try:
        found, _ = render_jinja_template(
            conversations=[messages],
            tools=[SPEC],
            chat_template=case.template,
            add_generation_prompt=generation,
            **{**case.specials, **switch},
        )
    except Exception:  # noqa: BLE001 - a template may refuse with any error
        return None
    return str(found[0])


def known(case: Case) -> str:
    try:
        name = detect(case.template, added(case)).name
    except ConfigError:
        return ""
    return "" if name == "plain" else name


def holds(whole: str, turn: Assistant) -> bool:
    """Whether a template shows all of a turn."""
    shown = not turn.calls or ("x y" in whole and whole.count("run") >= len(turn.calls))
    return shown and (turn.reasoning or "") in whole and (turn.text or "") in whole


def test_models_write_as_their_templates_do() -> None:
    compared, wrong = 0, []
    user = [{"role": "user", "content": "U"}]
    for case in corpus_cases():
        name = known(case)
        if not name or case.name.endswith("_training"):
            continue
        family = families()[name]
        for label, turn in TURNS.items():
            ways = []
            for switch in SWITCHES:
                prompt = rendered(case, user, True, switch)
                for parsed in (True, False):
                    whole = rendered(case, [*user, message(turn, parsed=parsed)], False, switch)
                    if prompt is None or whole is None or not holds(whole, turn):
                        continue
                    try:
                        written = prompt + family.write(turn, prompt)
                    except ConfigError:
                        continue
                    ways.append(whole == written or whole.startswith(written + family.end(turn)))
            skipped = any(Path(case.name).match(p) and label in row.split() for p, row in OTHERWISE.items())
            if ways and not skipped:
                compared += 1
                if not any(ways):
                    wrong.append((case.name, name, label))
    assert wrong == []
    assert compared > (200 if FULL else 80)


LETTERS = ("deepseek-v3", "deepseek-v3.1", "deepseek-v3.2", "deepseek-v4", "kimi-k2")
"""Families that spell reasoning with ordinary tokens where there is none of its own."""


def test_turns_come_back_with_real_tokenizers() -> None:
    real = 0
    for case in corpus_cases():
        name = known(case)
        if not name or case.name.endswith("_training"):
            continue
        family = families()[name]
        model = ChatModel(case.files(name))
        thinks = name in LETTERS or all(model.codec.token(m) is not None for m in family.reasoning if m)
        real += case.real
        for turn in TURNS.values():
            if turn.reasoning and not thinks:
                continue  # this tokenizer has no token for it: such letters are text
            prompt = family.form.header
            try:
                spelled = family.write(turn, prompt)
            except ConfigError:
                continue
            end = family.end(turn) if family.end(turn) in case.stop else case.stop[0]
            column = concat([model.encode(spelled), model.encode(end)])
            found = model.parse(model.encode(case.stop[0] + prompt), column, "stop", TOOLS)
            assert (found.assistant.text, found.assistant.reasoning) == (turn.text, turn.reasoning), (case.name, turn)
            assert [c.name for c in found.assistant.calls] == [c.name for c in turn.calls], (case.name, turn)
            for got, call in zip(found.assistant.calls, turn.calls, strict=True):
                assert msgspec.json.decode(got.arguments) == msgspec.json.decode(call.arguments)
            assert found.drift == (), (case.name, turn)
    assert real >= (30 if FULL else 12)
