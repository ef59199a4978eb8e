"""Every reply format, there and back: what a model of the family writes is what the harness sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tugline.core.columns import Ids, concat, count, ids, ids_list, take
from tugline.core.items import Assistant, Delta, ToolCall
from tugline.tokens.families import families
from unit.tokens.family_kit import NAMES, TOOLS, VERBATIM, chat, prompts, split_up, strings, turns

FEW = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def prompt_ids(name: str, prompt: str) -> Ids:
    model = chat(name)
    return model.encode(f"{families()[name].stop[0]}{prompt}")


def written(name: str, turn: Assistant, prompt: str) -> Ids:
    """What a model samples: the turn and its stop token."""
    family, model = families()[name], chat(name)
    return concat([model.encode(family.write(turn, prompt)), model.encode(family.end(turn))])


def same(name: str, found: Assistant, turn: Assistant) -> None:
    assert found.text == turn.text
    assert found.reasoning == turn.reasoning
    assert [(c.id, c.name) for c in found.calls] == [(c.id, c.name) for c in turn.calls]
    for got, want in zip(found.calls, turn.calls, strict=True):
        if name in VERBATIM:
            assert got.arguments == want.arguments
        assert msgspec.json.decode(got.arguments) == msgspec.json.decode(want.arguments)


@pytest.mark.parametrize("name", NAMES)
@FEW
@given(data=st.data())
def test_a_turn_comes_back(name: str, data: st.DataObject) -> None:
    turn = data.draw(turns(name))
    prompt = data.draw(st.sampled_from(prompts(name)))
    column = written(name, turn, prompt)
    if data.draw(st.booleans()):
        column = split_up(name, column, data.draw(st.integers(0, 99)))
    found = chat(name).parse(prompt_ids(name, prompt), column, "stop", TOOLS)
    same(name, found.assistant, turn)
    assert found.drift == ()
    assert found.finish == ("tool_calls" if turn.calls else "stop")
    if turn.reasoning:
        assert 0 < found.reasoning_tokens <= count(column)


HAN = "漢字一二三四五六七八九十"


def payload(text: str) -> Counter[str]:
    """Characters that no format writes by itself."""
    return Counter(c for c in text if c in HAN)


def shown(found: Assistant) -> str:
    calls = "".join(c.id + c.name + c.arguments for c in found.calls)
    return (found.reasoning or "") + (found.text or "") + calls


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_cut_anywhere_loses_nothing(name: str) -> None:
    family, model = families()[name], chat(name)
    calls = (ToolCall("functions.run:0", "run", '{"cmd": "三四", "漢": "五"}'),)
    turn = Assistant(None, None, calls) if name == "llama3" else Assistant("字二", "漢一", calls)
    for prompt in prompts(name):
        column = written(name, turn, prompt)
        for n in range(count(column)):
            for finish in ("length", "abort", "stop"):
                part = take(column, 0, n)
                found = model.parse(prompt_ids(name, prompt), part, finish, TOOLS)  # type: ignore[arg-type]
                assert payload(shown(found.assistant)) == payload(model.decode(part)), (n, finish, found)
                assert found.finish != "stop" or finish == "stop"
                if finish != "stop":
                    assert found.finish == "length"
    assert family.stop


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_nothing_sampled_raises_or_is_lost(name: str, data: st.DataObject) -> None:
    """Markers in any order, fragments of calls, any ids at all."""
    model = chat(name)
    column = data.draw(anything(name))
    stops = set(model.stop_ids)
    body = next((i for i, t in enumerate(ids_list(column)) if t in stops), count(column))
    prompt = data.draw(st.sampled_from(prompts(name)))
    finish: Any = data.draw(st.sampled_from(["stop", "length", "abort"]))
    found = model.parse(prompt_ids(name, prompt), column, finish, data.draw(st.sampled_from([TOOLS, ()])))
    assert payload(shown(found.assistant)) == payload(model.decode(take(column, 0, body)))
    for call in found.assistant.calls:
        assert call.name
        msgspec.json.decode(call.arguments)
    assert found.reasoning_tokens <= body


@st.composite
def anything(draw: Callable, name: str) -> Ids:
    """Markers, fragments, whole turns and single ids in any order."""
    family, model = families()[name], chat(name)
    pieces = [p for p in (*strings(family), *FRAGMENTS, family.form.header) if p]
    one = st.sampled_from(pieces).map(model.encode) | st.integers(0, model.vocab - 1).map(lambda i: ids([i]))
    whole = turns(name).map(lambda t: model.encode(family.spell(t)))
    return concat(draw(st.lists(one | whole, max_size=14)))


FRAGMENTS = (
    *("漢", "字一", "\n", "\n\n", " ", "x", "{", "}", "[", "]", "(", ")", ",", ":", '"', "'", "\\", "thought\n"),
    *('{"name": "run", "arguments": {}}', '{"name": "run", "parameters": {"a": "二"}}', "run", "function"),
    *("<function=run>", "<parameter=cmd>", "</parameter>", "</function>", '<invoke name="run">', "</invoke>"),
    *('<parameter name="cmd">', "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "call:run{", "<invoke"),
    *("[run()]", "run(cmd='三')", " to=functions.run", "functions.run:0", "assistant", "analysis", "final"),
    *("commentary json", "```json\n", "\n```", "tool_calls>", "\n\n\n"),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_spelled_markers_are_text(name: str) -> None:
    """The letters of a marker, not its token, are nothing but text, wherever the family has the token."""
    family, model = families()[name], chat(name)
    tokens = [m for m in strings(family) if model.codec.token(m) is not None]
    hostile = "漢 " + " ".join([*tokens, *reversed(tokens)]) + " 字"
    for turn in (Assistant("QQ"), Assistant("QQ", None if name == "llama3" else "RR")):
        spelled = family.spell(turn)
        column = model.codec.encode_marked(spelled, lambda run: run.replace("QQ", hostile).replace("RR", hostile))
        found = model.parse(prompt_ids(name, family.form.header), column, "stop", TOOLS)
        assert found.assistant.text == hostile
        assert found.assistant.reasoning == (hostile if turn.reasoning else None)
        assert (found.assistant.calls, found.drift) == ((), ())


@pytest.mark.parametrize("name", NAMES)
def test_hostile_samples_are_read_in_time(name: str) -> None:
    """Nothing but openers, nothing but brackets, endless numbers: read like any other text, in linear time."""
    family, model = families()[name], chat(name)
    deep = [model.encode(t * 10_000) for t in ("[", "{", '{"a":', "(", "-", "9", '"', "\\")]
    marks = [concat([model.encode(m)] * 10_000) for m in strings(family)]
    parts = [model.encode(f) for f in ("<function=run>", "<parameter=a>", "<invoke", '<parameter name="a">', " to=x")]
    rows = [concat([p] * 5_000) for p in parts]
    calls = [pair[0] for pair in family.calls] or list(family.others[:1])
    for arguments in ('{"a": ' * 5_000, f'{{"n": {"9" * 9_000}}}', f'{{"a": {"[" * 900}{"]" * 900}}}', '{"漢": "]"'):
        call = ToolCall("functions.run:0", "run", arguments)
        column = model.encode(family.spell(Assistant(None, None, (call,))) + family.end(Assistant(None, None, (call,))))
        found = model.parse(prompt_ids(name, family.form.header), column, "stop", TOOLS).assistant
        assert found.calls or found.text
        assert payload(shown(found)) == payload(arguments)
    for column in (*deep, *marks, *rows):
        prefix = concat([model.encode(c) for c in calls] + [model.encode("x")])
        for sample in (column, concat([prefix, column]), concat([prefix, column, prefix])):
            found = model.parse(prompt_ids(name, family.form.header), sample, "length", TOOLS)
            assert found.finish == "length"


LIVE = [name for name in NAMES if families()[name].live is not None]


def deltas(name: str, prompt: Ids, column: Ids, sizes: list[int], strings: tuple[str, ...] = ()) -> list[Delta]:
    parser = chat(name).live(prompt, strings)
    assert parser is not None
    out, at = [], 0
    while at < count(column):
        n = sizes[len(out) % len(sizes)]
        out.append(parser.feed(take(column, at, at + n)))
        at += n
    return [more for some in out for more in some]


@pytest.mark.parametrize("name", LIVE)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_what_is_shown_live_is_how_the_reply_begins(name: str, data: st.DataObject) -> None:
    column = data.draw(anything(name))
    if data.draw(st.booleans()):
        column = split_up(name, column, data.draw(st.integers(0, 99)))
    before = prompt_ids(name, data.draw(st.sampled_from(prompts(name))))
    finish: Any = data.draw(st.sampled_from(["stop", "length"]))
    whole = chat(name).parse(before, column, finish, TOOLS).assistant
    said = deltas(name, before, column, data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5)))
    kinds = [more.kind for more in said]
    assert kinds == sorted(kinds)
    texts = {kind: "".join(m.text for m in said if m.kind == kind) for kind in ("reasoning", "text")}
    assert (whole.reasoning or "").startswith(texts["reasoning"]), (texts, whole)
    assert (whole.text or "").startswith(texts["text"]), (texts, whole)
    if texts["text"]:
        assert texts["reasoning"] == (whole.reasoning or "")


@pytest.mark.parametrize("name", LIVE)
def test_nearly_all_of_a_reply_is_shown_live(name: str) -> None:
    """Holding back everything would be right, too."""
    for prompt in prompts(name):
        turn = Assistant("I look\n\nhere: 漢字.", "Because 👩 of it.", (ToolCall("", "run", '{"cmd": "ls"}'),))
        before = prompt_ids(name, prompt)
        said = deltas(name, before, written(name, turn, prompt), [1])
        assert "".join(m.text for m in said if m.kind == "reasoning") == turn.reasoning
        assert "".join(m.text for m in said if m.kind == "text") == turn.text
