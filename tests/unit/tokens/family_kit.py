"""A small tokenizer for each family, with its markers as tokens, and turns that its models may write."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache

import msgspec
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from tugline.core.columns import Ids, concat, ids, ids_list
from tugline.core.items import Assistant, Tool, ToolCall
from tugline.tokens.families import Family, families
from tugline.tokens.model import ChatFiles, ChatModel
from unit.tokens.chat_kit import tokenizer_json as base_json

NAMES = tuple(name for name in families() if name not in ("plain", "schema"))
LETTERS = {"laguna-xs": ("<arg_key>",), "laguna-s": ("<arg_key>",)}
"""Markers that the family's own tokenizers do not have as tokens."""
NO_REASONING = ("llama3",)
ONE_CALL = ("gpt-oss",)
TEXT_OR_CALLS = ("llama3",)
OWN_IDS = ("kimi-k2", "mistral", "mistral-ids", "cohere", "cohere-text")
VERBATIM = ("qwen3", "granite-4", "deepseek-v3", "deepseek-v3.1", "kimi-k2", "gpt-oss", "inkling", "llama3", "mistral",
            "mistral-ids", "mistral-args", "cohere", "cohere-text")  # fmt: skip
"""Families whose arguments are JSON: the very characters sampled come back."""
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"

TOOLS = (
    Tool(
        "run",
        '{"type":"function","function":{"name":"run","parameters":{"type":"object","properties":{'
        '"cmd":{"type":"string"},"n":{"type":"integer"},"x":{"type":"number"},"on":{"type":"boolean"},'
        '"many":{"type":"array"},"some":{"type":"object"},"may":{"type":["string","null"]},"漢":{"type":"string"}}}}}',
    ),
    Tool("read_file", '{"type":"function","function":{"name":"read_file"}}'),
)


def strings(family: Family) -> tuple[str, ...]:
    """Every token of the family."""
    header = (family.form.header.strip(),) if family.form.header.strip().startswith(("<", "[", "]")) else ()
    single = tuple(h for h in header if h.count("<") + h.count("]") == 1)
    return tuple(dict.fromkeys((*family.markers, *family.stop, *single)))


@cache
def raw(name: str) -> Tokenizer:
    """The family's tokenizer by itself."""
    family = families()[name]
    tok = Tokenizer.from_buffer(base_json())
    letters = LETTERS.get(name, ())
    tokens = [s for s in strings(family) if s not in family.stop and not any(x in s for x in letters)]
    tok.add_special_tokens([AddedToken(s, normalized=False) for s in family.stop])
    tok.add_tokens([AddedToken(s, normalized=False, special=False) for s in tokens])
    return tok


@cache
def chat(name: str) -> ChatModel:
    """A chat model of the family. Its template is of no use: only its replies are."""
    stop = families()[name].stop
    return ChatModel(ChatFiles(raw(name).to_str().encode(), TEMPLATE, name, stop, 32768))


def split_up(name: str, column: Ids, seed: int) -> Ids:
    """Another spelling of the same text: some ordinary tokens are replaced by the tokens of their bytes."""
    rng, tok, model = random.Random(seed), raw(name), chat(name)
    control = set(model.codec.control.values())
    out: list[Ids] = []
    for value in ids_list(column):
        piece = tok.id_to_token(value) or ""
        if value not in control and len(piece) > 1 and rng.random() < 0.7:
            out.append(ids(tok.token_to_id(c) for c in piece))
        else:
            out.append(ids([value]))
    return concat(out)


def prompts(name: str) -> list[str]:
    """Ends of prompts: the turn begun, reasoning opened, reasoning closed again."""
    family = families()[name]
    form, (opener, closer) = family.form, family.reasoning
    found = [form.header]
    if opener:
        found += [form.header + opener + form.lead, form.header + opener]
        found += [f"{form.header}{opener}{form.lead}{form.trail}{closer}{form.behind}", form.header + closer]
    return found


_WORDS = st.sampled_from(
    ["漢字", "a b", "é", "x = [1, 2]", "Look.", "\n  indented", "{", "}", "'", '"', "\\", "👩‍💻", "a\n\nb"]
)
PROSE = st.lists(_WORDS, min_size=1, max_size=5).map(" ".join).map(lambda t: f"«{t}»")
"""Text without line breaks or blanks at its ends: what templates take off there is theirs."""


_UNTYPED = st.dictionaries(st.sampled_from(["path", "漢"]), PROSE | st.integers(0, 99), max_size=2)
"""Without a schema what reads as JSON is JSON."""


def arguments(tool: str) -> st.SearchStrategy[str]:
    """JSON objects as a model may write them."""
    values = st.fixed_dictionaries(
        {},
        optional={
            "cmd": PROSE | st.sampled_from(["", " ", "true", "1", "null", "[]", "</x>", "\n", "line\n", "\n\nb"]),
            "n": st.integers(-9, 9**12),
            "on": st.booleans(),
            "many": st.lists(st.integers(0, 9) | PROSE | st.none() | st.booleans(), max_size=3),
            "some": st.dictionaries(st.sampled_from(["k", "漢"]), PROSE | st.integers(0, 9), max_size=2),
            "漢": PROSE,
        },
    )
    return (values if tool == "run" else _UNTYPED).map(lambda v: msgspec.json.encode(v).decode())


@st.composite
def turns(draw: Callable, name: str) -> Assistant:
    """Turns that the family can write."""
    text = draw(st.none() | PROSE)
    reasoning = None if name in NO_REASONING else draw(st.none() | PROSE)
    limit = 1 if name in ONE_CALL else 3
    calls = [
        ToolCall(_call_id(name, tool, n), tool, draw(arguments(tool)))
        for n, tool in enumerate(draw(st.lists(st.sampled_from(["run", "read_file"]), max_size=limit)))
    ]
    if name in TEXT_OR_CALLS and calls:
        text = None
    return Assistant(text, reasoning, tuple(calls))


def _call_id(name: str, tool: str, n: int) -> str:
    match name:
        case "kimi-k2":
            return f"functions.{tool}:{n + 4}"
        case "mistral" | "mistral-ids":
            return f"abcdefgh{n}"
        case "cohere" | "cohere-text":
            return str(n + 2)
    return ""
