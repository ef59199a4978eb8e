"""Models that ship a `response_template` are read by transformers' own parser, and never raise."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tugline.core.columns import concat, ids
from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, ToolCall
from tugline.engines.modeldir import read_model_dir
from tugline.tokens.families import families, understood
from tugline.tokens.model import ChatFiles, ChatModel, Parsed
from unit.tokens.chat_kit import CHATML, STRUCTURE, TOOLS, tokenizer_json

TEMPLATE = msgspec.json.encode(
    {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "reasoning_content": {"open": "<think>", "close": "</think>"},
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close": "<|im_end|>"},
        },
    }
)
PROMPT = "<|im_end|>\n<|im_start|>assistant\n"


def model() -> ChatModel:
    files = ChatFiles(tokenizer_json(), CHATML, "schema", ("<|im_end|>",), 32768, response_template=TEMPLATE)
    return ChatModel(files)


def parse(text: str, finish: str = "stop", prompt: str = PROMPT) -> Parsed:
    chat = model()
    return chat.parse(chat.encode(prompt), chat.encode(text), finish, TOOLS)  # type: ignore[arg-type]


def test_reasoning_text_and_calls() -> None:
    text = '<think>hm</think>I look.<tool_call>{"name": "run", "arguments": {"cmd": "ls"}}</tool_call><|im_end|>'
    found = parse(text)
    assert found.assistant == Assistant("I look.", "hm", (ToolCall("", "run", '{"cmd":"ls"}'),))
    assert (found.finish, found.drift) == ("tool_calls", ())
    assert found.reasoning_tokens > 0


def test_the_prompt_may_have_opened_the_reasoning() -> None:
    assert parse("hm</think>Yes.", prompt=PROMPT + "<think>").assistant == Assistant("Yes.", "hm")


BLOCKS = (
    "oops",
    "[1]",
    '{"name": 3}',
    "[" * 5000,
    f'{{"name": "a", "arguments": {"9" * 5000}}}',
)


@pytest.mark.parametrize("block", [f"<tool_call>{b}</tool_call>" for b in BLOCKS])
def test_what_it_cannot_read_reaches_the_harness_as_text(block: str) -> None:
    text = f"Now:{block}"
    assert parse(text) == Parsed(Assistant(text), "stop", ("tool_parse_failed",), 0)
    assert parse(text, "length").drift == ("tool_call_cut",)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_nothing_sampled_raises(data: st.DataObject) -> None:
    chat = model()
    pieces = st.sampled_from([*STRUCTURE, '{"name": "run"}', "漢", "\n", "[", '"']).map(chat.encode)
    one = pieces | st.integers(0, chat.vocab - 1).map(lambda i: ids([i]))
    chat.parse(chat.encode(PROMPT), concat(data.draw(st.lists(one, max_size=12))), "length", TOOLS)


def test_a_template_that_transformers_does_not_understand_is_refused_at_the_start() -> None:
    assert understood(TEMPLATE)
    for bad in (b"", b"{}", b'{"fields": {"content": {"x-regex": "(.*)"}}}'):
        assert not understood(bad)
        with pytest.raises(ConfigError, match="response_template"):
            ChatModel(ChatFiles(tokenizer_json(), CHATML, "schema", ("<|im_end|>",), 4096, response_template=bad))


def test_a_directory_with_such_a_template_and_no_known_format(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json())
    (tmp_path / "chat_template.jinja").write_text("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}")
    settings_json = {"eos_token": "<|im_end|>", "response_template": msgspec.json.decode(TEMPLATE)}
    (tmp_path / "tokenizer_config.json").write_bytes(msgspec.json.encode(settings_json))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 4096, "vocab_size": 1000}')
    files = read_model_dir(tmp_path)
    assert (files.parser, files.sources["parser"]) == ("schema", "tokenizer_config.json [response_template]")
    settings_json.pop("response_template")
    (tmp_path / "tokenizer_config.json").write_bytes(msgspec.json.encode(settings_json))
    with pytest.raises(ConfigError, match="reply format"):
        read_model_dir(tmp_path)


def test_it_says_how_replies_are_read_not_written() -> None:
    family = families()["schema"]
    assert family.spell(Assistant("a")) == "a"
    with pytest.raises(ConfigError, match="not how they are written"):
        family.spell(Assistant("a", "b"))
