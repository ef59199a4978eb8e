import threading
from pathlib import Path

import pytest

from tugline.core.errors import StoreError, VerifyError
from tugline.store.pool import Connection
from tugline.store.records import Records
from tugline.store.schema import connect, make_durable
from tugline.store.writer import GROUP, Writer


class Bench:
    """A writer over a table of names, and a way to hold it while a queue builds up."""

    def __init__(self, file: Path) -> None:
        self.db = connect(file, mode="rwc")
        make_durable(self.db)
        self.db.execute("CREATE TABLE t (name TEXT UNIQUE, pad BLOB)")
        self.statements: list[str] = []
        self.db.set_trace_callback(self.statements.append)
        self.turn = threading.Lock()
        self.writer = Writer(Connection.over(self.db, Records()), file, self.turn)

    def put(self, name: str, size: int = 0):
        def work(conn: Connection) -> str:
            conn.db.execute("INSERT INTO t VALUES (?, zeroblob(?))", (name, size))
            return name

        return self.writer.submit(work)

    def names(self) -> list[str]:
        self.writer.stop()
        return [row[0] for row in self.db.execute("SELECT name FROM t ORDER BY rowid")]

    def commits(self) -> int:
        return self.statements.count("COMMIT")


@pytest.fixture
def bench(tmp_path: Path):
    bench = Bench(tmp_path / "x.db")
    yield bench
    bench.writer.stop()
    bench.db.close()


def test_what_queues_up_shares_commits(bench: Bench) -> None:
    with bench.turn:
        futures = [bench.put(f"n{i}") for i in range(2 * GROUP)]
    assert [f.result(10) for f in futures] == [f"n{i}" for i in range(2 * GROUP)]
    assert bench.names() == [f"n{i}" for i in range(2 * GROUP)]
    assert 2 <= bench.commits() <= 6


def test_a_refused_member_leaves_the_group_whole(bench: Bench) -> None:
    def refuse(conn: Connection) -> None:
        conn.db.execute("INSERT INTO t VALUES ('half', NULL)")
        raise StoreError("no")

    def damaged(_: Connection) -> None:
        raise VerifyError("damaged")

    def broken(_: Connection) -> None:
        raise ZeroDivisionError

    with bench.turn:
        good = [bench.put("a"), bench.put("b")]
        bad = [bench.put("a"), bench.writer.submit(refuse), bench.writer.submit(damaged), bench.writer.submit(broken)]
        good.append(bench.put("c"))
    assert [f.result(10) for f in good] == ["a", "b", "c"]
    for future, message in zip(bad, ("UNIQUE", "no", "damaged", "ZeroDivisionError"), strict=True):
        with pytest.raises(StoreError, match=message):
            future.result(10)
    assert bench.names() == ["a", "b", "c"]
    assert bench.commits() == 1


def test_when_a_group_cannot_be_written_only_its_guilty_members_fail(bench: Bench) -> None:
    pages = bench.db.execute("PRAGMA page_count").fetchone()[0]
    bench.db.execute(f"PRAGMA max_page_count = {pages + 10}")
    with bench.turn:
        futures = {
            name: bench.put(name, 200_000 if name.startswith("big") else 10) for name in ("a", "big", "b", "big2")
        }
    for name in ("a", "b"):
        assert futures[name].result(10) == name
    for name in ("big", "big2"):
        with pytest.raises(StoreError, match="database or disk is full") as caught:
            futures[name].result(10)
        assert caught.value.detail_code == "disk_full"
    bench.db.execute("PRAGMA max_page_count = 100000")
    assert bench.put("big", 200_000).result(10) == "big"
    assert bench.names() == ["a", "b", "big"]


def test_a_database_that_is_locked_elsewhere_fails_the_caller_and_not_the_writer(bench: Bench, tmp_path: Path) -> None:
    bench.db.execute("PRAGMA busy_timeout = 0")
    other = connect(tmp_path / "x.db", mode="rw")
    other.execute("BEGIN IMMEDIATE")
    for name in ("a", "b"):
        with pytest.raises(StoreError, match="locked"):
            bench.put(name).result(10)
    other.execute("ROLLBACK")
    other.close()
    assert bench.put("c").result(10) == "c"
    assert bench.names() == ["c"]


def test_cancelled_work_is_not_done(bench: Bench) -> None:
    with bench.turn:
        first = bench.put("first")
        futures = [bench.put(name) for name in ("a", "b", "c")]
        assert futures[1].cancel()
    assert first.result(10) == "first"
    assert futures[2].result(10) == "c"
    assert bench.names() == ["first", "a", "c"]


def test_nothing_is_accepted_after_stop(bench: Bench) -> None:
    bench.writer.stop()
    bench.writer.stop()
    with pytest.raises(StoreError, match="closed"):
        bench.put("late")
