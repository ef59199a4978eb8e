"""One session, pages of sessions, what is said about one, and removing all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tugline.core.errors import StoreError
from tugline.core.session import Ended, Outcome, Running, SessionKey
from tugline.rollout.proof import prove_run
from tugline.store import RunStore
from unit.store.samples import Builder, call_for

TABLES = ("sessions", "transitions", "calls", "turns", "prompts", "trajectories", "verdicts", "traces", "meta")


async def add(store: RunStore, session_id: str, *, turns: int = 3, group: str = "g", ended: bool = True) -> None:
    key = SessionKey(session_id, group, "t", 0)
    await store.put_session(Running(key))
    await store.put_about(session_id, {"name": session_id})
    for turn in Builder(session_id, hash(session_id) % 1000).chain(turns):
        await store.commit(call_for(turn), turn)
    if ended:
        await store.seal(session_id)
        await store.put_session(Ended(key, Outcome.COMPLETED, 1.0))


def rows(store: RunStore, session_id: str) -> dict[str, int]:
    found = {}
    with store._connections.borrow() as conn:
        for table in TABLES:
            column = {"meta": "key", "prompts": "turn_id"}.get(table, "session_id")
            query = f"SELECT count(*) FROM {table} WHERE {column} LIKE ?"
            found[table] = conn.db.execute(query, (f"%{session_id}%",)).fetchone()[0]
    return found


async def test_a_deleted_session_leaves_no_record_and_the_others_whole(tmp_path: Path) -> None:
    async with RunStore.create(tmp_path / "run", "") as store:
        await add(store, "ses_a", turns=120)
        await add(store, "ses_b")
        (store.session_dir("ses_a") / "agent.log").write_text("x")
        before = rows(store, "ses_a")
        assert before["turns"] == 120 and before["prompts"] == 2 and before["meta"] == 1
        with store._connections.borrow() as conn:
            heads = conn.db.execute("SELECT count(*) FROM heads").fetchone()[0]
        await store.delete_session("ses_a")
        assert not any(rows(store, "ses_a").values())
        assert not (tmp_path / "run" / "sessions" / "ses_a").exists()
        assert store.session("ses_a") is None and store.about("ses_a") is None
        assert [t.turn_id for t in store.iter_turns("ses_b")] == ["ses_b.t0", "ses_b.t1", "ses_b.t2"]
        with store._connections.borrow() as conn:
            assert conn.db.execute("SELECT count(*) FROM heads").fetchone()[0] == heads
        assert not [f for f in prove_run(store, lambda _ref: None).findings if f.session_id == "ses_a"]
        await store.delete_session("ses_b")
        with store._connections.borrow() as conn:
            assert conn.db.execute("SELECT count(*) FROM heads").fetchone()[0] == 0
        await store.delete_session("ses_b")  # nothing is left to remove


async def test_what_comes_after_the_deletion_is_still_refused(tmp_path: Path) -> None:
    async with RunStore.create(tmp_path / "run", "") as store:
        await add(store, "ses_a", turns=0)
        await store.delete_session("ses_a")
        turn = Builder("ses_a").add()
        with pytest.raises(StoreError, match="sealed"):
            await store.commit(call_for(turn), turn)


async def test_an_open_session_is_not_deleted(tmp_path: Path) -> None:
    async with RunStore.create(tmp_path / "run", "") as store:
        await add(store, "ses_a", ended=False)
        with pytest.raises(StoreError, match="has not ended") as refused:
            await store.delete_session("ses_a")
        assert refused.value.detail_code == "session_open"
        assert len(store.iter_turns("ses_a")) == 3


async def test_pages_follow_ids_and_filters(tmp_path: Path) -> None:
    async with RunStore.create(tmp_path / "run", "") as store:
        for n in (3, 1, 4, 2, 5):
            await add(store, f"ses_{n}", turns=0, group="odd" if n % 2 else "even", ended=n != 3)
        ids = [s.key.session_id for s, _ in store.page(2)]
        assert ids == ["ses_1", "ses_2"]
        assert [s.key.session_id for s, _ in store.page(9, "ses_2")] == ["ses_3", "ses_4", "ses_5"]
        assert [s.key.session_id for s, _ in store.page(9, group="even")] == ["ses_2", "ses_4"]
        unfinished = store.page(9, keep=lambda s: not isinstance(s, Ended))
        assert [s.key.session_id for s, _ in unfinished] == ["ses_3"]
        assert store.page(0x7FFFFFFF, "ses_5") == []
