"""A small tokenizer trained on the spot and chat templates of our own, one per way in which real ones differ."""

from __future__ import annotations

import random
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tugline.core.columns import Ids, concat, ids, ids_list
from tugline.core.items import Head, Tool
from tugline.tokens.model import ChatFiles, ChatModel

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|user|>",
    "<|observation|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
)
STRUCTURE = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHATML = """
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if loop.first and tools %}{% for t in tools %}{{ t | tojson + '\\n' }}{% endfor %}{% endif %}
{%- if m.reasoning_content %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content }}
{%- for c in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{%- if c.function.arguments is string %}{{ c.function.arguments }}
{%- else %}{{ c.function.arguments | tojson }}{% endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Append-only: keeps reasoning, prints everything as it is."""

STRIPPING = """
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last %}
{{- '<think>\\n' + (m.reasoning_content or '').strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content.lstrip('\\n') }}
{%- for c in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{ '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{%- if c.function.arguments is string %}{{ c.function.arguments }}
{%- else %}{{ c.function.arguments | tojson }}{% endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"""
"""Drops reasoning before the last user message; a thinking switch."""

PARSED_ARGS = """
{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('system must come first') }}{% endif %}
{%- if m.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + (m.content | trim) + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content | trim }}
{%- for c in m.tool_calls or [] %}
{{- '\\n<tool_call>\\n<function=' + c.function.name + '>\\n' }}
{%- for k, v in c.function.arguments.items() %}
{{- '<parameter=' + k + '>\\n' + (v if v is string else v | tojson) + '\\n</parameter>\\n' }}
{%- endfor %}
{{- '</function>\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"""
"""Arguments as objects only, trims text, refuses late system messages, opens reasoning in the generation prompt."""

NEXT_ROLE = """
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|observation|>\\n' + m.content }}
{%- elif m.role == 'user' %}{{ '<|user|>\\n' + m.content }}
{%- elif m.role == 'system' %}{{ '<|im_start|>\\n' + m.content }}
{%- else %}{{ '<|im_end|>\\n' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + c.function.name + '\\n' + c.function.arguments + '</tool_call>' }}{% endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_end|>\\n' }}{% endif %}"""
"""No close token: a turn ends with the opening token of the next role."""

ALIAS = """
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + c.function.name + '\\n' + c.function.arguments + '</tool_call>' }}{% endfor %}
{{- '<|call|>' if m.tool_calls else '<|end|>' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""History writes `<|end|>` where the model samples `<|return|>`."""

DROPS_CALLS = """
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Never shows the model what it called."""

REMEMBERS = CHATML.replace("{{- '\\n<tool_response>\\n'", "{{- '\\n' ~ loop.index ~ '<tool_response>\\n'")
"""The tail depends on how long the history is."""

REORDERS = CHATML.replace("{{- m.content }}", "{{- '' if m.tool_calls else m.content }}").replace(
    "{{- '\\n<tool_response>\\n' + m.content",
    "{{- '\\n' + messages[loop.index0 - 1].content + '<tool_response>\\n' + m.content",
)
"""Moves the text of a calling turn into the result."""

_CORPUS = (
    "The quick brown fox reads a file. Then it runs a command and says what it found.\n\n"
    '{"name": "run", "arguments": {"cmd": "ls -la"}}\nsystem\nuser\nassistant\n  def f(x):\n    return x + 1\n\n\n'
    "Be brief. What is here? I should look at the listing; it has 10 files.\n"
)


@cache
def tokenizer_json() -> bytes:
    """A byte-level BPE with NFC, as the Qwen family has."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=520, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=1
    )
    tok.train_from_iterator([_CORPUS] * 4, trainer)
    tok.add_special_tokens([AddedToken(s, normalized=False) for s in SPECIAL])
    tok.add_tokens([AddedToken(s, normalized=False, special=False) for s in STRUCTURE])
    return tok.to_str().encode()


@cache
def model(
    template: str = CHATML, stop: tuple[str, ...] = ("<|im_end|>", "<|endoftext|>"), parser: str = "qwen3"
) -> ChatModel:
    """A chat model around one of the templates."""
    return ChatModel(ChatFiles(tokenizer_json(), template, parser, stop, 32768, {"eos_token": "<|im_end|>"}))


TOOLS = (
    Tool("run", '{"type":"function","function":{"name":"run","description":"Runs","parameters":{"type":"object"}}}'),
    Tool("read", '{"type":"function","function":{"name":"read","description":"Reads","parameters":{"type":"object"}}}'),
)
HEAD = Head(TOOLS)


def split_up(chat: ChatModel, column: Ids, seed: int) -> Ids:
    """Another spelling of the same text: some ordinary tokens are replaced by the tokens of their characters' bytes."""
    rng = random.Random(seed)
    control = set(chat.codec.control.values())
    raw = Tokenizer.from_buffer(tokenizer_json())
    out: list[Ids] = []
    for value in ids_list(column):
        piece = raw.id_to_token(value) or ""
        if value not in control and len(piece) > 1 and rng.random() < 0.7:
            out.append(ids(raw.token_to_id(c) for c in piece))
        else:
            out.append(ids([value]))
    return concat(out)
