"""Strategies, template and encoding of the pilot: what it is taught is right, and is what the template renders."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tugline.tasks.families import FAMILIES, build
from tugline.training.pilot import MODEL_DIR
from tugline.training.pilot.actions import Run
from tugline.training.pilot.capture import find_bwrap
from tugline.training.pilot.conversation import encode, messages_of, render
from tugline.training.pilot.desk import Bench, Paper
from tugline.training.pilot.formats import Head, PiFormat
from tugline.training.pilot.strategies import MIXTURE, perform, play

tokenizers = pytest.importorskip("tokenizers")

FMT = PiFormat(Path("unused"))
TOOLS: tuple[dict[str, Any], ...] = (
    {"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "bash", "description": 'Says "é".', "parameters": {"required": ["x"]}}},
)
HEAD = Head("You act.", TOOLS)
CASES = [(f, s) for f in FAMILIES for s in MIXTURE]


def bench(work: Path) -> Bench:
    bwrap = find_bwrap()
    assert bwrap is not None
    return Bench(work, bwrap)


@pytest.mark.parametrize(("family", "strategy"), CASES)
def test_paper_is_the_bench_and_each_strategy_is_as_right_as_it_should_be(
    family: str, strategy: str, tmp_path: Path
) -> None:
    for index in range(3):
        instance = build(family, index, "heldout")
        played = perform(instance, strategy, Random(index))
        work = tmp_path / str(index)
        work.mkdir()
        for name, text in instance.files.items():
            (work / name).write_text(text)
        real, paper = bench(work), Paper(instance.files)
        for step, outcomes in played.steps:
            assert [real.do(a) for a in step.actions] == list(outcomes)
            assert [paper.do(a) for a in step.actions] == list(outcomes)
        now = {p.name: p.read_text() for p in work.iterdir()}
        assert now == paper.files
        held = all(
            path not in now if text is None else now.get(path, "\0").rstrip("\n") == text.rstrip("\n")
            for path, text in instance.expected.items()
        )
        assert held == (strategy in ("solve", "check"))
        last, _ = played.steps[-1]
        assert last.text
        assert not last.actions


def test_mixture_is_a_distribution_and_play_is_deterministic() -> None:
    assert sum(MIXTURE.values()) == pytest.approx(1.0)
    instance = build("edit-key", 0, "train")
    assert play(instance, Random(3)) == play(instance, Random(3))
    drawn = {play(instance, Random(seed)).strategy for seed in range(200)}
    assert drawn == set(MIXTURE)


def test_paper_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="without a rule"):
        Paper({}).do(Run("curl example.org"))


def test_template_is_append_only_for_results_and_user_turns() -> None:
    instance = build("copy-value", 1, "train")
    messages = messages_of(instance, perform(instance, "check", Random(0)), HEAD, FMT)
    messages += [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Nothing."}]
    for cut in range(2, len(messages)):
        shorter = render(messages[:cut], TOOLS)
        assert render(messages[: cut + 1], TOOLS).startswith(shorter)
        if messages[cut]["role"] == "assistant":
            assert render(messages[: cut + 1], TOOLS).startswith(render(messages[:cut], TOOLS, generate=True))


def test_template_keeps_reasoning_groups_results_and_takes_both_kinds_of_arguments() -> None:
    call = {"function": {"name": "bash", "arguments": '{"command":  "ls"}'}}
    parsed = {"type": "function", "id": "1", "function": {"name": "bash", "arguments": {"command": "ls"}}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "Do "}, {"type": "text", "text": "it."}]},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [call, parsed]},
        {"role": "tool", "content": "a", "tool_call_id": "0"},
        {"role": "tool", "content": [{"type": "text", "text": "b"}], "tool_call_id": "1"},
        {"role": "assistant", "content": "So.", "tool_calls": [parsed]},
        {"role": "tool", "content": "c"},
        {"role": "user", "content": "Go on."},
    ]
    assert render(messages, (), generate=True) == (
        "<|im_start|>user\nDo it.<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nHm.\n</think>\n\n"
        '<tool_call>\n{"name": "bash", "arguments": {"command":  "ls"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response><|im_end|>\n"
        '<|im_start|>assistant\nSo.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nc\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_template_tells_tools_the_same_in_either_wire_shape() -> None:
    bare = tuple(tool["function"] for tool in TOOLS)
    user = [{"role": "user", "content": "x"}]
    with_system = [{"role": "system", "content": "S"}, *user]
    assert render(with_system, TOOLS) == render(with_system, bare)
    assert render(user, TOOLS).startswith("<|im_start|>system\n# Tools\n\n<tools>\n{")
    assert '"description": "Says \\"é\\"."' in render(user, TOOLS)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tokenizers.Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


@pytest.mark.parametrize("family", FAMILIES)
def test_encoding_marks_the_turns_of_the_policy_and_nothing_else(family: str, tokenizer: Any) -> None:
    instance = build(family, 2, "train")
    messages = messages_of(instance, perform(instance, "check", Random(1)), HEAD, FMT)
    text = render(messages, TOOLS)
    encoded = encode(tokenizer, text)
    assert encoded.ids.tolist() == tokenizer.encode(text, add_special_tokens=False).ids
    edges = np.flatnonzero(np.diff(encoded.sampled.astype(np.int8)))
    spans = [tokenizer.decode(part.tolist(), skip_special_tokens=False) for part in np.split(encoded.ids, edges + 1)]
    turns = spans[1::2]
    assert len(turns) == sum(m["role"] == "assistant" for m in messages)
    for turn, message in zip(turns, (m for m in messages if m["role"] == "assistant"), strict=True):
        assert turn.endswith("<|im_end|>")
        for call in message.get("tool_calls", []):
            raw = turn.split("<tool_call>")[1].split("</tool_call>")[0]
            assert json.loads(raw)["arguments"] == json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("family", FAMILIES)
def test_renderers_reads_the_taught_turns_back(family: str, tokenizer: Any) -> None:
    parsing = pytest.importorskip("renderers.parsing")
    transformers = pytest.importorskip("transformers")
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    marks = {m: tokenizer.token_to_id(m) for m in ("<|im_end|>", "<tool_call>", "</tool_call>", "</think>")}
    thoughts = 0
    for seed in range(6):
        instance = build(family, seed, "train")
        messages = messages_of(instance, perform(instance, "check", Random(seed)), HEAD, FMT)
        encoded = encode(tokenizer, render(messages, TOOLS))
        edges = np.flatnonzero(np.diff(encoded.sampled.astype(np.int8))) + 1
        turns = [part.tolist() for part in np.split(encoded.ids, edges)][1::2]
        for ids, message in zip(turns, (m for m in messages if m["role"] == "assistant"), strict=True):
            read = parsing.parse_qwen3(
                wrapped,
                ids,
                stop_ids={marks["<|im_end|>"]},
                tool_call_id=marks["<tool_call>"],
                tool_call_end_id=marks["</tool_call>"],
                reasoning_end_id=marks["</think>"],
            )
            assert read.content == message["content"]
            assert read.reasoning_content == message.get("reasoning_content")
            calls = [(call.name, call.arguments) for call in read.tool_calls]
            wanted = [call["function"] for call in message.get("tool_calls", [])]
            assert calls == [(f["name"], json.loads(f["arguments"])) for f in wanted]
            thoughts += read.reasoning_content is not None
    assert thoughts > 0
