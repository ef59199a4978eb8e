"""Chat dialect: random turns, random wire spellings, random damage."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contract.chat_kit import chat_kit, wire_assistant, wire_message
from tugline.core.errors import BadRequest
from tugline.core.items import Assistant, Item, Options, System, ToolCall, ToolResult, UserText
from tugline.testing.dialect_suite import reply_of

KIT = chat_kit()
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
spoken = st.one_of(st.none(), texts.filter(bool))
blanks = st.sampled_from(["", " ", "  ", "\n"])


@st.composite
def spelled_arguments(draw: st.DrawFn) -> str:
    """JSON objects as models spell them, and text that only looks like one."""
    value = draw(
        st.dictionaries(texts, st.one_of(texts, st.integers(), st.floats(allow_nan=False), st.none()), max_size=3)
    )
    blank = draw(blanks)
    good = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=(blank + ",", ":" + blank))
    return draw(st.sampled_from([good, good[:-1], good + draw(texts), draw(texts)]))


calls = st.builds(ToolCall, id=texts.filter(bool), name=texts.filter(bool), arguments=spelled_arguments())
assistants = st.builds(Assistant, text=spoken, reasoning=spoken, calls=st.lists(calls, max_size=3).map(tuple))
items = st.one_of(
    st.builds(System, texts, st.sampled_from(["system", "developer"])),
    st.builds(UserText, texts),
    st.builds(ToolResult, texts.filter(bool), texts),
    assistants,
)


@given(assistants, st.booleans())
def test_a_stream_says_what_the_whole_reply_says_and_its_echo_decodes_to_the_same(said: Assistant, usage: bool) -> None:
    reply = reply_of(said)
    parts, terminal = KIT.dialect.stream(reply, usage)
    streamed = KIT.assemble(b"".join(parts) + terminal)
    assert streamed == KIT.read(KIT.dialect.encode(reply)) == KIT.dialect.echo(reply) == said
    assert KIT.decode((UserText("a"), said)).items[1] == said


@given(st.lists(items, min_size=1, max_size=6))
def test_n_messages_give_a_prefix_of_n_plus_one(conversation: list[Item]) -> None:
    whole = KIT.decode(conversation).items
    assert whole == tuple(conversation)
    for n in range(1, len(conversation)):
        assert KIT.decode(conversation[:n]).items == whole[:n]


@given(assistants, st.randoms(use_true_random=False))
def test_spellings_of_one_turn_decode_alike(said: Assistant, rng: Any) -> None:
    """null, "", [] and absent; a string or parts; keys in any order, with extra ones between."""
    message = wire_assistant(said)
    if said.text is None:
        message["content"] = rng.choice([None, "", []])
        if message["content"] is None and rng.random() < 0.5:
            del message["content"]
    elif rng.random() < 0.5:
        cut = rng.randrange(len(said.text) + 1)
        message["content"] = [{"type": "text", "text": t} for t in (said.text[:cut], said.text[cut:])]
    if said.reasoning is not None:
        message[rng.choice(["reasoning", "reasoning_text", "reasoning_content"])] = message.pop("reasoning_content")
    if not said.calls:
        message["tool_calls"] = rng.choice([None, []])
    message.update(index=0, refusal=None, annotations=[], provider_specific_fields={"x": [1]})
    shuffled = dict(rng.sample(sorted(message.items()), len(message)))
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}, shuffled]}
    assert KIT.dialect.decode(json.dumps(body).encode(), {}).items[1] == said


@given(st.lists(items, min_size=1, max_size=4), st.data())
def test_damaged_bodies_decode_or_are_bad_requests(conversation: list[Item], data: st.DataObject) -> None:
    body = bytearray(KIT.write(conversation, Options(stream=True)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(body) - 1))
        body[at : at + data.draw(st.integers(0, 5))] = data.draw(st.binary(max_size=5))
        if not body:
            break
    try:
        KIT.dialect.decode(bytes(body), {})
    except BadRequest as err:
        assert err.message


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
KEYS = ("content", "tool_calls", "tool_call_id", "name", "reasoning_content", "refusal", "function_call", "role")


@given(st.sampled_from(["user", "assistant", "tool", "system"]), st.dictionaries(st.sampled_from(KEYS), json_values))
def test_any_json_in_any_key_decodes_or_is_a_bad_request(role: str, keys: dict[str, Any]) -> None:
    body = {"model": "m", "messages": [wire_message(UserText("a")), {"role": role, **keys}]}
    try:
        KIT.dialect.decode(json.dumps(body).encode(), {})
    except BadRequest as err:
        assert "messages[1]" in err.path or "NaN" in str(body) or "nan" in str(body) or "inf" in str(body), err
