"""Responses dialect: random turns, random wire spellings, random damage."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contract.chat_kit import chat_kit
from contract.responses_kit import body, responses_kit, wire_assistant, wire_items
from tugline.core.errors import BadRequest
from tugline.core.items import Assistant, Item, Options, Request, System, ToolCall, ToolResult, UserText
from tugline.dialects.responses_wire import seal, unseal
from tugline.testing.dialect_suite import pending_of, reply_of

KIT = responses_kit()
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
spoken = st.one_of(st.none(), texts.filter(bool))
blanks = st.sampled_from(["", " ", "  ", "\n"])


@st.composite
def spelled_arguments(draw: st.DrawFn) -> str:
    """JSON objects as models spell them, and text that only looks like one."""
    value = draw(
        st.dictionaries(
            st.one_of(texts, st.just("input")),
            st.one_of(texts, st.integers(), st.floats(allow_nan=False), st.none()),
            max_size=3,
        )
    )
    blank = draw(blanks)
    good = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=(blank + ",", ":" + blank))
    return draw(st.sampled_from([good, good[:-1], good + draw(texts), draw(texts)]))


names = st.one_of(texts, st.sampled_from(["patch", "team__note", "team__spawn", "bash", "team__"]))
calls = st.builds(ToolCall, id=texts.filter(bool), name=names, arguments=spelled_arguments())
assistants = st.builds(Assistant, text=spoken, reasoning=spoken, calls=st.lists(calls, max_size=3).map(tuple))
items = st.one_of(
    st.builds(System, texts, st.sampled_from(["system", "developer"])),
    st.builds(UserText, texts),
    st.builds(ToolResult, texts.filter(bool), texts),
    assistants,
)
TOOLS: list[dict[str, Any]] = [
    {"type": "custom", "name": "patch"},
    {"type": "function", "name": "bash"},
    {"type": "namespace", "name": "team", "tools": [{"type": "custom", "name": "note"}, {"name": "spawn"}]},
]
TOOLED: Request = KIT.dialect.decode(body([{"role": "user", "content": "a"}], tools=TOOLS), {})


@given(assistants, st.integers(0, 3), st.sampled_from([None, "length"]))
def test_a_stream_says_what_the_whole_reply_says_and_its_echo_decodes_to_the_same(
    said: Assistant, beats: int, finish: str | None
) -> None:
    reply = reply_of(said, finish=finish)
    parts, terminal = KIT.dialect.stream(reply, beats)
    pings = [KIT.dialect.keepalive(pending_of(reply), n) for n in range(beats)]
    streamed = KIT.assemble(b"".join([*pings, *parts, terminal]))
    assert streamed == KIT.read(KIT.dialect.encode(reply)) == KIT.dialect.echo(reply) == said
    assert KIT.decode((UserText("a"), said)).items[1] == said


@given(assistants)
def test_the_echo_of_custom_and_namespaced_calls_is_what_the_output_decodes_to(said: Assistant) -> None:
    reply = replace(reply_of(said), request=TOOLED)
    output = json.loads(KIT.dialect.encode(reply))["output"]
    echo = KIT.dialect.echo(reply)
    assert KIT.dialect.decode(body(output, tools=TOOLS), {}).items == (echo,)
    assert KIT.dialect.echo(replace(reply, assistant=echo)) == echo, "an echo of an echo is itself"
    assert (echo.text, echo.reasoning) == (said.text, said.reasoning)
    assert [(c.id, c.name) for c in echo.calls] == [(c.id, c.name) for c in said.calls]
    stripped = [{k: v for k, v in item.items() if k not in ("id", "status")} for item in output]
    assert KIT.dialect.decode(body(stripped), {}).items == (echo,)


@given(st.lists(items, min_size=1, max_size=6))
def test_n_items_give_a_prefix_of_n_plus_one_and_the_view_of_chat(conversation: list[Item]) -> None:
    whole = KIT.decode(conversation).items
    assert whole == tuple(conversation) == chat_kit().decode(conversation).items
    for n in range(1, len(conversation)):
        assert KIT.decode(conversation[:n]).items == whole[:n]


@given(st.lists(items, min_size=1, max_size=5), st.booleans())
def test_any_cut_of_the_wire_gives_a_prefix_whose_last_turn_may_still_grow(conversation: list[Item], ids: bool) -> None:
    wire = [part for i, item in enumerate(conversation) for part in wire_items(item, f"r{i}" if ids else None)]
    whole = KIT.dialect.decode(body(wire), {}).items
    for n in range(1, len(wire)):
        cut = KIT.dialect.decode(body(wire[:n]), {}).items
        assert cut[:-1] == whole[: len(cut) - 1]
        before, after = cut[-1], whole[len(cut) - 1]
        if isinstance(before, Assistant):
            assert isinstance(after, Assistant)
            assert (after.text or "").startswith(before.text or "")
            assert (after.reasoning or "").startswith(before.reasoning or "")
            assert after.calls[: len(before.calls)] == before.calls
        else:
            assert before == after


@given(assistants, st.randoms(use_true_random=False))
def test_spellings_of_one_turn_decode_alike(said: Assistant, rng: Any) -> None:
    """A string or parts, in one message or two; reasoning plain, summarised, sealed or all; any keys beside them."""
    wire = wire_assistant(said, rng.choice([None, "r1"]))
    for item in list(wire):
        if item["type"] == "message" and said.text is not None:
            cut = rng.randrange(len(said.text) + 1)
            halves = [{"type": "output_text", "text": t} for t in (said.text[:cut], said.text[cut:])]
            item["content"] = rng.choice([said.text, halves, [*halves, {"type": "refusal", "refusal": ""}]])
            if rng.random() < 0.3:
                item["content"] = halves[:1]
                wire.insert(wire.index(item) + 1, {**item, "content": halves[1:]})
        elif item["type"] == "reasoning":
            said_plainly = [{"type": "reasoning_text", "text": said.reasoning}]
            trimmed = [{"type": "summary_text", "text": (said.reasoning or "").rstrip()}]
            sealed = seal(said.reasoning or "")
            item |= rng.choice(
                [
                    {"content": said_plainly, "summary": []},
                    {"content": said_plainly, "encrypted_content": "foreign"},
                    {"summary": [], "encrypted_content": sealed},
                    {"summary": trimmed, "encrypted_content": sealed, "content": None},
                ]
            )
        item.update(phase=None, internal={"x": [1]}, status="completed")
    shuffled = [dict(rng.sample(sorted(item.items(), key=lambda kv: kv[0]), len(item))) for item in wire]
    assert KIT.dialect.decode(body([{"role": "user", "content": "a"}, *shuffled]), {}).items[1] == said


@given(texts, texts)
def test_tokens_open_to_what_was_sealed_and_damage_is_seen(text: str, tail: str) -> None:
    token = seal(text)
    assert seal(text) == token and unseal(token) == text
    assert unseal(tail) is None or tail.startswith("tug1.")
    for damaged in (token + (tail or "A"), token[:-1], token[1:], token.replace(".", ".A", 1)):
        assert unseal(damaged) in (None, text)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
KINDS = (
    *("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "input_text", "input_file"),
    *("local_shell_call", "shell_call_output", "mcp_call", "additional_tools", "web_search_call", "input_image"),
)
KEYS = (
    *("type", "role", "content", "summary", "encrypted_content", "call_id", "name", "namespace", "arguments", "input"),
    *("output", "action", "tools", "id", "status", "text", "image_url", "file_data"),
)
odd_objects = st.dictionaries(st.sampled_from(KEYS), st.one_of(json_values, st.sampled_from(KINDS)), max_size=5)
odd_items = st.builds(lambda row, kind: {**row, "type": kind}, odd_objects, st.sampled_from(KINDS))
odd_bodies = st.fixed_dictionaries(
    {"model": st.just("m"), "input": st.lists(st.one_of(odd_items, odd_objects), max_size=3)},
    optional={
        "tools": st.lists(st.one_of(odd_objects, json_values), max_size=3),
        "tool_choice": json_values,
        "text": json_values,
        "previous_response_id": json_values,
        "instructions": texts,
    },
)


@given(odd_bodies)
def test_any_json_is_a_request_or_a_bad_one(wire: dict[str, Any]) -> None:
    try:
        request = KIT.dialect.decode(json.dumps(wire).encode(), {})
    except BadRequest:
        return
    reply = replace(reply_of(Assistant("a", "b", (ToolCall("c", "patch", "{}"),))), request=request)
    KIT.read(KIT.dialect.encode(reply))
    assert len(request.ignored) <= 64


@given(st.binary(max_size=60), st.integers(0, 400))
def test_any_bytes_are_a_request_or_a_bad_one(junk: bytes, at: int) -> None:
    good = KIT.write((UserText("a"), Assistant("b", "c", (ToolCall("d", "e", "{}"),))), Options())
    for data in (junk, good[:at] + junk + good[at:], good[:at] + junk):
        try:
            KIT.dialect.decode(data, {})
        except BadRequest:
            continue
