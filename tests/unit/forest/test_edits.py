"""Names of edits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tugline.core.items import Assistant
from tugline.forest.edits import changes, edits
from unit.forest.driver import respell, say


@pytest.mark.parametrize(
    ("ours", "theirs", "named"),
    [
        ('{"k" :  "v"}', '{"k":"v"}', "json_respell"),
        ('{"k": "\\u00e9"}', '{"k":"é"}', "unicode_respell"),
        ('{"k": "é"}', '{"k": "\\u00e9"}', "unicode_respell"),
        ('{"k": 1.0}', '{"k":1}', "number_respell"),
        ('{"k": "1.0", "n": 1.0}', '{"k": "1.0", "n": 1}', "number_respell"),
        ('{"k": "a 1.0 b"}', '{"k":"a 1.0 b"}', "json_respell"),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', "key_order"),
        ('{"x": {"a": 1, "b": 2}}', '{"x": {"b": 2, "a": 1}}', "key_order"),
        ('{"command": "x", }', "{}", "args_lossy_known"),
        ("", "{}", "args_empty"),
    ],
)
def test_arguments(ours: str, theirs: str, named: str) -> None:
    assert edits(say(None, ours), say(None, theirs)) == (named,)
    assert changes(say(None, ours), say(None, theirs)) == ()


@pytest.mark.parametrize(
    ("ours", "theirs", "named"),
    [
        ("think ", None, "reasoning_dropped"),
        (" think\n", "think", "reasoning_trimmed"),
        (None, "think", "reasoning_added"),
        ("think", "think again", "reasoning_changed"),
    ],
)
def test_reasoning(ours: str | None, theirs: str | None, named: str) -> None:
    assert edits(say("x", reasoning=ours), say("x", reasoning=theirs)) == (named,)


def test_several_edits_at_once_are_all_named() -> None:
    ours = say("hi ", '{"n": 1.0}', '{"a" : 1}', reasoning="r")
    theirs = replace(respell(ours, lambda s: s.replace("1.0", "1").replace(" ", "")), text="hi", reasoning=None)
    assert edits(ours, theirs) == ("json_respell", "number_respell", "reasoning_dropped", "ws_trim")


def test_verbatim_is_no_edit() -> None:
    ours = say("hi", '{"n": 1.0}', reasoning="r")
    assert edits(ours, ours) == ()
    assert changes(ours, ours) == ()


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (say("hello wor", '{"a": 1}'), ("partial_echo",)),
        (say("hello moon", '{"a": 1}'), ("text_changed",)),
        (say("hello world"), ("call_removed",)),
        (say("hello", '{"a": 1}', "{}"), ("call_added", "text_changed")),
        (say("hello world", '{"a": 2}'), ("args_changed",)),
        (Assistant("hello world", None, ()), ("call_removed",)),
    ],
)
def test_changes(theirs: Assistant, named: tuple[str, ...]) -> None:
    assert changes(say("hello world", '{"a": 1}'), theirs) == named


def test_repaired_arguments_are_not_called_changed() -> None:
    assert changes(say(None, '{"a": 1, }'), say(None, '{"a": 1}')) == ("args_repaired",)
