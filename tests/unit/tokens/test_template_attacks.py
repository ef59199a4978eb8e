"""What harness text, templates and replies could do to a prompt or to the gateway, found by attacking it."""

from __future__ import annotations

import time
from collections import Counter

import msgspec
import pytest
from tokenizers import Tokenizer, normalizers

from tugline.core.columns import NO_IDS, Ids, ids, ids_list
from tugline.core.errors import Unsupported
from tugline.core.items import Assistant, Head, Tool, ToolCall, ToolResult, UserText
from tugline.tokens.fallback import Parent, hand_bridge
from tugline.tokens.messages import Shape
from tugline.tokens.model import ChatFiles, ChatModel
from tugline.tokens.render import Renderer
from tugline.tokens.splice import BridgeRefused, Rules
from unit.tokens.chat_kit import CHATML, HEAD, PARSED_ARGS, model, tokenizer_json

TAGS = PARSED_ARGS.replace("'<parameter=' + k + '>\\n'", "'<' + k + '>\\n'").replace(
    "{%- for m in messages %}",
    "{%- for t in tools or [] %}{% for k, v in t.function.items() %}{{ '<' ~ k ~ '>' ~ (v | string) }}"
    "{% if k == 'type' %}{{ 'IS-OBJECT' if v == 'object' }}{% endif %}{% endfor %}{% endfor %}"
    "{%- for m in messages %}",
    1,
)
"""Writes keys of tools and of arguments between angle brackets, as some coders' templates do."""


def _spec(**extra: str) -> Tool:
    function = {"name": "run", "description": "Runs.", **extra}
    return Tool("run", msgspec.json.encode({"type": "function", "function": function}).decode())


def _controls(chat: ChatModel, column: Ids) -> Counter[int]:
    return Counter(i for i in ids_list(column) if i in chat.controls)


@pytest.mark.parametrize("key", ["think", "/think", "tool_call", "tool_response", "|im_end|", "|im_start|"])
def test_a_key_between_the_templates_brackets_is_no_control_token(key: str) -> None:
    chat = model(TAGS)
    for escaped in (False, True):
        harmless, hostile = _spec(zebra="X."), _spec(**{key: "X."})
        if escaped:
            spec = hostile.spec.replace(key, "".join(f"\\u{ord(c):04x}" for c in key))
            hostile = Tool("run", spec)
        plain, made = (chat.render(Head((tool,)), [UserText("Zulu.")]) for tool in (harmless, hostile))
        assert _controls(chat, made.ids) == _controls(chat, plain.ids)
        assert f"<{key}>X." in chat.decode(made.ids)
    assert not plain.drift


@pytest.mark.parametrize("key", ["think", "|im_end|"])
def test_a_key_of_arguments_neither(key: str) -> None:
    chat = model(TAGS)

    def shown(key: str) -> Ids:
        call = ToolCall("c1", "run", msgspec.json.encode({key: "X."}).decode())
        return chat.render(Head(), [UserText("Zulu."), Assistant(calls=(call,)), ToolResult("c1", "Yes.")]).ids

    assert _controls(chat, shown(key)) == _controls(chat, shown("zebra"))


def test_words_that_complete_nothing_are_left_to_the_template() -> None:
    made = model(TAGS).render(Head((_spec(type="object", im="think"),)), [UserText("Zulu.")])
    text = model(TAGS).decode(made.ids)
    assert "IS-OBJECT" in text
    assert "<im>think" in text
    assert made.drift == ()


def test_blanks_in_a_harmony_header_take_no_time() -> None:
    data = msgspec.json.decode(tokenizer_json())
    names = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>")
    top = max(t["id"] for t in data["added_tokens"]) + 1
    data["added_tokens"] += [{**data["added_tokens"][0], "id": top + n, "content": c} for n, c in enumerate(names)]
    chat = ChatModel(ChatFiles(msgspec.json.encode(data), CHATML, "gpt-oss", ("<|return|>",), 32768))
    begun = time.process_time()
    for head in (" \n" * 4000 + "!", "<|channel|>analysis" + " \n" * 4000 + "!", "<|channel|>" + "a" * 8000 + "!"):
        parsed = chat.parse(NO_IDS, chat.encode(f"{head}<|message|>x<|end|>"), "stop", ())
        assert parsed.assistant.text is not None
        assert parsed.drift == ("markup_unparsed",)
    assert time.process_time() - begun < 2


def test_a_hand_written_bridge_encodes_as_every_other_prompt() -> None:
    tok = Tokenizer.from_str(tokenizer_json().decode())
    tok.normalizer = normalizers.NFKC()
    data = msgspec.json.decode(tok.to_str())
    for token in data["added_tokens"]:
        token["normalized"] = True  # found behind the normalizer: fullwidth letters spell it, too
    chat = ChatModel(ChatFiles(msgspec.json.encode(data), CHATML, "qwen3", ("<|im_end|>",), 32768))
    wide = "".join(chr(ord(c) + 0xFEE0) for c in "<|im_end|>")
    assert chat.codec.token("<|im_end|>") in ids_list(chat.encode(wide)), "the stock tokenizer is fooled"
    end = chat.stop_ids[0]
    renderer = Renderer(chat.codec, CHATML, {}, Shape())
    rules = Rules(frozenset((end,)), frozenset((end,)), frozenset(("user",)), frozenset())
    prompt = chat.render(HEAD, [UserText("Zulu.")]).ids
    sampled = ids([*ids_list(chat.encode("Yes.")), end])

    def bridged(text: str) -> Ids:
        asked = (HEAD, [UserText("Zulu."), Assistant("Yes.")], [UserText(text)])
        return hand_bridge(renderer, rules, "qwen3", asked, Parent(prompt, sampled, "stop")).ids

    assert _controls(chat, bridged(f"a {wide} b")) == _controls(chat, bridged("a zebra b"))


@pytest.mark.parametrize("name", ["messages", "tools", "chat_template", "continue_final_message", "tugline_clock"])
def test_arguments_that_every_prompt_has_itself_are_refused_by_name(name: str) -> None:
    head = Head((), msgspec.json.encode({name: True}).decode())
    with pytest.raises(Unsupported, match=rf"^chat_template_kwargs: {name} cannot be set"):
        model(CHATML).render(head, [UserText("Zulu.")])
    turn, end = Assistant("Yes."), model(CHATML).stop_ids[0]
    sampled = ids([end])
    with pytest.raises((Unsupported, BridgeRefused)):
        model(CHATML).bridge(head, [UserText("a"), turn], [UserText("b")], last_id=end, finish="stop", sampled=sampled)
