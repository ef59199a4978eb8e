"""Gemini dialect: random turns, random conversations, random wire spellings, random damage."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.chat_kit import chat_kit
from contract.gemini_kit import gemini_kit, wire_assistant
from tugline.core.errors import BadRequest
from tugline.core.items import Assistant, Head, Item, Options, Prefill, System, ToolCall, ToolResult, UserText
from tugline.forest.canon import canonical
from tugline.forest.keys import start, walk
from tugline.testing.dialect_suite import reply_of

KIT = gemini_kit()
some = settings(deadline=None)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
spoken = st.one_of(st.none(), texts.filter(bool))
blanks = st.sampled_from(["", " ", "  ", "\n"])
USER = {"role": "user", "parts": [{"text": "u"}]}


@st.composite
def spelled_arguments(draw: st.DrawFn) -> str:
    """JSON objects as models spell them, and text that only looks like one."""
    value = draw(
        st.dictionaries(texts, st.one_of(texts, st.integers(), st.floats(allow_nan=False), st.none()), max_size=3)
    )
    blank = draw(blanks)
    good = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=(blank + ",", ":" + blank))
    wrapped = json.dumps({"__raw_arguments": draw(texts)})
    return draw(st.sampled_from([good, good[:-1], good + draw(texts), draw(texts), wrapped]))


calls = st.builds(ToolCall, id=texts.filter(bool), name=texts.filter(bool), arguments=spelled_arguments())
assistants = st.builds(Assistant, text=spoken, reasoning=spoken, calls=st.lists(calls, max_size=3).map(tuple))
items = st.one_of(st.builds(UserText, texts), st.builds(ToolResult, texts.filter(bool), texts), assistants)
conversations = st.builds(
    lambda system, rest: [*map(System, system), *rest],
    st.lists(texts, max_size=2),
    st.lists(items, min_size=1, max_size=6),
)


def alternating(conversation: list[Item]) -> list[Item]:
    """A turn that says nothing, right behind another turn, is a piece of that turn on this wire."""
    kept: list[Item] = []
    for item in conversation:
        if not (kept and item == Assistant() and isinstance(kept[-1], Assistant)):
            kept.append(item)
    return kept


@some
@given(assistants)
def test_a_stream_says_what_the_whole_reply_says_and_its_echo_decodes_to_the_same(said: Assistant) -> None:
    reply = reply_of(said)
    echo = KIT.dialect.echo(reply)
    parts, terminal = KIT.dialect.stream(reply)
    assert KIT.assemble(b"".join(parts) + terminal) == KIT.read(KIT.dialect.encode(reply)) == echo
    assert KIT.dialect.echo(reply_of(echo)) == echo
    assert (echo.text, echo.reasoning) == (said.text, said.reasoning)


@some
@given(st.lists(assistants, min_size=1, max_size=3))
def test_wire_forms_come_back_whole_or_chunk_by_chunk(turns: list[Assistant]) -> None:
    """Replies of ours echoed as they came, in one content or in one per chunk, each behind a user's word."""
    whole: list[Any] = [USER]
    chunked: list[Any] = [USER]
    for said in turns:
        reply = reply_of(said)
        whole += [content(KIT.dialect.encode(reply)), USER]
        parts, terminal = KIT.dialect.stream(reply)
        chunked += [*(content(p[6:]) for p in (*parts, terminal)), USER]
    for contents in (whole, chunked):
        got = KIT.dialect.decode(msgspec.json.encode({"contents": contents}), {}).items
        assert [i for i in got if isinstance(i, Assistant)] == [KIT.dialect.echo(reply_of(said)) for said in turns]


class Candidate(msgspec.Struct):
    content: msgspec.Raw


class Response(msgspec.Struct):
    candidates: list[Candidate]


def content(response: bytes) -> msgspec.Raw:
    """A reply's content, byte for byte."""
    return msgspec.json.decode(response, type=Response).candidates[0].content


@some
@given(assistants)
def test_arguments_keep_their_meaning_and_what_is_no_object_its_text(said: Assistant) -> None:
    for call, echoed in zip(said.calls, KIT.dialect.echo(reply_of(said)).calls, strict=True):
        assert (call.id, call.name) == (echoed.id, echoed.name)
        value = canonical(call.arguments)
        if value is None or not value.startswith(b"{"):
            assert echoed.arguments == call.arguments
        else:
            assert canonical(echoed.arguments) == value


