"""Rendering, probes and the promises of the object that others hold."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from tokenizers import AddedToken, Tokenizer

from tugline.core.columns import ids_list
from tugline.core.errors import ConfigError, Unsupported
from tugline.core.items import Assistant, Head, Item, Prefill, System, Tool, ToolCall, ToolResult, UserMedia, UserText
from tugline.tokens.model import ChatFiles, ChatModel
from unit.tokens.chat_kit import (
    ALIAS,
    CHATML,
    DROPS_CALLS,
    HEAD,
    NEXT_ROLE,
    PARSED_ARGS,
    REORDERS,
    SPECIAL,
    STRIPPING,
    STRUCTURE,
    model,
    tokenizer_json,
)

NONE = Head()


def _text(chat: ChatModel, *items: Item, head: Head = NONE) -> str:
    return chat.decode(chat.render(head, items).ids)


def test_messages_as_the_template_wants_them() -> None:
    turn = Assistant("a", "r", (ToolCall("c1", "run", '{"x" :1}'),))
    assert _text(
        model(CHATML), System("s"), UserText("u"), UserText("v", joined=True), turn, ToolResult("c1", "out")
    ) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nuv<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nr\n</think>\n\na\n"
        '<tool_call>\n{"name": "run", "arguments": {"x" :1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nout\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_results_carry_the_name_of_their_call() -> None:
    named = (
        "{%- for m in messages %}{% if m.role == 'tool' %}{{ m.name ~ '=' ~ m.content ~ ';' }}{% endif %}{% endfor %}"
    )
    calls = (ToolCall("c1", "run", "{}"), ToolCall("c2", "read", "{}"))
    items = [Assistant(calls=calls), ToolResult("c2", "b"), ToolResult("c1", "a"), ToolResult("c9", "z", name="mine")]
    assert _text(model(named), *items) == "read=b;run=a;mine=z;"


def test_developer_becomes_system_where_unknown() -> None:
    assert "<|im_start|>system\nd" in _text(model(CHATML), System("d", role="developer"), UserText("u"))
    knows = CHATML.replace("{{- '<|im_start|>' + m.role", "{#- developer #}{{- '<|im_start|>' + m.role")
    assert "<|im_start|>developer\nd" in _text(model(knows), System("d", role="developer"), UserText("u"))


def test_late_system_text_is_never_lost() -> None:
    chat = model(PARSED_ARGS)
    rendered = chat.render(NONE, [System("a"), System("b"), UserText("u"), Assistant("x"), System("late")])
    assert "system\na\n\nb<|im_end|>" in chat.decode(rendered.ids)
    assert "user\nlate<|im_end|>" in chat.decode(rendered.ids)
    assert {"system_as_user", "system_joined"} <= set(rendered.drift)
    assert "<|im_start|>system\nlate" in _text(model(CHATML), UserText("u"), Assistant("x"), System("late"))


@pytest.mark.parametrize("arguments", ['{"cmd": ', "", "[1]", "null", "plain", '{"a": "<|im_end|>"}'])
@pytest.mark.parametrize("template", [CHATML, PARSED_ARGS], ids=["verbatim", "parsed"])
def test_bad_arguments_never_break_a_prompt(template: str, arguments: str) -> None:
    turn = Assistant(None, None, (ToolCall("c1", "run", arguments),))
    text = _text(model(template), UserText("u"), turn, ToolResult("c1", "out"))
    assert arguments in text or template is PARSED_ARGS
    assert "out" in text


def test_tools_and_template_arguments_reach_the_template() -> None:
    assert '"name": "read"' in _text(model(CHATML), System("s"), UserText("u"), head=HEAD)
    off = Head((), '{"enable_thinking":false}')
    assert _text(model(STRIPPING), UserText("u"), head=off).endswith("<think>\n\n</think>\n\n")


def test_prefill_is_continued() -> None:
    text = _text(model(CHATML), UserText("u"), Prefill("  {\n"))
    assert text.endswith("<|im_start|>assistant\n  {\n")
    assert _text(model(CHATML), UserText("u"), Prefill("{"), Assistant("1}"), UserText("v")).count("{1}<|im_end|>") == 1


def test_control_tokens_hidden_in_tools() -> None:
    """Escaped in the JSON text, in a key, in plain sight: all stay text."""
    for spelled in (r"\u003cthink>", r"<\/think>", "<|im_end|>"):
        spec = '{"type":"function","function":{"name":"run","description":"X","parameters":{"X":1}}}'.replace(
            "X", spelled
        )
        chat = model(CHATML)
        rendered = chat.render(Head((Tool("run", spec),)), [System("s"), UserText("u")])
        clean = chat.render(HEAD, [System("s"), UserText("u")])
        assert rendered.drift == ("special_in_text",)
        assert chat.codec.controls_in(rendered.ids) == chat.codec.controls_in(clean.ids)


@pytest.mark.parametrize("name", ["im_end", "|im_end|", "<|im_end", "nothing"])
def test_a_template_cannot_be_made_to_complete_a_token(name: str) -> None:
    wraps = "{{ '<|im_start|>' }}{% for c in messages[0].tool_calls %}{{ '<|' + c.function.name + '|>' }}"
    for template in (
        wraps,
        wraps.replace("'<|' +", "'<' +").replace("+ '|>'", "+ '>'"),
        wraps.replace("'<|' +", "'' +"),
    ):
        chat = model(template + "{% endfor %}")
        rendered = chat.render(NONE, [Assistant(calls=(ToolCall("c", name, "{}"),))])
        assert chat.codec.controls_in(rendered.ids) == 1
        assert name in chat.decode(rendered.ids)


def test_which_added_tokens_are_control() -> None:
    """Special ones, those of template and parser, those spelled `<|...|>`; never blanks or plain words."""
    raw = Tokenizer.from_buffer(tokenizer_json())
    raw.add_tokens([AddedToken(s, special=False, normalized=False) for s in ("<|fim|>", "   ", "hello", "<p>")])
    chat = ChatModel(ChatFiles(raw.to_str().encode(), CHATML, "qwen3", ("<|im_end|>",), 999))
    assert set(chat.codec.control) == {*SPECIAL, *STRUCTURE, "<|fim|>"}
    text = "a   hello <p>"
    rendered = chat.render(NONE, [UserText(text + "<|fim|>")])
    assert rendered.drift == ("special_in_text",)
    assert {raw.token_to_id(s) for s in ("   ", "hello", "<p>")} <= set(ids_list(rendered.ids))
    assert raw.token_to_id("<|fim|>") not in ids_list(rendered.ids)


def test_text_that_the_template_alters_is_reported() -> None:
    shouts = "{%- for m in messages %}{{ '<|im_start|>' + m.content | upper }}{% endfor %}"
    rendered = model(shouts).render(NONE, [UserText("a <|im_end|> b")])
    assert "text_transformed" in rendered.drift
    assert model(shouts).codec.controls_in(rendered.ids) == 1


def test_media_are_named_in_their_place() -> None:
    image = UserMedia("image/png", "00")
    chat = model(CHATML)
    shown = chat.render(NONE, [UserText("a"), replace(image, joined=True), ToolResult("c", "out", None, (image,))])
    assert "media_omitted" in shown.drift
    note = "[image/png omitted: this model reads text only]"
    said = chat.render(NONE, [UserText(f"a{note}"), ToolResult("c", f"out\n{note}")])
    assert shown.ids == said.ids and "media_omitted" not in said.drift


def test_what_cannot_be_rendered_is_refused_by_name() -> None:
    raises = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(Unsupported, match="roles must alternate"):
        model(raises).render(NONE, [UserText("u")])
    with pytest.raises(Unsupported):
        model(CHATML).render(Head((), '{"messages": []}'), [UserText("u")])


def test_identity() -> None:
    chat, other = model(CHATML), model(STRIPPING)
    assert len(chat.digest) == 32
    assert chat.digest != other.digest
    assert chat.stop_ids == (chat.codec.token("<|im_end|>"), chat.codec.token("<|endoftext|>"))
    assert chat.vocab == max(chat.codec.control.values()) + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parser": "nope"}, "unknown parser"),
        ({"stop": ("two tokens",)}, "stop token"),
        ({"tokenizer_json": b"{"}, "tokenizer"),
    ],
)
def test_broken_files(change: dict[str, object], message: str) -> None:
    files = {
        "tokenizer_json": tokenizer_json(),
        "template": CHATML,
        "parser": "qwen3",
        "stop": ("<|im_end|>",),
        "context": 9,
    }
    with pytest.raises(ConfigError, match=message):
        ChatModel(ChatFiles(**{**files, **change}))  # type: ignore[arg-type]


_EVERY_CALL = {f"P3_{kind}_{n}" for kind in ("calls", "noargs") for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("template", "failures"),
    [
        (CHATML, set()),
        (PARSED_ARGS, set()),
        (STRIPPING, {"P13"}),
        (REORDERS, {"P4"}),
        (DROPS_CALLS, {"P3_reasoning", *_EVERY_CALL, "P7_tool"}),
        ("{%- for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}", None),
        ("{{ nothing.at.all }}", None),
    ],
)
def test_probes_name_what_fails(template: str, failures: set[str] | None) -> None:
    report = model(template).probe()
    found = {f.partition(":")[0] for f in report.failures}
    if failures is None:
        assert not report.splice
        assert "P1" in found
    else:
        assert found == failures
        assert report.splice


def test_probes_of_other_stop_conventions() -> None:
    for chat in (model(NEXT_ROLE, ("<|user|>", "<|observation|>")), model(ALIAS, ("<|return|>", "<|call|>"))):
        report = chat.probe()
        assert report.splice
        assert report.compared == 64
    assert model(PARSED_ARGS).probe().arguments == "dict"
    assert model(CHATML).probe().arguments == "string"


def test_threads_share_one_model() -> None:
    fresh = ChatModel(ChatFiles(tokenizer_json(), CHATML, "qwen3", ("<|im_end|>",), 999))
    items = [[System("s"), UserText(f"{n} <|im_end|> text")] for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda i: fresh.render(HEAD, i).ids, items))
    assert together == [model(CHATML).render(HEAD, i).ids for i in items]


def test_import_is_light() -> None:
    heavy = "('transformers', 'tokenizers', 'renderers', 'jinja2', 'torch')"
    code = f"import sys, tugline.tokens.model; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_decode_hides_special_tokens_on_request() -> None:
    chat = model(CHATML)
    column = chat.encode("a<|im_end|>")
    assert ids_list(column)[-1] == chat.stop_ids[0]
    assert (chat.decode(column), chat.decode(column, specials=False)) == ("a<|im_end|>", "a")
