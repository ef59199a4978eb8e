"""Long texts have the ids of short ones, and do not hold up other threads."""

from __future__ import annotations

import threading
import time

import pytest
from tokenizers import Tokenizer

from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import ids_list
from tugline.tokens.codec import LONG, SHORT, Codec

WORDS = 'Text, über 😀 lines\n\tand <|im_end|> numbers 1234 {"a": [1.0]} e\u0301 '


@pytest.fixture(scope="module")
def codec() -> Codec:
    return chat_model(PILOT).codec


@pytest.mark.parametrize("size", [LONG - 1, LONG, LONG + 1, 3 * LONG])
def test_a_long_text_has_the_stock_ids(codec: Codec, size: int) -> None:
    text = (WORDS * (size // len(WORDS) + 1))[:size]
    stock = Tokenizer.from_file(str(PILOT / "tokenizer.json"))
    assert ids_list(codec.encode(text)) == stock.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("times", [1, SHORT])
def test_controls_are_counted_in_short_and_long_columns(codec: Codec, times: int) -> None:
    assert codec.controls_in(codec.encode(WORDS * times)) == times
    assert codec.controls_in(codec.encode("plain " * times)) == 0


def test_other_threads_run_while_a_long_text_is_encoded(codec: Codec) -> None:
    text = WORDS * 30_000
    worker = threading.Thread(target=codec.encode, args=(text,))
    begun = last = time.perf_counter()
    longest = 0.0
    worker.start()
    while worker.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < (last - begun) / 2