@some
@given(conversations)
def test_n_contents_give_a_prefix_of_n_plus_one(conversation: list[Item]) -> None:
    conversation = alternating(conversation)
    whole = KIT.decode([*conversation, UserText("end")]).items
    first = sum(isinstance(i, System) for i in conversation) + 1
    for n in range(first, len(conversation) + 1):
        before = KIT.decode(conversation[:n]).items
        if isinstance(before[-1], Prefill):
            before = before[:-1]
        assert whole[: len(before)] == before


@some
@given(conversations)
def test_the_view_of_a_conversation_is_that_of_chat(conversation: list[Item]) -> None:
    conversation = alternating(conversation)
    said = [KIT.dialect.echo(reply_of(i)) if isinstance(i, Assistant) else i for i in conversation]
    mine, theirs = (kit.decode([*said, UserText("end")]).items for kit in (KIT, chat_kit()))
    assert walk(start(b"t", Head()), mine)[-1].lenient == walk(start(b"t", Head()), theirs)[-1].lenient


@some
@given(assistants, st.randoms(use_true_random=False))
def test_spellings_of_one_turn_decode_alike(said: Assistant, rng: Any) -> None:
    """Parts cut in two, keys in any order with extra ones between, signatures of anybody."""
    said = Assistant(said.text, said.reasoning, tuple(c for c in said.calls if c.arguments))
    plain = wire_assistant(said)
    parts: list[dict[str, Any]] = []
    for part in plain["parts"]:
        if "text" in part and rng.random() < 0.5:
            cut = rng.randrange(len(part["text"]) + 1)
            parts += [{**part, "text": part["text"][:cut]}, {**part, "text": part["text"][cut:]}]
        else:
            parts.append(part)
    more = {"videoMetadata": None, "thoughtSignature": "AAAA", "thought": None}
    spelled = [dict(sorted({**more, **p}.items(), key=lambda _: rng.random())) for p in parts]
    bodies = [{"contents": [USER, {"role": "model", "parts": p}, USER]} for p in (plain["parts"], spelled)]
    one, two = (KIT.dialect.decode(msgspec.json.encode(b), {}).items for b in bodies)
    assert one == two and len(one) == 3


@some
@given(
    st.lists(st.sampled_from(["f", "g", "h"]), min_size=1, max_size=6),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_results_find_their_calls_whether_or_not_ids_are_sent(names: list[str], ids: bool, rng: Any) -> None:
    """In any order across names; in order within a name when there are no ids."""
    calls_of = [
        {"functionCall": {"name": n, "args": {}, **({"id": f"c{i}"} if ids else {})}} for i, n in enumerate(names)
    ]
    order = sorted(range(len(names)), key=lambda _: rng.random())
    if not ids:
        queues = {n: [i for i, m in enumerate(names) if m == n] for n in names}
        order = [queues[names[i]].pop(0) for i in order]
    results = [
        {"functionResponse": {"name": names[i], "response": {"output": str(i)}, **({"id": f"c{i}"} if ids else {})}}
        for i in order
    ]
    body = {"contents": [USER, {"role": "model", "parts": calls_of}, {"role": "user", "parts": results}]}
    got = KIT.dialect.decode(msgspec.json.encode(body), {}).items
    turn = got[1]
    assert isinstance(turn, Assistant)
    assert len({c.id for c in turn.calls}) == len(names)
    for item in got[2:]:
        assert isinstance(item, ToolResult) and item.call_id == turn.calls[int(item.text)].id


NAMES = (
    *("contents", "parts", "role", "text", "functionCall", "name", "args", "functionResponse", "response"),
    *("tools", "functionDeclarations", "parameters", "type", "properties", "generationConfig", "inlineData"),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(NAMES),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@some
@given(values)
def test_any_json_decodes_or_is_a_bad_request(value: Any) -> None:
    for body in (value, {"contents": value}, {"contents": [USER], "tools": value, "generationConfig": value}):
        try:
            KIT.dialect.decode(json.dumps(body).encode(), {"stream": "1"})
        except BadRequest:
            continue


@some
@given(conversations, st.data())
def test_damaged_bodies_decode_or_are_bad_requests(conversation: list[Item], data: st.DataObject) -> None:
    body = bytearray(KIT.write(conversation, Options(stream=True)))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        KIT.dialect.decode(bytes(body), {})
    except BadRequest:
        return
