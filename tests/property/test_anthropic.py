"""Anthropic dialect: random turns, random conversations, random wire spellings, random damage."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contract.anthropic_kit import anthropic_kit, wire_message
from contract.chat_kit import chat_kit
from tugline.core.errors import BadRequest
from tugline.core.items import Assistant, Head, Item, Options, Prefill, System, ToolCall, ToolResult, UserText
from tugline.forest.canon import canonical
from tugline.forest.keys import start, walk
from tugline.testing.dialect_suite import reply_of

KIT = anthropic_kit()
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
    wrapped = json.dumps({"__unparsedToolInput": {"raw": draw(texts), "len": 1}})
    return draw(st.sampled_from([good, good[:-1], good + draw(texts), draw(texts), wrapped]))


calls = st.builds(ToolCall, id=texts.filter(bool), name=texts.filter(bool), arguments=spelled_arguments())
assistants = st.builds(Assistant, text=spoken, reasoning=spoken, calls=st.lists(calls, max_size=3).map(tuple))
items = st.one_of(
    st.builds(System, texts),
    st.builds(UserText, texts),
    st.builds(ToolResult, texts.filter(bool), texts),
    assistants,
)


@given(assistants)
def test_a_stream_says_what_the_whole_reply_says_and_its_echo_decodes_to_the_same(said: Assistant) -> None:
    reply = reply_of(said)
    echo = KIT.dialect.echo(reply)
    parts, terminal = KIT.dialect.stream(reply)
    assert KIT.assemble(b"".join(parts) + terminal) == KIT.read(KIT.dialect.encode(reply))
    assert KIT.decode((UserText("a"), echo, UserText("b"))).items[1] == echo == KIT.dialect.echo(reply_of(echo))
    assert (echo.text, echo.reasoning) == (said.text, said.reasoning)


@given(assistants)
def test_arguments_keep_their_meaning_and_what_is_no_object_its_text(said: Assistant) -> None:
    for call, echoed in zip(said.calls, KIT.dialect.echo(reply_of(said)).calls, strict=True):
        assert (call.id, call.name) == (echoed.id, echoed.name)
        value = canonical(call.arguments)
        if value is None or not value.startswith(b"{"):
            assert echoed.arguments == call.arguments
        elif not call.arguments.startswith('{"__unparsed'):
            assert canonical(echoed.arguments) == value


@given(st.lists(items, min_size=1, max_size=6))
def test_n_messages_give_a_prefix_of_n_plus_one(conversation: list[Item]) -> None:
    whole = KIT.decode([*conversation, UserText("end")]).items
    for n in range(1, len(conversation) + 1):
        last = conversation[n - 1]
        if isinstance(last, Assistant) and last == Assistant() and n == 1:
            continue  # nothing at all is asked
        before = KIT.decode(conversation[:n]).items
        if isinstance(before[-1], Prefill):
            before = before[:-1]
        assert whole[: len(before)] == before


@given(st.lists(items, min_size=1, max_size=6), st.data())
def test_wire_messages_cut_anywhere_give_a_prefix(conversation: list[Item], data: st.DataObject) -> None:
    """The last message may also end early, block by block: harnesses grow it in place."""
    body = json.loads(KIT.write([*conversation, UserText("end")], Options()))
    whole = KIT.dialect.decode(json.dumps(body).encode(), {}).items
    at = data.draw(st.integers(0, len(body["messages"]) - 1))
    last = body["messages"][at]
    if last["role"] != "user" or isinstance(last["content"], str):
        return
    last["content"] = last["content"][: data.draw(st.integers(1, len(last["content"])))]
    body["messages"] = body["messages"][: at + 1]
    cut = KIT.dialect.decode(json.dumps(body).encode(), {}).items
    assert whole[: len(cut)] == cut


@given(st.lists(items, min_size=1, max_size=5))
def test_the_view_of_a_conversation_is_that_of_chat(conversation: list[Item]) -> None:
    """Objects spelled alike: what is no object, an API without argument text can only quote."""
    said = [KIT.dialect.echo(reply_of(i)) if isinstance(i, Assistant) else i for i in conversation]
    mine, theirs = (kit.decode([*said, UserText("end")]).items for kit in (KIT, chat_kit()))
    assert walk(start(b"t", Head()), mine)[-1] == walk(start(b"t", Head()), theirs)[-1]


@given(assistants, st.randoms(use_true_random=False))
def test_spellings_of_one_turn_decode_alike(said: Assistant, rng: Any) -> None:
    """A string or blocks; blocks cut in two; keys in any order, with extra ones between."""
    message = json.loads(
        json.dumps(json.loads(KIT.write((UserText("a"), said, UserText("b")), Options()))["messages"][1])
    )
    blocks: list[dict[str, Any]] = []
    for block in message["content"]:
        kind = block["type"]
        if kind in ("text", "thinking") and rng.random() < 0.5:
            cut = rng.randrange(len(block[kind]) + 1)
            blocks += [{**block, kind: block[kind][:cut]}, {**block, kind: block[kind][cut:]}]
        else:
            blocks.append(block)
    shuffled = [dict(rng.sample(sorted({**b, "cache_control": None}.items(), key=str), len(b) + 1)) for b in blocks]
    content: Any = shuffled
    if len(blocks) == 1 and blocks[0]["type"] == "text" and rng.random() < 0.5:
        content = blocks[0]["text"]
    elif not blocks:
        content = rng.choice(["", [], None])
    body = {
        "model": "m",
        "max_tokens": 1,
        "messages": [
            wire_message(UserText("a")),
            {"content": content, "role": "assistant"},
            wire_message(UserText("b")),
        ],
    }
    plain = {**body, "messages": [body["messages"][0], message, body["messages"][2]]}
    decoded = [KIT.dialect.decode(json.dumps(b).encode(), {}).items[1] for b in (body, plain)]
    assert decoded[0] == decoded[1]


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
KINDS = ("text", "thinking", "tool_use", "tool_result", "image", "document", "search_result", "tool_reference", "x")
KEYS = ("text", "thinking", "content", "input", "source", "id", "name", "tool_use_id", "title", "is_error", "tool_name")
loose_blocks = st.builds(
    lambda kind, keys: {**keys, "type": kind},
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(KEYS), json_values, max_size=4),
)
nested = st.one_of(
    loose_blocks,
    st.builds(lambda b: {"type": "tool_result", "tool_use_id": "c", "content": [b]}, loose_blocks),
    st.builds(lambda b: {"type": "document", "source": {"type": "content", "content": [b]}}, loose_blocks),
)


@given(st.sampled_from(["user", "assistant", "system"]), st.lists(nested, max_size=3))
def test_any_json_in_any_block_decodes_or_is_a_bad_request(role: str, blocks: list[Any]) -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [wire_message(UserText("a")), {"role": role, "content": blocks}]}
    try:
        KIT.dialect.decode(json.dumps(body).encode(), {})
    except BadRequest as err:
        assert "messages[1]" in err.path or any(word in str(body) for word in ("nan", "inf")), err


@given(st.dictionaries(st.sampled_from(["system", "tools", "tool_choice", "output_config", "thinking"]), json_values))
def test_any_json_in_any_field_decodes_or_is_a_bad_request(fields: dict[str, Any]) -> None:
    body = {"model": "m", "max_tokens": 1, "messages": [wire_message(UserText("a"))], **fields}
    try:
        KIT.dialect.decode(json.dumps(body).encode(), {})
    except BadRequest as err:
        assert err.message
