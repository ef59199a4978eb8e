"""Stops that open the next role's block, begin-of-sequence tokens, and what probes say of templates that lose calls."""

from __future__ import annotations

import msgspec

from tugline.core.columns import ids_list, last
from tugline.core.items import Assistant, Head, Item, System, ToolCall, ToolResult, UserText
from tugline.tokens.model import ChatFiles, ChatModel
from unit.tokens.chat_kit import CHATML, HEAD, NEXT_ROLE, model, tokenizer_json

START: list[Item] = [System("Be brief."), UserText("go")]
CALLED = Assistant(None, None, (ToolCall("c1", "run", "{}"),))
FIRST_CALL_ONLY = CHATML.replace(
    "{%- for c in m.tool_calls or [] %}", "{%- for c in (m.tool_calls or [])[:1] %}"
)  # fmt: skip


def test_a_stop_that_opens_the_result_is_not_opened_again() -> None:
    chat = model(NEXT_ROLE, ("<|user|>", "<|observation|>"))
    prompt = chat.render(HEAD, START).ids
    sampled = chat.encode("<tool_call>run\n{}</tool_call><|observation|>")
    made = chat.bridge(
        HEAD, [*START, CALLED], [ToolResult("c1", "ok")], last_id=last(sampled), finish="stop", sampled=sampled
    )
    whole = chat.decode(prompt) + chat.decode(sampled) + chat.decode(made.ids)
    assert made.drop == 0
    assert whole.count("<|observation|>") == 1
    assert "<|observation|>\nok" in whole


def test_no_begin_of_sequence_is_added_to_a_rendered_prompt() -> None:
    """Tokenizers of some families add one whenever they are asked to encode."""
    spec = msgspec.json.decode(tokenizer_json())
    bos = next(t["id"] for t in spec["added_tokens"] if t["content"] == "<|endoftext|>")
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [bos], "tokens": ["<|endoftext|>"]}},
    }
    template = "{{ '<|endoftext|>' }}" + CHATML
    chat = ChatModel(ChatFiles(msgspec.json.encode(spec), template, "qwen3", ("<|im_end|>",), 999))
    for text in ("go", "go <|im_end|> on", "x " * 20_000):
        assert ids_list(chat.render(Head(), [UserText(text)]).ids).count(bos) == 1
        assert bos not in ids_list(chat.encode(text))
    made = chat.bridge(
        Head(), [UserText("go"), Assistant("x")], [UserText("on")],
        last_id=chat.stop_ids[0], finish="stop", sampled=chat.encode("x<|im_end|>"),
    )  # fmt: skip
    assert bos not in ids_list(made.ids)


def test_probes_see_that_only_the_first_of_several_calls_is_shown() -> None:
    failed = {f.partition(":")[0] for f in model(FIRST_CALL_ONLY).probe().failures}
    assert {"P3_calls_2", "P3_calls_3"} <= failed
    assert "P3_calls_1" not in failed


def test_special_tokens_inside_a_reply_reach_the_agent() -> None:
    chat = model(CHATML)
    found = chat.parse(chat.encode("<|im_start|>assistant\n"), chat.encode("a<|im_start|>b<|im_end|>"), "stop", ())
    assert found.assistant.text == "a<|im_start|>b"
