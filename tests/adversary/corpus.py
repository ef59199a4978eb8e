"""Which cases of the corpus are played: templates of every family that has its own tokenizer here, and one of each
other family that a script can be spelled for (structure only)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from adversary.models import Files
from tugline.testing.corpus import cases

PLAYED = (
    *("trl/qwen3", "trl/qwen3_instruct_2507", "trl/qwen2_5", "llama.cpp/Qwen-QwQ-32B"),
    *("trl/qwen3_5_think", "trl/qwen3_5_nothink", "trl/qwen3_8", "llama.cpp/Qwen3-Coder"),
    *("trl/deepseekv3", "npm/deepseek_v3", "llama.cpp/deepseek-ai-DeepSeek-V3.1"),
    *("llama.cpp/deepseek-ai-DeepSeek-V3.2", "llama.cpp/deepseek-ai-DeepSeek-V4"),
    *("trl/llama3", "trl/llama3_1", "trl/llama3_2", "llama.cpp/meta-llama-Llama-3.3-70B-Instruct"),
    *("trl/gemma3", "trl/gemma4_v5", "trl/gptoss", "llama.cpp/openai-gpt-oss-120b"),
    *("trl/cohere", "trl/phi3_5"),
    *("trl/glm4moe", "llama.cpp/moonshotai-Kimi-K2", "llama.cpp/MiniMax-M2", "trl/nemotron_3_nano"),
    *("llama.cpp/tencent-Hy3", "llama.cpp/poolside-Laguna-S-2.1", "trl/lfm2_v2"),
    *("llama.cpp/unsloth-mistral-Devstral-Small-2507", "llama.cpp/ibm-granite-granite-4.0"),
)
"""By family; the last three lines have stand-in tokenizers."""
SMALL = ("trl/qwen3", "trl/qwen3_5_think", "npm/deepseek_v3", "trl/llama3_1", "trl/gemma3", "trl/gptoss")
"""One of each large family, of the packages that are quick to fetch."""


def wanted(corpus: Path, only: Sequence[str] = ()) -> Iterator[Files]:
    """Cases named in full, or holding one of the words; none: the played ones."""
    names = {name: n for n, name in enumerate(PLAYED)}
    found = cases(corpus, only=lambda name: any(w in name for w in only) if only else name in names)
    for case in sorted(found, key=lambda c: names.get(c.name, len(names))):
        yield Files(
            case.name, case.template, case.tokenizer_json, dict(case.specials), case.stop, case.real, case.family
        )
