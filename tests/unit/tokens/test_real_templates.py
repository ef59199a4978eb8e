"""What a bridge does with the habits of real templates, where a corpus of them is at hand."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from corpus_kit import HOW, corpus_cases
from tugline.core.columns import Ids, concat, ids, take
from tugline.core.errors import ConfigError
from tugline.core.items import Assistant, Head, Item, System, ToolCall, ToolResult, UserMedia, UserText
from tugline.core.turn import Finish
from tugline.tokens.families import detect
from tugline.tokens.model import Bridge, BridgeRefused, ChatModel
from unit.tokens.chat_kit import HEAD

pytestmark = pytest.mark.corpus

START: list[Item] = [System("Be brief."), UserText("go")]
RUN, READ = ToolCall("c1", "run", '{"cmd": "ls"}'), ToolCall("c2", "read", "{}")
GLM, GEMMA, HARMONY, KIMI = "trl/glm4moe", "trl/gemma4_v5", "trl/gptoss", "llama.cpp/moonshotai-Kimi-K2"


@cache
def chat(name: str) -> ChatModel:
    """A model of the family that its template belongs to."""
    case = next((c for c in corpus_cases() if c.name == name), None)
    if case is None:
        pytest.skip(HOW)
    added = [t["content"] for t in msgspec.json.decode(case.tokenizer_json)["added_tokens"]]
    try:
        parser = detect(case.template, added).name
    except ConfigError:
        parser = "plain"
    return ChatModel(case.files(parser))


def made(name: str, said: str, echo: Assistant, tail: list[Item], finish: Finish = "stop") -> Bridge:
    """The bridge behind a turn that was sampled as `said`."""
    model = chat(name)
    prompt, sampled = model.render(HEAD, START).ids, model.encode(said)
    last_id = int.from_bytes(sampled[-4:], "little")
    history = [*START, echo]
    return model.bridge(HEAD, history, tail, last_id=last_id, finish=finish, sampled=sampled, prompt=prompt)


def goes_on(name: str, turn: Assistant, tail: list[Item], stop: str, history: list[Item] = START) -> str:
    """Bridged = one pass, for a turn that is sampled as the template writes it up to `stop`. The bridge's text."""
    model = chat(name)
    prompt, whole = model.render(HEAD, history).ids, model.render(HEAD, [*history, turn, *tail]).ids
    assert whole.startswith(prompt)
    token = model.codec.token(stop)
    assert token is not None
    rest = Ids(whole[len(prompt) :])
    end = rest.index(ids((token,))) // 4 + 1
    sampled = take(rest, 0, end)
    bridge = model.bridge(HEAD, [*history, turn], tail, last_id=token, finish="stop", sampled=sampled, prompt=prompt)
    assert concat([prompt, take(sampled, 0, end - bridge.drop), bridge.ids]) == whole
    return model.decode(bridge.ids)


QWEN = ("trl/qwen3", "trl/qwen3_instruct_2507", "trl/qwen2_5", "llama.cpp/Qwen3-Coder")


@pytest.mark.parametrize("name", [*QWEN, "trl/llama3_1", "llama.cpp/deepseek-ai-DeepSeek-V4", KIMI])
@pytest.mark.parametrize("call", [RUN, READ], ids=["arguments", "none"])
def test_one_call_and_its_result(name: str, call: ToolCall) -> None:
    stop = chat(name).codec.decode([chat(name).stop_ids[0]])
    goes_on(name, Assistant(None, None, (call,)), [ToolResult(call.id, "out <tool_call> <|im_end|>\n")], stop)


@pytest.mark.parametrize("name", [*QWEN, "llama.cpp/deepseek-ai-DeepSeek-V4", KIMI])
def test_results_of_parallel_calls_are_one_group(name: str) -> None:
    stop = chat(name).codec.decode([chat(name).stop_ids[0]])
    goes_on(name, Assistant(None, None, (RUN, READ)), [ToolResult("c1", "a"), ToolResult("c2", "b")], stop)


def test_harmony_keeps_its_stop_and_closes_what_was_cut() -> None:
    turn = Assistant("Done.", "hm")
    kept = made(HARMONY, "<|channel|>final<|message|>Done.<|return|>", turn, [UserText("more")])
    assert (kept.drop, kept.drift) == (0, ("close_alias",))
    assert chat(HARMONY).decode(kept.ids).startswith("<|start|>user<|message|>more<|end|>")
    cut = made(
        HARMONY, "<|channel|>analysis<|message|>I was thin", Assistant(None, "I was thin"), [UserText("m")], "length"
    )
    assert chat(HARMONY).decode(cut.ids).startswith("<|end|><|start|>user<|message|>m")
    assert (cut.synthesised, cut.drift) == (1, ("truncated_extended",))
    goes_on(HARMONY, Assistant(None, None, (RUN,)), [ToolResult("c1", "out")], "<|call|>")
    named = made(HARMONY, "x<|call|>", Assistant(None, None, (READ,)), [ToolResult("c2", "out")])
    assert "<|start|>functions.read to=assistant" in chat(HARMONY).decode(named.ids)


def test_harmony_is_told_one_day() -> None:
    model = chat(HARMONY)
    assert model.clocked
    for clock, day in ((1767225599, "2025-12-31"), (1767225600, "2026-01-01")):
        head = Head(HEAD.tools, clock=clock)
        assert f"Current date: {day}" in model.decode(model.render(head, START).ids)


