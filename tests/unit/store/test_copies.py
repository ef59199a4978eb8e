"""Full copies of prompts: near enough to read from, few enough that a long session's store is linear in it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tugline.store import RunStore, writes
from tugline.store.writes import COPY_EVERY, copied_at
from unit.store.samples import Builder, call_for


def test_copies_grow_rarer_and_none_is_far() -> None:
    copies = [depth for depth in range(100_000) if copied_at(depth)]
    assert copies[:11] == [50, 100, 150, 200, 250, 300, 350, 400, 500, 600, 700]
    for depth, following in pairwise(copies):
        assert following - depth <= max(COPY_EVERY, depth // 4)
    for turns in (500, 5_000, 50_000):
        assert sum(depth for depth in copies if depth <= turns) < 7 * turns


async def test_every_prompt_is_read_back_whatever_lies_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "COPY_EVERY", 2)
    builder = Builder("ses")
    turns = builder.chain(70)
    async with RunStore.create(tmp_path / "run", "") as store:
        for turn in turns:
            await store.commit(call_for(turn), turn)
        assert store.iter_turns("ses") == turns
        for own in turns:
            assert store.prompt(own.turn_id) == builder.full[own.turn_id][: 4 * own.prompt_len]
        with store._connections.borrow() as conn:
            copies = [row[0] for row in conn.db.execute("SELECT turn_id FROM prompts ORDER BY rowid")]
    assert copies == [
        f"ses.t{n}" for n in range(70) if n in {2, 4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64}
    ]
