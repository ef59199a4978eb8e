import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tugline.core.clock import ManualClock
from tugline.core.errors import RunError
from tugline.store import RunStore, schema
from tugline.store.place import file_system
from unit.store.samples import Builder, call_for


async def test_settings_are_kept_as_text_and_as_history(tmp_path: Path) -> None:
    run, clock = tmp_path / "a" / "run", ManualClock(5.0)
    await RunStore.open_or_create(run, "n = 1\n", clock=clock).close()
    clock.advance(1)
    await RunStore.open_or_create(run, "n = 1\n", clock=clock).close()
    await RunStore.open_or_create(run, "n = 2\n", clock=clock).close()
    assert (run / "run.toml").read_text() == "n = 2\n"
    with RunStore.open(run, write=False) as store:
        assert store.meta("settings") == [{"wall": 5.0, "toml": "n = 1\n"}, {"wall": 6.0, "toml": "n = 2\n"}]
        assert [o["wall"] for o in store.meta("opened")] == [5.0, 6.0, 6.0]


def test_what_is_no_run_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run directory"):
        RunStore.open(tmp_path, write=False)
    with pytest.raises(RunError, match="not a run directory"):
        RunStore.open(tmp_path, write=True)
    (tmp_path / "run.toml").write_text("mine")
    with pytest.raises(RunError, match=r"no run\.db"):
        RunStore.open_or_create(tmp_path, "theirs")
    assert (tmp_path / "run.toml").read_text() == "mine"
    assert [p.name for p in tmp_path.iterdir()] == ["run.toml"]
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="create"):
        RunStore.create(tmp_path / "file" / "run", "")


def test_a_run_is_created_once(tmp_path: Path) -> None:
    RunStore.create(tmp_path / "run", "").close_now()
    with pytest.raises(RunError, match="a run already"):
        RunStore.create(tmp_path / "run", "")


@pytest.mark.parametrize("write", [True, False])
def test_foreign_and_newer_databases_are_refused(tmp_path: Path, *, write: bool) -> None:
    (tmp_path / "run.db").write_bytes(b"not sqlite at all" * 100)
    with pytest.raises(RunError, match="cannot be opened"):
        RunStore.open(tmp_path, write=write)
    (tmp_path / "run.db").unlink()
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        db.execute("CREATE TABLE t (x)")
        db.execute("PRAGMA user_version = 1")
    with pytest.raises(RunError, match="not a run's database"):
        RunStore.open(tmp_path, write=write)
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        db.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(RunError, match=r"newer Tugline \(schema 99; .*upgrade"):
        RunStore.open(tmp_path, write=write)
    assert not (tmp_path / "lock").exists() or (tmp_path / "lock").read_bytes() == b""


async def test_older_runs_open_after_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Builder("ses").add()
    async with RunStore.create(tmp_path, "") as store:
        await store.commit(call_for(turn), turn)
    before = (tmp_path / "run.db").read_bytes()
    grown = (*schema.MIGRATIONS, "CREATE TABLE extra (x); ALTER TABLE turns ADD COLUMN note TEXT;")
    monkeypatch.setattr("tugline.store.store.MIGRATIONS", grown)
    monkeypatch.setattr(schema.version, "__defaults__", (grown,))
    monkeypatch.setattr(schema.migrate, "__defaults__", (grown,))
    with RunStore.open(tmp_path, write=False) as reader:
        assert reader.iter_turns("ses") == [turn]
        scratch = Path(reader._scratch.name) if reader._scratch else None
        with reader._connections.borrow() as conn:
            assert conn.db.execute("SELECT count(*) FROM extra").fetchone() == (0,)
    assert scratch is not None
    assert not scratch.exists()
    assert (tmp_path / "run.db").read_bytes() == before
    async with RunStore.open(tmp_path, write=True) as store:
        assert store.iter_turns("ses") == [turn]
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (len(grown),)


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "run.db"
    with closing(schema.connect(file, mode="rwc")) as db:
        schema.migrate(db, file)
        with pytest.raises(RunError, match="schema 2"):
            schema.migrate(db, file, (*schema.MIGRATIONS, "CREATE TABLE extra (x); CREATE TABLE meta (x);"))
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert db.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'extra'").fetchone() == (0,)


async def test_exclusive_locking_works_without_shared_memory_and_says_so(tmp_path: Path) -> None:
    builder = Builder("ses")
    turns = builder.chain(3)
    async with RunStore.create(tmp_path / "run", "", exclusive=True) as store:
        assert "only after it has ended" in " ".join(store.warnings)
        for turn in turns:
            await store.commit(call_for(turn), turn)
        assert await store.load_turns("ses") == turns
        assert (tmp_path / "run" / "run.db-wal").exists()
        assert not (tmp_path / "run" / "run.db-shm").exists()
        assert store.meta("opened")[-1]["warnings"] == list(store.warnings)
    with RunStore.open(tmp_path / "run", write=False) as done:
        assert done.iter_turns("ses") == turns


async def test_a_finished_run_can_be_read_from_a_read_only_copy(tmp_path: Path) -> None:
    turn = Builder("ses").add()
    async with RunStore.create(tmp_path / "run", "") as store:
        await store.commit(call_for(turn), turn)
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "run.db").write_bytes((tmp_path / "run" / "run.db").read_bytes())
    (copy / "run.db").chmod(stat.S_IRUSR)
    copy.chmod(stat.S_IRUSR | stat.S_IXUSR)
    try:
        with RunStore.open(copy, write=False) as done:
            assert done.iter_turns("ses") == [turn]
        assert os.listdir(copy) == ["run.db"]
    finally:
        copy.chmod(stat.S_IRWXU)


def test_the_file_system_is_the_innermost_mount(tmp_path: Path) -> None:
    inner = tmp_path / "with space"
    inner.mkdir()
    point = str(inner).replace(" ", "\\040")
    mounts = (
        "20 1 8:1 / / rw,relatime - ext4 /dev/root rw\n"
        f"21 20 0:50 / {tmp_path}x rw - tmpfs none rw\n"
        f"22 20 0:51 / {point} rw shared:1 - nfs4 server:/x rw\n"
        "garbage\n"
    )
    assert file_system(inner, mounts) == "nfs4"
    assert file_system(tmp_path, mounts) == "ext4"
    assert file_system(tmp_path, "") == ""
