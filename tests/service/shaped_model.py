"""Model directories for the scripted engine: the shipped tokenizer with more control tokens, and another template."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from tugline.cli.wiring import PILOT

KIMI = """
{%- if tools %}{{ '<|im_system|>tools<|im_middle|>' + tools | tojson + '<|im_end|>' }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{{- '<|im_system|>tool<|im_middle|>## Return of ' + m.tool_call_id + '\\n' + m.content + '<|im_end|>' }}
{%- elif m.role == 'assistant' %}
{{- '<|im_assistant|>assistant<|im_middle|>' }}
{%- if m.reasoning_content %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}{{ m.content }}
{%- if m.tool_calls %}{{ '<|tool_calls_section_begin|>' }}
{%- for c in m.tool_calls %}
{{- '<|tool_call_begin|>' + c.id + '<|tool_call_argument_begin|>' + c.function.arguments + '<|tool_call_end|>' }}
{%- endfor %}{{ '<|tool_calls_section_end|>' }}{% endif %}
{{- '<|im_end|>' }}
{%- else %}{{ '<|im_' + m.role + '|>' + m.role + '<|im_middle|>' + m.content + '<|im_end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"""
"""Shows ids of calls, in nested regions, as one family does. The words are our own."""
KIMI_TOKENS = (
    "<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>",
)  # fmt: skip


def shaped(
    folder: Path, *, template: str | None = None, before: str = "", parser: str = "qwen3", tokens: Sequence[str] = ()
) -> Path:
    """A copy of the shipped model without weights. `before` is put in front of its template."""
    made = folder / "shaped"
    shutil.copytree(PILOT, made, ignore=shutil.ignore_patterns("*.safetensors"))
    file = made / "chat_template.jinja"
    file.write_text(before + (template or file.read_text()))
    facts = json.loads((made / "tugline.json").read_text())
    (made / "tugline.json").write_text(json.dumps(facts | {"parser": parser}))
    if tokens:
        path = made / "tokenizer.json"
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.add_tokens([AddedToken(t, normalized=False, special=True) for t in tokens])
        tokenizer.save(str(path))
        shape = json.loads((made / "config.json").read_text())
        (made / "config.json").write_text(json.dumps(shape | {"vocab_size": shape["vocab_size"] + len(tokens)}))
    return made