@pytest.mark.parametrize(
    ("stop", "tail", "drop"),
    [
        ("<|user|>", [UserText("more")], 0),
        ("<|observation|>", [UserText("more")], 1),
        ("<|observation|>", [ToolResult("c1", "out")], 0),
        ("<|user|>", [ToolResult("c1", "out")], 1),
        ("<|endoftext|>", [ToolResult("c1", "out")], 1),
        ("<|user|>", [System("note"), UserText("more")], 1),
    ],
)
def test_glm_has_one_role_token_between_turns(stop: str, tail: list[Item], drop: int) -> None:
    model = chat(GLM)
    turn = Assistant(None, None, (RUN,)) if isinstance(tail[0], ToolResult) else Assistant("Hi.")
    bridge = made(GLM, f"<think></think>Hi.{stop}", turn, tail)
    assert bridge.drop == drop and bridge.drift == (("stop_trim",) if drop else ())
    token = model.codec.token(stop)
    assert token is not None
    kept = concat([ids((token,)) if not drop else Ids(b""), bridge.ids])
    assert model.render(HEAD, [*START, turn, *tail]).ids.endswith(kept)


def test_gemma_opens_a_result_once() -> None:
    turn = Assistant(None, None, (RUN,))
    text = goes_on(GEMMA, turn, [ToolResult("c1", "out")], "<|tool_response>")
    assert text.startswith("response:run") and text.count("<|tool_response>") == 0
    cut = made(GEMMA, "<|tool_call>call:run{", turn, [ToolResult("c1", "out")], "length")
    assert chat(GEMMA).decode(cut.ids).startswith("<tool_call|><|tool_response>response:run")


def test_deepseek_opens_only_the_first_results() -> None:
    name = "trl/deepseekv3"
    cycle: list[Item] = [Assistant(None, None, (RUN,)), ToolResult("c1", "one")]
    end, turn = chat(name).stop_ids[0], Assistant(None, None, (READ,))
    for history, opened in ((START, 1), ([*START, *cycle], 0)):
        bridge = chat(name).bridge(
            HEAD, [*history, turn], [ToolResult("c2", "b")], last_id=end, finish="stop", sampled=ids((end,))
        )
        assert chat(name).decode(bridge.ids).count("outputs▁begin") == opened
        assert chat(name).render(HEAD, [*history, turn, ToolResult("c2", "b")]).ids.endswith(bridge.ids)


@pytest.mark.parametrize(
    ("said", "close"),
    [
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0",
            "<|tool_call_end|><|tool_calls_section_end|>",
        ),
        ("<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_end|>", "<|tool_calls_section_end|>"),
        ("Hel", ""),
    ],
)
def test_kimi_is_closed_from_the_inside(said: str, close: str) -> None:
    bridge = made(KIMI, said, Assistant("x"), [UserText("more")], "length")
    assert chat(KIMI).decode(bridge.ids).startswith(f"{close}<|im_end|><|im_user|>user<|im_middle|>more")


def test_kimi_reads_the_ids_that_it_sampled() -> None:
    wire = "call_7abc_0_m-functions_2erun_3a3"
    turn, result = Assistant(None, None, (ToolCall(wire, "run", "{}"),)), ToolResult(wire, "out")
    assert "functions.run:3" in goes_on(KIMI, turn, [result], "<|im_end|>")
    assert wire not in chat(KIMI).decode(chat(KIMI).render(HEAD, [*START, turn, result]).ids)


def test_llama_takes_one_call_at_a_time() -> None:
    name, turn = "trl/llama3_1", Assistant(None, None, (RUN, READ))
    results: list[Item] = [ToolResult("c1", "a"), ToolResult("c2", "b")]
    assert "calls_split" in chat(name).render(HEAD, [*START, turn, *results]).drift
    try:
        bridge = made(name, "x<|eot_id|>", turn, results)
    except BridgeRefused as refused:
        assert refused.reason.startswith("parallel_calls")
    else:
        assert {"renderers_bridge", "format_differs"} <= set(bridge.drift)


@pytest.mark.parametrize("name", ["trl/qwen3_6", "trl/qwen3_5_think", "trl/deepseekv3", "trl/gemma3"])
def test_a_late_system_message_keeps_its_place(name: str) -> None:
    model = chat(name)
    bridge = model.bridge(
        HEAD, [*START, Assistant("x")], [System("a note"), UserText("more")],
        last_id=model.stop_ids[0], finish="stop", sampled=ids(model.stop_ids[:1]),
    )  # fmt: skip
    assert "a note" in model.decode(bridge.ids) and "system_as_user" in bridge.drift


@pytest.mark.parametrize("name", ["llama.cpp/Mistral-Small-3.2-24B-Instruct-2506"])
def test_ids_are_given_as_the_template_demands(name: str) -> None:
    turn, result = Assistant(None, None, (ToolCall("call_7abc_0", "run", "{}"),)), ToolResult("call_7abc_0", "out")
    assert "call_7abc_0" not in chat(name).decode(chat(name).render(HEAD, [UserText("go"), turn, result]).ids)


VISION = ("trl/qwen3_vl", "trl/qwen2_5_vl", "trl/gemma3", "trl/idefics3", "trl/llava_next", "trl/smolvlm")
PLACES = ("<|image_pad|>", "<|vision_start|>", "<|video_pad|>", "<start_of_image>", "<image_soft_token>", "<image>")


@pytest.mark.parametrize("name", VISION)
def test_no_text_makes_a_place_for_an_image(name: str) -> None:
    model = chat(name)
    image = UserMedia("image/png", "0" * 64)
    harmless = model.render(Head(), [UserText("a b"), image])
    assert "media_omitted" in harmless.drift
    evil = model.render(Head(), [UserText("".join(PLACES)), image])
    assert model.codec.controls_in(evil.ids) == model.codec.controls_in(harmless.ids)
    assert "".join(PLACES) in model.decode(evil.ids).replace(" ", "")
