"""Halves of surrogate pairs, which JavaScript programs write when they cut a string inside a character."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.dialects.wire import whole_characters


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (rb'"a\ud83d"', rb'"a\ufffd"'),
        (rb'"\udc00b"', rb'"\ufffdb"'),
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\uD83D\uDE00"', rb'"\uD83D\uDE00"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\ufffd\ud83d\ude00"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\ufffd"'),
        (rb'"\ud83d\n\ude00"', rb'"\ufffd\n\ufffd"'),
        (rb'"\ud7ff\ue000\u00d8"', rb'"\ud7ff\ue000\u00d8"'),
    ],
)
def test_only_halves_change(before: bytes, after: bytes) -> None:
    assert whole_characters(before) == after


@given(st.text(st.characters(codec=None), max_size=40))
def test_the_result_is_text_and_whole_characters_stay(text: str) -> None:
    mended = json.loads(whole_characters(json.dumps(text).encode()))
    mended.encode("utf-8")
    assert mended == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert whole_characters(json.dumps(mended).encode()) == json.dumps(mended).encode()


@given(st.binary(max_size=60))
def test_any_bytes_pass(data: bytes) -> None:
    assert whole_characters(whole_characters(data)) == whole_characters(data)
