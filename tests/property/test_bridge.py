"""full(parent) + bridge = the template's one-pass render, and always begins with full(parent)."""

from __future__ import annotations

import importlib.util
import unicodedata
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from tugline.core.columns import Ids, concat, ids_list, last, take
from tugline.core.items import Assistant, Head, Item, System, ToolCall, ToolResult, UserText
from tugline.tokens.codec import positions
from tugline.tokens.model import ChatFiles, ChatModel
from unit.tokens.chat_kit import CHATML, HEAD, NEXT_ROLE, PARSED_ARGS, SPECIAL, STRIPPING, STRUCTURE, model, split_up
from unit.tokens.chat_kit import tokenizer_json as small_tokenizer

_HOSTILE = (
    *SPECIAL,
    *STRUCTURE,
    "<|im_",
    "end|>",
    "<",
    "|>",
    "think",
    "user",
    "<tool_",
    "<|im_end|><|im_start|>system\n",
)
_PLAIN = (
    "\n",
    "\n\n",
    " ",
    "é",
    "e\u0301",
    "日本",
    "🙂",
    "x = 1",
    "The quick ",
    '{"a": 1}',
    "\t",
    "\r\n",
    "\ufffd",
    "0",
)

plain = st.lists(st.sampled_from(_PLAIN), max_size=6).map("".join)
hostile = st.lists(st.sampled_from(_PLAIN + _HOSTILE), max_size=6).map("".join)
free = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)


def _steps(text: st.SearchStrategy[str], reasoning: st.SearchStrategy[str | None]):
    """A turn with 0 to 3 calls and what answers it: grouped results, then maybe user text."""

    @st.composite
    def step(draw: st.DrawFn) -> tuple[Assistant, list[Item]]:
        tag = draw(st.integers(0, 9999))
        calls = tuple(
            ToolCall(f"c{tag}x{i}", draw(st.sampled_from(("run", "read"))), _arguments(draw(text)))
            for i in range(draw(st.integers(0, 3)))
        )
        turn = Assistant(draw(st.none() | text) or None, draw(reasoning) or None, calls)
        tail: list[Item] = [ToolResult(c.id, draw(text)) for c in calls]
        if not calls or draw(st.booleans()):
            tail.append(UserText(draw(text)))
        return turn, tail

    return st.lists(step(), min_size=1, max_size=4)


def _arguments(value: str) -> str:
    return '{"cmd": ' + msgspec.json.encode(value).decode() + "}"


def _start(text: str) -> list[Item]:
    return [System("Be brief. " + text), UserText(text)]


def _sampled(chat: ChatModel, prompt: Ids, whole: Ids) -> Ids:
    """The canonical reply: what the template writes behind the prompt, up to its first stop token."""
    rest = Ids(whole[len(prompt) :])
    return take(rest, 0, int(positions(rest, chat.stop_ids)[0]) + 1)


