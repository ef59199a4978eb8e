"""The work of bridging does not grow with the session; that of encoding hostile text grows no faster than the text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import FrameType

import pytest

import tugline.tokens.codec as codec_module
from tugline.core.columns import concat, ids, last
from tugline.core.items import Assistant, Item, System, ToolCall, ToolResult, UserText
from tugline.tokens.codec import Codec
from tugline.tokens.marks import Screen
from tugline.tokens.model import ChatModel
from unit.tokens.chat_kit import CHATML, HEAD, STRIPPING, model
from unit.tokens.odd_tokenizers import TEMPLATE, tokenizer


def _session(turns: int) -> list[Item]:
    items: list[Item] = [System("Be brief."), UserText("Go.")]
    for n in range(turns):
        call = ToolCall(f"c{n:04d}", "run", f'{{"cmd": "step {n:04d}"}}')
        items += [Assistant("Next.", None, (call,)), ToolResult(call.id, "a line of output\n" * 30)]
    return items


def _bridge(chat: ChatModel, turns: int) -> Callable[[], object]:
    items = _session(turns)
    sampled = concat([chat.encode("Next."), ids([chat.stop_ids[0]])])
    return lambda: chat.bridge(HEAD, items[:-1], items[-1:], last_id=last(sampled), finish="stop", sampled=sampled)


def _python_calls(run: Callable[[], object]) -> int:
    calls = 0

    def seen(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        run()
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("template", [CHATML, STRIPPING], ids=["keeps", "strips"])
def test_a_bridge_costs_the_same_at_every_turn(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = model(template)
    lengths: list[int] = []
    stock = codec_module._encoded

    def counting(made: object, text: str) -> list[int]:
        lengths.append(len(text))
        return stock(made, text)

    monkeypatch.setattr(codec_module, "_encoded", counting)
    encoded, calls = [], []
    for turns in (1, 10, 100):
        run = _bridge(chat, turns)
        run()
        lengths.clear()
        calls.append(_python_calls(run))
        encoded.append(sum(lengths))
    assert encoded[0] == encoded[1] == encoded[2] > 30 * 17
    assert max(calls) < 1.02 * min(calls), calls
    lengths.clear()
    chat.render(HEAD, _session(100))
    assert sum(lengths) > 50 * encoded[0], "the whole prompt, for comparison"


@pytest.mark.parametrize("text", ["<", "<|", "<|im_", "|>", " <s", "</"])
def test_near_misses_are_screened_in_linear_time(text: str) -> None:
    """A thousand control tokens, and text that nearly spells one at every place."""
    contents = [f"<|reserved_special_token_{n}|>" for n in range(1_000)]
    screen = Screen(["<s>", "</s>", *contents])
    long = text * (400_000 // len(text))
    begun = time.process_time()
    screen.free(long)
    screen.clean(long)
    screen.free_json('{"a": "' + long + '"}')
    assert time.process_time() - begun < 5


def test_blanks_before_tokens_that_swallow_them_are_encoded_in_linear_time() -> None:
    chat = Codec(tokenizer("swallows-left"), TEMPLATE, ())
    begun = time.process_time()
    chat.encode_marked("<s>" + " " * 200_000 + "x", str)
    assert time.process_time() - begun < 5
