"""Where a template reads reasoning from, and templates that refuse it beside text in a turn that calls tools."""

from __future__ import annotations

from tugline.core.items import Assistant, ToolCall, ToolResult, UserText
from unit.tokens.chat_kit import HEAD, model

HARMONY = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{%- if m.tool_calls and m.content and m.thinking %}{{ raise_exception('not both') }}{% endif %}"
    "{{- m.thinking or '' }}|{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.arguments }}]{% endfor %}"
    "<|im_end|>\n{% endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = ToolCall("c1", "run", '{"cmd": "ls"}')


def shown(template: str, turn: Assistant) -> tuple[str, tuple[str, ...]]:
    chat = model(template)
    made = chat.render(HEAD, [UserText("go"), turn, ToolResult("c1", "ok")])
    return chat.decode(made.ids), made.drift


def test_text_and_reasoning_stand_together_where_the_template_refuses_both() -> None:
    text, drift = shown(HARMONY, Assistant("I look.", "Think.", (CALL,)))
    assert 'Think.\n\nI look.|[{"cmd": "ls"}]' in text and "text_in_reasoning" in drift


def test_they_stand_apart_where_it_takes_both() -> None:
    free = HARMONY.replace("{{ raise_exception('not both') }}", "")
    text, drift = shown(free, Assistant("I look.", "Think.", (CALL,)))
    assert 'Think.|I look.[{"cmd": "ls"}]' in text and "text_in_reasoning" not in drift
    text, drift = shown(HARMONY, Assistant("I look.", None, (CALL,)))
    assert "|I look.[" in text and "text_in_reasoning" not in drift


def test_the_key_that_the_template_reads() -> None:
    for key in ("reasoning_content", "thinking", "reasoning"):
        text, _ = shown(HARMONY.replace("m.thinking", f"m.{key}"), Assistant(None, "Think.", (CALL,)))
        assert "Think.|[" in text, key