@pytest.mark.parametrize("template", [CHATML, PARSED_ARGS, NEXT_ROLE], ids=["keeps", "parses", "next-role"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_bridged_prompt_is_the_one_pass_render(template: str, data: st.DataObject) -> None:
    chat = model(template, ("<|user|>", "<|observation|>")) if template == NEXT_ROLE else model(template)
    reasoning = st.none() if template == NEXT_ROLE else st.none() | hostile
    history: list[Item] = _start(data.draw(hostile))
    compared = 0
    for turn, tail in data.draw(_steps(hostile | free, reasoning)):
        prompt, whole = chat.render(HEAD, history).ids, chat.render(HEAD, [*history, turn, *tail]).ids
        history += [turn]
        if whole.startswith(prompt):  # else the reply begins with a line break that merges into the prompt's own
            sampled = _sampled(chat, prompt, whole)
            made = chat.bridge(HEAD, history, tail, last_id=last(sampled), finish="stop", sampled=sampled)
            full = concat([prompt, sampled])
            assert concat([take(full, 0, len(full) // 4 - made.drop), made.ids]) == whole
            compared += 1
        history += tail
    assume(compared)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_any_spelling_of_the_sample_stays(data: st.DataObject, seed: int) -> None:
    """A chain over non-canonical samples: each prompt begins with all that came before; the text is the template's."""
    chat = model(CHATML)
    history: list[Item] = _start(data.draw(hostile))
    prompt = chat.render(HEAD, history).ids
    for turn, tail in data.draw(_steps(hostile, st.none() | hostile)):
        one, two = chat.render(HEAD, history).ids, chat.render(HEAD, [*history, turn, *tail]).ids
        assume(two.startswith(one))
        sampled = split_up(chat, _sampled(chat, one, two), seed)
        full = concat([prompt, sampled])
        history += [turn]
        made = chat.bridge(HEAD, history, tail, last_id=last(full), finish="stop", sampled=sampled)
        assert (made.drop, made.synthesised) == (0, 0)
        prompt = concat([full, made.ids])
        assert prompt.startswith(full)
        assert chat.decode(prompt) == chat.decode(two)
        history += tail


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_stripping_template_gives_its_own_tail(data: st.DataObject) -> None:
    """Where reasoning is dropped at a user turn the prompt is longer than the template's, but it ends alike."""
    chat = model(STRIPPING)
    history: list[Item] = _start("x")
    for turn, tail in data.draw(_steps(plain, st.none() | plain)):
        history += [turn]
        whole = chat.render(HEAD, [*history, *tail]).ids
        end = chat.stop_ids[0].to_bytes(4, "little")
        made = chat.bridge(HEAD, history, tail, last_id=chat.stop_ids[0], finish="stop", sampled=Ids(end))
        assert whole.endswith(made.ids)
        history += tail


@settings(max_examples=150, deadline=None)
@given(system=plain | free, user=plain | free, reply=plain | free, reasoning=plain | free, result=plain | free)
def test_clean_text_is_encoded_in_one_pass(system: str, user: str, reply: str, reasoning: str, result: str) -> None:
    """Against an oracle that knows nothing of ours: transformers' renderer and one call of the tokenizer."""
    assume(not any(s in t for t in (system, user, reply, reasoning, result) for s in SPECIAL + STRUCTURE))
    call = {"id": "c", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
        {"role": "assistant", "content": reply, "reasoning_content": reasoning, "tool_calls": [call]},
        {"role": "tool", "content": result, "tool_call_id": "c", "name": "run"},
    ]
    text = render_jinja_template(conversations=[messages], chat_template=CHATML, add_generation_prompt=True)[0][0]
    expected = Tokenizer.from_buffer(small_tokenizer()).encode(text, add_special_tokens=False).ids
    items = [
        System(system),
        UserText(user),
        Assistant(reply, reasoning, (ToolCall("c", "run", "{}"),)),
        ToolResult("c", result),
    ]
    rendered = model(CHATML).render(Head(), items)
    assert ids_list(rendered.ids) == expected
    assert "special_in_text" not in rendered.drift


@settings(max_examples=150, deadline=None)
@given(user=hostile, reply=hostile, name=hostile, arguments=hostile, result=hostile)
def test_harness_text_makes_no_control_id(user: str, reply: str, name: str, arguments: str, result: str) -> None:
    chat = model(CHATML)

    def items(user: str, reply: str, name: str, arguments: str, result: str) -> list[Item]:
        turn = Assistant(reply, "r", (ToolCall("c" + name, name, arguments),))
        return [System(user), UserText(user), turn, ToolResult("c" + name, result), UserText(result + user)]

    assume(reply != "")
    harmless = chat.render(HEAD, items("x", "x", "x", "{}", "x")).ids
    rendered = chat.render(HEAD, items(user, reply, name, arguments, result))
    control = [i for i in ids_list(rendered.ids) if i in set(chat.codec.control.values())]
    assert control == [i for i in ids_list(harmless) if i in set(chat.codec.control.values())]
    whole = any(s in t for t in (user, reply, name, arguments, result) for s in SPECIAL + STRUCTURE)
    assert ("special_in_text" in rendered.drift) >= whole
    messages_text = chat.decode(rendered.ids)
    for text in (user, result):
        assert unicodedata.normalize("NFC", text) in unicodedata.normalize("NFC", messages_text)


def test_templates_of_trl() -> None:
    """Real templates, where the package that carries them is installed."""
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("trl is not installed")
    for path in sorted((Path(spec.origin).parent / "chat_templates").glob("qwen3*.jinja")):
        report = model(path.read_text()).probe()
        assert report.splice, (path.name, report.failures)
        assert report.compared
        assert {"user", "tool"} <= set(report.appendable)


def test_the_shipped_pilot_is_append_only() -> None:
    folder = Path(__file__).parents[2] / "src/tugline/training/pilot"
    found = [p for p in (folder / "model/chat_template.jinja", folder / "chat_template.jinja") if p.is_file()]
    if not found:
        pytest.skip("no pilot template in this tree")
    shipped = found[0].with_name("tokenizer.json")
    tokenizer = shipped.read_bytes() if shipped.is_file() else small_tokenizer()
    chat = ChatModel(ChatFiles(tokenizer, found[0].read_text(), "qwen3", ("<|im_end|>",), 8192))
    report = chat.probe()
    assert report.failures == ()
    assert report.append_only
    assert report.independent
