"""A verdict is tried out once: it comes back whole from where it was kept, never from a file that is not its own."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tugline.core.items import Assistant, System, UserText
from tugline.tokens.model import ChatFiles, ChatModel
from tugline.tokens.probes import kept
from tugline.tokens.probes.verdict import SCHEMA, Verdict
from unit.tokens.chat_kit import CHATML, HEAD, PARSED_ARGS, STRIPPING, tokenizer_json

FILES = ChatFiles(tokenizer_json(), STRIPPING, "qwen3", ("<|im_end|>",), 4096, {"eos_token": "<|im_end|>"})


class Memory:
    """A cache in a dict that remembers what was asked of it."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.puts = 0

    def get(self, key: str) -> bytes | None:
        return self.held.get(key)

    def put(self, key: str, value: bytes) -> None:
        self.puts += 1
        self.held[key] = value


class Untried(ChatModel):
    """A model whose template must not be tried out."""

    def _try_out(self):
        raise AssertionError("the verdict was at hand")


def test_a_verdict_comes_back_whole() -> None:
    memory = Memory()
    first = ChatModel(FILES, memory)
    told = first.probe()
    second = Untried(FILES, memory)
    assert second.probe() == told
    assert told.switches and told.follows and told.promises, "there is something to bring back"
    assert second._judged == first._judged and second._renderer.shape == first._renderer.shape
    assert memory.puts == 1


def test_a_kept_verdict_bridges_as_a_fresh_one() -> None:
    memory = Memory()
    ChatModel(FILES, memory).probe()
    start = [System("s"), UserText("u"), Assistant("x")]
    sampled = ChatModel(FILES).encode("x<|im_end|>")
    made = [
        chat.bridge(HEAD, start, [UserText("v")], last_id=chat.stop_ids[0], finish="stop", sampled=sampled)
        for chat in (ChatModel(FILES), Untried(FILES, memory))
    ]
    assert made[0] == made[1]


@pytest.mark.parametrize(
    "change",
    [
        {"template": CHATML},
        {"stop": ("<|im_end|>", "<|endoftext|>")},
        {"parser": "plain"},
        {"specials": {"eos_token": "<|endoftext|>"}},
        {"tokenizer_json": tokenizer_json() + b"\n"},
    ],
    ids=lambda c: next(iter(c)),
)
def test_whatever_a_verdict_depends_on_is_in_its_key(change: dict[str, object]) -> None:
    memory = Memory()
    ChatModel(FILES, memory).probe()
    ChatModel(replace(FILES, **change), memory).probe()  # type: ignore[arg-type]
    assert len(memory.held) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda good: b"",
        lambda good: b"{}",
        lambda good: good[:-1],
        lambda good: good.replace(b'"splice"', b'"none"', 1),
        lambda good: b"\xff\x00" * 40,
    ],
    ids=["empty", "other", "cut", "altered", "binary"],
)
def test_a_damaged_file_is_ignored_and_written_anew(damage) -> None:
    memory = Memory()
    told = ChatModel(FILES, memory).probe()
    (key,) = memory.held
    good = memory.held[key]
    memory.held[key] = damage(good)
    assert memory.held[key] != good
    assert ChatModel(FILES, memory).probe() == told
    assert memory.held[key] == good and memory.puts == 2


def test_a_file_of_another_model_or_schema_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    ChatModel(FILES, memory).probe()
    ((key, good),) = memory.held.items()
    assert kept.unpack(key, good) is not None
    assert kept.unpack("0" * 64, good) is None
    monkeypatch.setattr(kept, "SCHEMA", SCHEMA + 1)
    assert kept.unpack(key, good) is None


@pytest.mark.parametrize("template", [CHATML, STRIPPING, PARSED_ARGS, "{{ nothing.at.all }}"])
def test_a_verdict_is_json_and_back(template: str) -> None:
    told = ChatModel(replace(FILES, template=template)).probe()
    assert msgspec.json.decode(msgspec.json.encode(told), type=Verdict) == told
    assert told.schema == SCHEMA
