"""Small chat templates of our own, each with one habit that real families have, and models around them."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType

from tokenizers import AddedToken, Tokenizer

from tugline.tokens.model import ChatFiles, ChatModel
from tugline.tokens.splice import Rules
from unit.tokens.chat_kit import tokenizer_json

SECTIONS = """
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|role|>tool<|mid|>## Return of ' + m.tool_call_id + '\\n' + m.content + '<|close|>' }}
{%- else %}
{{- '<|role|>' + m.role + '<|mid|>' + m.content }}
{%- if m.tool_calls %}
{{- '<|calls|>' }}
{%- for c in m.tool_calls %}{{ '<|call_in|>' + c.id + '<|args|>' + c.function.arguments + '<|call_out|>' }}{% endfor %}
{{- '<|/calls|>' }}
{%- endif %}
{{- '<|close|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant<|mid|>' }}{% endif %}"""
"""Calls in two nested regions; ids of calls are shown, and names are not."""

OUTPUTS = """
{%- set ns = namespace(tool=false, first=true) %}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}{% set ns.tool = false %}{{ '<|role|>User' + m.content }}
{%- elif m.role == 'tool' %}
{%- if ns.first %}{{ '<|outputs|>' }}{% set ns.first = false %}{% endif %}
{{- '<|output|>' + m.content + '<|/output|>' }}{% set ns.tool = true %}
{%- else %}
{{- '' if ns.tool else '<|role|>Assistant' }}{% set ns.tool = false %}{{ m.content }}
{%- if m.tool_calls %}
{{- '<|calls|>' }}
{%- for c in m.tool_calls %}
{{- '<|call_in|>' + c.function.name + '\\n' + c.function.arguments + '<|call_out|>' }}{% endfor %}
{{- '<|/calls|>' }}{% endif %}
{{- '<|close|>' }}
{%- endif %}
{%- endfor %}
{%- if ns.tool %}{{ '<|/outputs|>' }}{% elif add_generation_prompt %}{{ '<|role|>Assistant' }}{% endif %}"""
"""Only the first results of a conversation are opened: what stands behind a turn depends on the past."""

CHANNELS = """
{%- set ns = namespace(name='') %}
{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- if m.reasoning_content %}
{{- '<|role|>assistant<|channel|>analysis<|mid|>' + m.reasoning_content + '<|end|>' }}{% endif %}
{%- if m.tool_calls %}
{%- set ns.name = m.tool_calls[0].function.name %}
{{- '<|role|>assistant to=' + ns.name + '<|channel|>commentary<|mid|>' }}
{{- m.tool_calls[0].function.arguments + '<|call|>' }}
{%- else %}{{ '<|role|>assistant<|channel|>final<|mid|>' + m.content + ('<|return|>' if loop.last else '<|end|>') }}
{%- endif %}
{%- elif m.role == 'tool' %}{{ '<|role|>' + ns.name + ' to=assistant<|mid|>' + m.content | tojson + '<|end|>' }}
{%- else %}{{ '<|role|>' + m.role + '<|mid|>' + m.content + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant' }}{% endif %}"""
"""A turn is several messages; only the first of several calls is shown; `<|end|>` where the model said `<|return|>`."""

NEXT_OPENS = """
{%- for m in messages %}
{%- if m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|observation|>' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- elif m.role == 'user' %}{{ '<|user|>\\n' + m.content }}
{%- elif m.role == 'system' %}{{ '<|system|>\\n' + m.content }}
{%- else %}{{ '<|assistant|>\\n<think>' + (m.reasoning_content or '') + '</think>\\n' + m.content }}
{%- for c in m.tool_calls or [] %}
{{- '\\n<tool_call>' + c.function.name + '\\n' + c.function.arguments + '</tool_call>' }}{% endfor %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""
"""No turn has an end: whatever opens the next one is what the model stops with."""

RESPONSE_STOP = """
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|response|>' + m.name + ':' + m.content + '<|/response|>' }}
{%- elif m.role == 'assistant' %}
{%- if not loop.first and messages[loop.index0 - 1].role != 'tool' %}{{ '<|role|>model\\n' }}{% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}
{{- '<tool_call>' + c.function.name + c.function.arguments + '</tool_call>' }}{% endfor %}
{%- if not m.tool_calls %}{{ '<|close|>\\n' }}{% endif %}
{%- else %}{{ '<|role|>' + m.role + '\\n' + m.content + '<|close|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}{{ '<|role|>model\\n' }}{% endif %}"""
"""A calling turn stops with the token that opens its results, and goes on behind them as the same turn."""

ENDS = """
{%- for m in messages %}{{ '<|role|>' + m.role + '\\n' + m.content + '<|close|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant\\n' }}{% else %}{{ eos_token }}{% endif %}"""
"""Writes an end of text at the end of every render that asks for no generation."""

STRICT = """
{%- set ns = namespace(user=true) %}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}
{{- '<|role|>' + m.role + '\\n' + m.content + '<|close|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|role|>model\\n' }}{% endif %}"""
"""User and assistant in turn, and nobody else."""

ONE_CALL = """
{%- for m in messages %}
{%- if m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('This model only supports single tool-calls at once!') }}
{%- endif %}
{%- set c = m.tool_calls[0] %}
{{- '<|role|>assistant\\n{"name": "' + c.function.name + '", "parameters": ' }}
{{- c.function.arguments | tojson + '}<|close|>' }}
{%- else %}{{ '<|role|>' + m.role + '\\n' + m.content + '<|close|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant\\n' }}{% endif %}"""
"""Refuses a turn with two calls; drops the text of one that calls."""

NINE = """
{%- for m in messages %}
{%- for c in m.tool_calls or [] %}
{%- if c.id | length != 9 %}{{ raise_exception('Tool call IDs should be of length 9!') }}{% endif %}
{%- endfor %}
{%- if m.role == 'tool' and m.tool_call_id | length != 9 %}{{ raise_exception('length 9!') }}{% endif %}
{{- '<|role|>' + m.role + '\\n' + (m.tool_call_id ~ '=' if m.role == 'tool' else '') + m.content }}
{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + c.id + c.function.arguments + '</tool_call>' }}{% endfor %}
{{- '<|close|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant\\n' }}{% endif %}"""
"""Takes call ids of nine letters and digits only."""

PARTS = """
{%- for m in messages %}{{ '<|role|>' + m.role + '\\n' }}
{%- for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{{ '<|close|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant\\n' }}{% endif %}"""
"""Reads content as a list of parts."""

NOTATION = """
{%- for m in messages %}{{ '<|role|>' + m.role + '\\n' + m.content }}
{%- for c in m.tool_calls or [] %}{{ '<tool_call>' + c.function.name + '{' }}
{%- if c.function.arguments is mapping %}
{%- for k, v in c.function.arguments.items() %}{{ k ~ ':[' ~ v ~ ']' }}{% endfor %}
{%- else %}{{ c.function.arguments }}{% endif %}{{ '}</tool_call>' }}{% endfor %}
{{- '<|close|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant\\n' }}{% endif %}"""
"""Has a notation of its own for objects, and prints text into it as it is."""

DATED = """
{%- macro today() %}{{ strftime_now('%d %b %Y') }}{% endmacro %}
{%- if strftime_now is defined %}
{{- '<|role|>system\\nToday is ' + today() + strftime_now(" 100%% at %-H:%M.") + '<|close|>' }}{% endif %}
{%- for m in messages %}{{ '<|role|>' + m.role + '\\n' + m.content + '<|close|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant\\n' }}{% endif %}"""
"""Prints the time."""

STOPS = MappingProxyType(
    {
        CHANNELS: ("<|return|>", "<|call|>"),
        NEXT_OPENS: ("<|user|>", "<|observation|>", "<|endoftext|>"),
        RESPONSE_STOP: ("<|close|>", "<|response|>"),
    }
)
_MORE = (
    "<|role|>", "<|mid|>", "<|close|>", "<|calls|>", "<|/calls|>", "<|call_in|>", "<|args|>", "<|call_out|>",
    "<|outputs|>", "<|/outputs|>", "<|output|>", "<|/output|>", "<|channel|>", "<|system|>", "<|assistant|>",
    "<|response|>", "<|/response|>",
)  # fmt: skip
CALLS = (("<|calls|>", "<|/calls|>"), ("<|call_in|>", "<|call_out|>"))


@cache
def _tokenizer() -> bytes:
    made = Tokenizer.from_buffer(tokenizer_json())
    made.add_tokens([AddedToken(s, normalized=False, special=True) for s in _MORE])
    return made.to_str().encode()


@cache
def habit(template: str, parser: str = "plain") -> ChatModel:
    """A model around one of these templates. The plain parser: these are no families, but for the bridge."""
    stop = STOPS.get(template, ("<|close|>", "<|endoftext|>"))
    return ChatModel(ChatFiles(_tokenizer(), template, parser, stop, 32768, {"eos_token": "<|endoftext|>"}))


def rules_with(chat: ChatModel, calls: tuple[tuple[str, str], ...] = CALLS) -> Rules:
    """The rules of a model whose family had these call regions and `<think>`."""
    token, found = chat.codec.token, chat._probed[1]
    pairs = tuple((token(begin), token(end)) for begin, end in calls)
    made = {name: getattr(found, name) for name in Rules.__slots__}
    return Rules(**{**made, "calls": pairs, "reasoning": (token("<think>"), token("</think>"))})
