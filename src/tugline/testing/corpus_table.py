"""Which tokenizer and stop tokens belong to a chat template, told from the template's own text.

Every row names strings that its templates write. Rows are tried in order. The stop tokens are those that the models'
published `generation_config.json` (`eos_token_id`) lists, where a family is known to publish one; for the rest they
are the string that the template writes behind an assistant turn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch

# ruff: noqa: RUF001 - the fullwidth bar is how some families spell their tokens


@dataclass(frozen=True, slots=True)
class Format:
    """One family of templates."""

    word: str
    """Family, a short word of this table."""
    signs: tuple[str, ...]
    """Strings that must all occur in the template."""
    stop: tuple[str, ...]
    """Tokens that end a turn, by content."""
    tokenizer: str = ""
    """Real tokenizer whose added tokens spell this format; empty: none is to be had."""
    specials: tuple[tuple[str, str], ...] = ()
    """Names that the template may use: bos_token, eos_token, ..."""
    without: tuple[str, ...] = ()
    """Strings that must not occur."""
    tokens: tuple[str, ...] = ()
    """Control strings of the format that a search for `<|...|>` does not find."""


_CHATML = ("<|im_end|>",)
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_ARGS = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_S = (("bos_token", "<s>"), ("eos_token", "</s>"), ("unk_token", "<unk>"))
_QWEN = (("eos_token", "<|im_end|>"), ("pad_token", "<|endoftext|>"))
_QWEN_STOP = ("<|im_end|>", "<|endoftext|>")
_LLAMA = (("bos_token", "<|begin_of_text|>"), ("eos_token", "<|eot_id|>"))
_DEEPSEEK = (("bos_token", "<｜begin▁of▁sentence｜>"), ("eos_token", "<｜end▁of▁sentence｜>"))
_DEEPSEEK_STOP = ("<｜end▁of▁sentence｜>",)
_GEMMA = (("bos_token", "<bos>"), ("eos_token", "<eos>"))
_COHERE = (("bos_token", "<BOS_TOKEN>"), ("eos_token", "<|END_OF_TURN_TOKEN|>"))
_MISTRAL = (
    "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]", "[CALL_ID]", "[ARGS]", "[IMG]",
    "[THINK]", "[/THINK]",
)  # fmt: skip
_HUNYUAN = (
    *(f"<{s}{w}:opensource>" for w in ("think", "tool_calls", "tool_call", "arg_key", "arg_value") for s in ("", "/")),
    "<｜hy_User:opensource｜>", "<｜hy_Assistant:opensource｜>", "<｜hy_eos:opensource｜>",
    "<｜hy_begin_of_sentence:opensource｜>", "<tool_sep:opensource>",
)  # fmt: skip
_LFM = (("bos_token", "<|startoftext|>"), ("eos_token", "<|im_end|>"))

FORMATS: tuple[Format, ...] = (
    Format("gemma4", ("<|turn>", "<turn|>"), ("<turn|>", "<|tool_response>", "<eos>"), "gemma4", _GEMMA,
           tokens=("<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>", "<|tool_call>",
                   "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>')),
    Format("gemma3", ("<start_of_turn>",), ("<end_of_turn>", "<eos>"), "gemma3", _GEMMA),
    Format("muse", ("<|start|>", "<|eot|>", "<|eom|>"), ("<|eot|>", "<|eom|>"),
           specials=(("bos_token", "<|begin_of_text|>"),)),
    Format("gpt_oss", ("<|start|>", "<|channel|>", "<|message|>"), ("<|return|>", "<|call|>"), "gptoss",
           (("bos_token", "<|startoftext|>"), ("eos_token", "<|return|>"))),
    Format("qwen2_5", ("<|im_start|>", "created by Alibaba Cloud"), _QWEN_STOP, "qwen2_5", _QWEN, tokens=_TAGS[2:4]),
    Format("qwen3_5", ("<|im_start|>", "<function=", "<|vision_start|>"), _QWEN_STOP, "qwen3_6", _QWEN, tokens=_TAGS),
    Format("qwen3_coder", ("<|im_start|>", "<function=", "You are Qwen"), _QWEN_STOP, "qwen3", _QWEN, tokens=_TAGS),
    Format("nemotron3", ("<|im_start|>", "<function="), _CHATML, specials=(("bos_token", "<s>"),), tokens=_TAGS),
    Format("lfm2", ("<|im_start|>", "keep_past_thinking"), _CHATML, specials=_LFM, tokens=_TAGS[:2]),
    Format("lfm2", ("<|im_start|>", "<|tool_list_start|>"), _CHATML, specials=_LFM, tokens=_TAGS[:2]),
    Format("lfm2", ("<|im_start|>", "List of tools: ["), _CHATML, specials=_LFM, tokens=_TAGS[:2]),
    Format("minicpm5", ("<|im_start|>", "<tool_def_sep>"), _CHATML, specials=(("bos_token", "<s>"),),
           tokens=(*_TAGS, "<tool_def_sep>", "<tool_sep>")),
    Format("bielik", ("<|im_start|>", "<|function_list|>"), _CHATML, specials=_S, tokens=_TAGS),
    Format("smollm3", ("<|im_start|>", "SmolLM"), _CHATML, tokens=_TAGS),
    Format("smolvlm", ("<end_of_utterance>",), ("<end_of_utterance>",),
           specials=(("bos_token", "<|im_start|>"),), tokens=("<end_of_utterance>", "<image>")),
    Format("hermes", ("<|im_start|>", "<tool_call>", "bos_token"), _CHATML, specials=_LLAMA, tokens=_TAGS),
    Format("qwen3", ("<|im_start|>", "<tool_response>"), _QWEN_STOP, "qwen3", _QWEN, tokens=_TAGS),
    Format("qwen2_5", ("<|im_start|>", "<|vision_start|>"), _QWEN_STOP, "qwen2_5", _QWEN),
    Format("kimi_k2", ("<|im_middle|>",), ("<|im_end|>",),
           specials=(("bos_token", "[BOS]"), ("eos_token", "[EOS]")), tokens=_TAGS[:2]),
    Format("kimi_k3", ("<|end_of_msg|>",), ("<|end_of_msg|>",), specials=(("bos_token", "[BOS]"),)),
    Format("functionary_v3_2", ("<|start_header_id|>", ">>>all"), ("<|eot_id|>",), "llama3_1", _LLAMA),
    Format("llama3_1", ("<|start_header_id|>", "ipython"), ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"),
           "llama3_1", _LLAMA),
    Format("llama3", ("<|start_header_id|>",), ("<|eot_id|>", "<|end_of_text|>"), "llama3", _LLAMA),
    Format("deepseek_v4", ("<｜User｜>", "｜DSML｜"), _DEEPSEEK_STOP, "deepseek_v4", _DEEPSEEK,
           tokens=(*_TAGS[:2], "｜DSML｜")),
    Format("deepseek_v3", ("<｜User｜>", "<think>"), _DEEPSEEK_STOP, "deepseek_v4", _DEEPSEEK, tokens=_TAGS[:2]),
    Format("deepseek_v3", ("<｜User｜>",), _DEEPSEEK_STOP, "deepseek_v3", _DEEPSEEK),
    Format("spark", ("<|Bot|>",), ("<｜end▁of▁sentence｜>",), specials=(("bos_token", "<｜start▁of▁sentence｜>"),),
           tokens=(*_TAGS, *_ARGS)),
    Format("command_r", ("<|START_OF_TURN_TOKEN|>",), ("<|END_OF_TURN_TOKEN|>",), "command_r", _COHERE,
           without=("<|START_RESPONSE|>", "<|START_ACTION|>")),
    Format("cohere2", ("<|START_OF_TURN_TOKEN|>",), ("<|END_OF_TURN_TOKEN|>",), specials=_COHERE),
    Format("phi3", ("<|user|>", "<|end|>", "<|assistant|>"), ("<|end|>", "<|endoftext|>"), "phi3",
           (("bos_token", "<s>"), ("eos_token", "<|endoftext|>")), without=("[IMG]", "<tool_call>")),
    Format("glm4", ("[gMASK]", "<|assistant|>"), ("<|user|>", "<|observation|>", "<|endoftext|>"),
           specials=(("eos_token", "<|endoftext|>"),), tokens=("[gMASK]", "<sop>", *_TAGS, *_ARGS)),
    Format("minimax_m2", ("]~b]", "[e~["), ("[e~[",), specials=(("bos_token", "]~!b["), ("eos_token", "[e~[")),
           tokens=("]~!b[", "]~b]", "[e~[", "<minimax:tool_call>", "</minimax:tool_call>", *_TAGS[:4], "<mm:think>",
                   "</mm:think>")),
    Format("minimax_m1", ("<beginning_of_sentence>",), ("<end_of_sentence>",),
           tokens=("<beginning_of_sentence>", "<end_of_sentence>", "<begin_of_document>")),
    Format("mistral", ("[INST]", "[TOOL_CALLS]"), ("</s>",), specials=_S, tokens=(*_MISTRAL, "<s>", "</s>")),
    Format("llava", ("[INST]",), ("</s>",), specials=_S, tokens=("<s>", "</s>", "<image>")),
    Format("granite", ("<|start_of_role|>",), ("<|end_of_text|>",), specials=(("eos_token", "<|end_of_text|>"),),
           tokens=_TAGS),
    Format("apertus", ("<|assistant_start|>",), ("<|assistant_end|>",), specials=_S),
    Format("apriel", ("<|begin_assistant|>",), ("<|end|>",), specials=_S, tokens=("[IMG]",)),
    Format("apriel", ("<|assistant|>", "<|tool_result|>"), ("<|end|>",), specials=_S, tokens=("[IMG]",)),
    Format("seed_oss", ("<seed:eos>",), ("<seed:eos>",), specials=(("bos_token", "<seed:bos>"),),
           tokens=("<seed:bos>", "<seed:eos>", "<seed:pad>", "<seed:tool_call>", "</seed:tool_call>", "<seed:think>",
                   "</seed:think>", "<seed:cot_budget_reflect>", "</seed:cot_budget_reflect>")),
    Format("gigachat", ("<|role_sep|>",), ("<|message_sep|>",), specials=_S),
    Format("nemotron2", ("<SPECIAL_12>",), ("<SPECIAL_12>",),
           tokens=("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>", *_TAGS[:2])),
    Format("reka", ("<sep>", "assistant:"), ("<sep>",), tokens=("<sep>", *_TAGS)),
    Format("ling", ("<|role_end|>",), ("<|role_end|>",), tokens=("<role>", "</role>", *_TAGS, *_ARGS)),
    Format("laguna", ("</assistant>",), ("</assistant>",),
           specials=(("bos_token", "<s>"), ("eos_token", "</assistant>")),
           tokens=("<system>", "</system>", "<user>", "</user>", "<assistant>", "</assistant>", *_TAGS, *_ARGS)),
    Format("hunyuan3", ("hy_Assistant",), ("<｜hy_eos:opensource｜>",),
           tokens=_HUNYUAN),
    Format("solar", ("<|tool_call:begin|>",), ("<|end|>", "<|calls|>")),
    Format("rwkv", ("'User: '",), ("<|rwkv_tokenizer_end_of_text|>",),
           specials=(("bos_token", "<|rwkv_tokenizer_end_of_text|>"),)),
)  # fmt: skip

FOREIGN: tuple[str, ...] = (
    "*/llm-jp-*", "*/StepFun*", "*/deepseek_r1_distill*", "*/deepseek-ai-DeepSeek-R1-Distill-*",
    "*/*nemotron*", "*/*Nemotron*", "*/MiMo-*",
)  # fmt: skip
"""Templates whose strings are those of a format above while the model has a tokenizer of its own: stand-in."""

_CONTROL = re.compile(r"<[|｜][^|｜<>\s'\"{}]{1,48}[|｜]>")
"""How most families spell control tokens."""


def format_of(name: str, template: str) -> Format:
    """The row for a template. Raises KeyError where no row fits."""
    for row in FORMATS:
        if all(s in template for s in row.signs) and not any(s in template for s in row.without):
            return row
    raise KeyError(f"no row of the corpus table fits {name}")


def own_tokenizer(name: str, row: Format) -> str:
    """Name of the real tokenizer for a template, or an empty string."""
    return "" if any(fnmatch(name, pattern) for pattern in FOREIGN) else row.tokenizer


def control_strings(template: str, row: Format) -> tuple[str, ...]:
    """Strings that a stand-in tokenizer needs as added tokens for this template; longest first."""
    found = set(_CONTROL.findall(template)) | set(row.stop) | {s for _, s in row.specials}
    found |= {t for t in row.tokens if t in template or t in row.stop}
    if row.word == "hunyuan3":
        found |= set(row.tokens)  # this template builds its strings with format()
    return tuple(sorted(found, key=lambda s: (-len(s), s)))
