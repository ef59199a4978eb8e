"""Tools without a description or parameters, which every API allows, under templates that take them for granted."""

from __future__ import annotations

from tugline.core.items import Head, Tool, UserText
from unit.tokens.chat_kit import model

LISTS = (
    "{%- if tools %}{% for t in tools %}{{ t.function.name + ': ' + t.function.description + ' '"
    " + (t.function.parameters.properties | tojson) }}{% endfor %}{% endif %}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PRINTS = LISTS.replace(
    "t.function.name + ': ' + t.function.description + ' ' + (t.function.parameters.properties | tojson)", "t | tojson"
)
BARE = Head((Tool("run", '{"type":"function","function":{"name":"run"}}'),))


def test_what_is_missing_is_given_as_empty_where_the_template_needs_it() -> None:
    chat = model(LISTS)
    assert chat.decode(chat.render(BARE, [UserText("x")]).ids).startswith("run:  {}<|im_start|>")
    half = Head((Tool("run", '{"type":"function","function":{"name":"run","description":"runs","parameters":null}}'),))
    assert chat.decode(chat.render(half, [UserText("x")]).ids).startswith("run: runs {}")


def test_other_templates_get_the_tool_as_it_is() -> None:
    chat = model(PRINTS)
    text = chat.decode(chat.render(BARE, [UserText("x")]).ids)
    assert text.startswith('{"type": "function", "function": {"name": "run"}}<|im_start|>')
