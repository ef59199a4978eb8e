"""What is shown of a reply while it is sampled is how the whole reply begins, whatever the pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contract.kits import kits
from tugline.core.columns import Ids, concat, count, ids, ids_list, take
from tugline.core.contracts import LiveDialect
from tugline.core.items import Assistant, Delta, Options, Pending, Reply, Request, ToolCall, Usage, UserText
from tugline.core.items import Head as EmptyHead
from tugline.gateway.shown import cut_at_stop
from tugline.testing.dialect_live import live_stream
from unit.tokens.chat_kit import CHATML, PARSED_ARGS, STRUCTURE, TOOLS, model, split_up

GOOD = '<tool_call>\n{"name": "run", "arguments": {"cmd": "é\\n"}}\n</tool_call>'
TEXTS = (
    *(
        "\n",
        "\n\n",
        "\n\n\n",
        " ",
        "I look.",
        "é",
        "👩\u200d💻",
        "漢字",
        "\ufffd",
        "END",
        "EN",
        "E",
        "<",
        "think",
        "\u2003",
        "ND",
    ),
    *(GOOD, "<tool_call>\n{oops\n</tool_call>", "<|im_end|>", "<|im_start|>assistant\n", "<|im_start|>", "assistant\n"),
    *("<think>", "</think>", "<think>\n", "\n</think>\n\n", "<tool_call>", "</tool_call>", "word " * 30),
)
PROMPTS = (
    "<|im_start|>assistant\n",
    "<|im_start|>assistant\n<think>\n",
    "<|im_start|>assistant\n<think>",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
)
STOPS = ((), ("END",), ("\nE", "ND"), ("é", "xx"), ("I look.\n\n", "\n\n\n"), (">",))


def shown(parser, column: Ids, sizes: list[int]) -> list[Delta]:
    out, at = [], 0
    while at < count(column):
        n = sizes[len(out) % len(sizes)] if sizes else count(column)
        out.append(parser.feed(take(column, at, at + n)))
        at += n
    return [more for deltas in out for more in deltas]


def said(deltas: list[Delta], kind: str) -> str:
    return "".join(more.text for more in deltas if more.kind == kind)


def final(chat, prompt: Ids, column: Ids, finish: str, stops: tuple[str, ...]) -> Assistant:
    """What the gateway answers: the whole parse, cut at a stop string if one ended the sample."""
    found = chat.parse(prompt, column, finish, TOOLS).assistant
    by_token = bool(column) and ids_list(column)[-1] in chat.stop_ids
    return cut_at_stop(found, stops)[0] if finish == "stop" and not by_token else found


def check_prefix(deltas: list[Delta], whole: Assistant) -> None:
    reasoning, text = said(deltas, "reasoning"), said(deltas, "text")
    assert (whole.reasoning or "").startswith(reasoning), (reasoning, whole)
    assert (whole.text or "").startswith(text), (text, whole)
    if text:
        assert reasoning == (whole.reasoning or ""), (reasoning, whole)
    kinds = [more.kind for more in deltas]
    assert kinds == sorted(kinds) and all(more.text for more in deltas)


@st.composite
def samples(draw: Callable) -> Ids:
    """Texts, markers, raw bytes and any ids, spelled canonically or not."""
    chat = model(CHATML)
    one = st.sampled_from(TEXTS).map(chat.encode) | st.integers(0, chat.vocab - 1).map(lambda i: ids([i]))
    markers = st.sampled_from([ids([chat.codec.control[m]]) for m in STRUCTURE])
    column = concat(draw(st.lists(one | markers | st.sampled_from(TEXTS).map(chat.encode), max_size=14)))
    return split_up(chat, column, draw(st.integers(0, 99))) if draw(st.booleans()) else column


def sample(text: str) -> Ids:
    return model(CHATML).encode(text)


HEADED = sample("<|im_start|>assistant\n<think>\nhm\n</think>\n\nYes.")
"""The model has repeated the header: to the parser the thoughts begin with it."""
ACROSS = sample(f"foo\n{GOOD}Dbar")
"""Once the call is out and the line break is off, the texts around it spell a stop string together."""


@settings(max_examples=600, deadline=None)
@example(column=HEADED, prompt=PROMPTS[0], stops=(), sizes=[1], finish="stop", parser="qwen3")
@example(column=ACROSS, prompt=PROMPTS[0], stops=("oD",), sizes=[1], finish="stop", parser="qwen3")
@given(
    column=samples(),
    prompt=st.sampled_from(PROMPTS),
    stops=st.sampled_from(STOPS),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    finish=st.sampled_from(["stop", "length", "abort"]),
    parser=st.sampled_from(["qwen3", "qwen3", "plain"]),
)
def test_what_is_shown_is_how_the_reply_begins(column, prompt, stops, sizes, finish, parser) -> None:
    chat = model(CHATML, parser=parser)
    before = chat.encode("<|im_end|>\n" + prompt)
    deltas = shown(chat.live(before, stops), column, sizes)
    check_prefix(deltas, final(chat, before, column, finish, stops))


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
@pytest.mark.parametrize("prompt", PROMPTS[:2])
def test_nearly_all_of_a_plain_reply_is_shown(prompt: str, size: int) -> None:
    """Holding back everything would be right, too."""
    chat = model(CHATML)
    before = chat.encode("<|im_end|>\n" + prompt)
    start = "" if prompt.endswith("<think>\n") else "<think>\n"
    column = chat.encode(f"{start}Because é 👩\u200d💻 of it.\n</think>\n\nI look\n\nhere: 漢字.\n{GOOD}<|im_end|>")
    deltas = shown(chat.live(before, ("END",)), column, [size])
    assert said(deltas, "reasoning") == "Because é 👩\u200d💻 of it."
    assert said(deltas, "text") == "I look\n\nhere: 漢字."
    if size == 1:
        assert len(deltas) > 20
    check_prefix(deltas, final(chat, before, column, "stop", ()))


def test_a_prompt_of_another_template_opens_the_reasoning() -> None:
    chat = model(PARSED_ARGS)
    before = chat.render(EmptyHead(TOOLS), [UserText("go")]).ids
    deltas = shown(chat.live(before, ()), chat.encode("hm\n</think>\n\nYes."), [1])
    assert deltas[0] == Delta("reasoning", "h") or said(deltas, "reasoning") == "hm"
    assert (said(deltas, "reasoning"), said(deltas, "text")) == ("hm", "Yes.")


@pytest.mark.parametrize("name", ["chat", "anthropic", "responses", "gemini"])
@settings(max_examples=120, deadline=None)
@example(column=Ids(b""), stops=(), sizes=[1], finish="stop", beats=0, usage=False)
@given(
    column=samples(),
    stops=st.sampled_from(STOPS),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    finish=st.sampled_from(["stop", "length"]),
    beats=st.integers(0, 2),
    usage=st.booleans(),
)
def test_a_live_stream_is_the_buffered_one(name, column, stops, sizes, finish, beats, usage) -> None:
    kit, chat = kits()[name], model(CHATML)
    assert isinstance(kit.dialect, LiveDialect)
    before = chat.encode("<|im_end|>\n" + PROMPTS[0])
    deltas = shown(chat.live(before, stops), column, sizes)
    whole = final(chat, before, column, finish, stops)
    calls = tuple(ToolCall(f"call_{i}", c.name, c.arguments) for i, c in enumerate(whole.calls))
    whole = replace(whole, calls=calls)
    options = Options(stream=True, include_usage=usage)
    request = Request("policy", EmptyHead(), (UserText("a"),), options)
    ended = "length" if finish == "length" else "tool_calls" if calls else "stop"
    reply = Reply("0123abc", "policy", 1_790_000_000, whole, ended, Usage(1000, 50, 900, 7), request)
    pending = Pending(reply.id, reply.model, reply.created, request)
    heads = [kit.dialect.keepalive(pending, n) for n in range(beats)]
    parts, end = kit.dialect.stream(reply, beats)
    expected = kit.assemble(b"".join([*heads, *parts, end]))
    if not deltas:
        return
    live, terminal = live_stream(kit.dialect, reply, deltas, beats)
    assert kit.assemble(live + terminal) == expected
