"""Any tree of turns comes back bit for bit, from the writer, from a reader beside it and after the end."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tugline.core.columns import Floats, Ids
from tugline.core.items import Assistant, Head, Prefill, System, Tool, ToolCall, ToolResult, UserMedia, UserText
from tugline.core.turn import Turn
from tugline.store import RunStore
from tugline.store.frames import Frames
from unit.store.samples import Builder, call_for, row_of

text = st.text(max_size=30)
maybe = st.none() | text
calls = st.lists(st.builds(ToolCall, text, text, text), max_size=2).map(tuple)
assistants = st.builds(Assistant, maybe, maybe, calls)
items = st.lists(
    st.builds(System, text, text)
    | st.builds(UserText, text, st.booleans())
    | st.builds(UserMedia, text, text, st.booleans())
    | st.builds(ToolResult, text, text, maybe)
    | assistants
    | st.builds(Prefill, text),
    max_size=4,
).map(tuple)
heads = st.builds(Head, st.lists(st.builds(Tool, text, text), max_size=2).map(tuple), text)


@st.composite
def trees(draw: st.DrawFn) -> Builder:
    builder = Builder("ses", seed=draw(st.integers(0, 2**32)))
    for n in range(draw(st.integers(1, 8))):
        parent = draw(st.none() | st.integers(0, n - 1)) if n else None
        builder.add(
            None if parent is None else builder.turns[parent].turn_id,
            bridge=draw(st.integers(0, 60)),
            sampled=draw(st.integers(0, 60)),
            trim=draw(st.integers(0, 2)),
        )
    return builder


@st.composite
def decorated(draw: st.DrawFn, builder: Builder) -> list[Turn]:
    return [replace(t, head=draw(heads), items=draw(items), echo=draw(assistants)) for t in builder.turns]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_trees_round_trip(data: st.DataObject) -> None:
    builder = data.draw(trees())
    turns = data.draw(decorated(builder))
    leaves = data.draw(st.lists(st.sampled_from(turns), max_size=2))
    rows = [row_of(builder, leaf, f"trace-{n}") for n, leaf in enumerate(leaves)]

    async def write(run: Path) -> None:
        async with RunStore.create(run, "") as store:
            for turn in turns:
                await store.commit(call_for(turn), turn)
            await store.put_traces("ses", rows)
            assert store.iter_turns("ses") == turns

    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        asyncio.run(write(run))
        with RunStore.open(run, write=False) as done:
            assert done.iter_turns("ses") == turns
            assert done.iter_calls("ses") == [call_for(t) for t in turns]
            assert done.iter_traces("ses") == rows
            for turn in turns:
                full = builder.full[turn.turn_id]
                assert done.prompt(turn.turn_id) == full[: len(full) - len(turn.sampled)]


@given(st.binary(max_size=600), st.integers(0, 40))
def test_frames_give_back_any_bytes(data: bytes, repeat: int) -> None:
    frames = Frames()
    data *= repeat
    assert frames.unpack("t.c/1", frames.pack("t.c/1", data), "here") == data
    assert frames.unpack("t.c/1", frames.pack_column("t.c/1", data), "here") == data


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=300), st.integers(0, 2**32 - 1))
def test_columns_keep_every_bit(values: list[int], bits: int) -> None:
    frames = Frames()
    ids = Ids(np.array(values, dtype="<i4").tobytes())
    odd = Floats(np.full(len(values), bits, dtype="<u4").tobytes())
    for column in (ids, odd):
        assert frames.unpack("p", frames.pack_column("p", column), "here") == column
