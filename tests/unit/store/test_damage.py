import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tugline.core.contracts import Verdict
from tugline.core.errors import VerifyError
from tugline.core.session import Ended, Failure, Outcome, SessionKey
from tugline.core.trace import Trajectory
from tugline.store import RunStore
from unit.store.samples import Builder, call_for, row_of


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    """A finished run with one session of 52 turns, one of them with a full prompt copy."""
    builder = Builder("ses")
    turns = builder.chain(51)
    leaf = builder.add(turns[-1].turn_id, bridge=400, sampled=300)
    row = row_of(builder, leaf)
    async with RunStore.create(tmp_path / "run", "") as store:
        for turn in builder.turns:
            await store.commit(call_for(turn), turn)
        await store.put_session(Ended(SessionKey("ses", "grp", "task", 0), Outcome.COMPLETED, 1.0))
        await store.put_trajectory(Trajectory("ses", "grp", Outcome.COMPLETED, Failure.NONE, 1.0, {}, (row,)))
        await store.put_verdict("ses", Verdict(1.0))
        await store.put_group("grp", "task", 1)
    return tmp_path / "run"


def read_all(run: Path) -> None:
    with RunStore.open(run, write=False) as store:
        store.sessions()
        store.iter_calls("ses")
        store.iter_turns("ses")
        store.iter_traces("ses")
        store.trajectory("ses")
        store.verdict("ses")
        store.groups()
        store.meta("opened")


def flip(run: Path, table: str, column: str, where: str, at: int) -> None:
    """Invert one bit of one stored blob."""
    with closing(sqlite3.connect(run / "run.db")) as db, db:
        ((blob,),) = db.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchall()
        damaged = bytearray(blob)
        damaged[at % len(damaged)] ^= 0x10
        db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (bytes(damaged),))


TURN = "turn_id = 'ses.t51'"
BLOBS = [
    *(
        ("turns", c, TURN, f"session ses, turn ses.t51, column {c}")
        for c in ("record", "bridge", "sampled", "logprobs")
    ),
    *(("turns", c, TURN, f"session ses, turn ses.t51, column {c}") for c in ("items", "echo")),
    ("turns", "head", TURN, "session ses, turn ses.t51, column head"),
    ("heads", "data", "1 ORDER BY length(data) DESC LIMIT 1", "column head"),
    ("prompts", "ids", "turn_id = 'ses.t50'", "session ses, turn ses.t50, column prompt"),
    ("calls", "record", "call_id = 'call-ses.t3'", "call call-ses.t3, column record"),
    ("sessions", "state", "session_id = 'ses'", "session ses, column state"),
    *(("traces", c, "1", f"session ses, trace trace-0, column {c}") for c in ("record", "tail", "mask", "logprobs")),
    ("trajectories", "record", "1", "session ses, trajectory"),
    ("verdicts", "record", "1", "session ses, verdict"),
    ("groups", "info", "1", "group grp"),
    ("meta", "value", "key = 'opened'", "meta opened"),
]


@pytest.mark.parametrize(("table", "column", "where", "named"), BLOBS, ids=[f"{b[0]}.{b[1]}" for b in BLOBS])
@pytest.mark.parametrize("at", [0, 5, 9, -1])
def test_one_flipped_bit_is_found_and_named(
    run: Path, table: str, column: str, where: str, named: str, at: int
) -> None:
    read_all(run)
    if table == "heads":
        with closing(sqlite3.connect(run / "run.db")) as db:
            (digest,) = db.execute("SELECT digest FROM heads ORDER BY length(data) DESC LIMIT 1").fetchone()
        where = f"digest = x'{digest.hex()}'"
    flip(run, table, column, where, at)
    with pytest.raises(VerifyError) as caught:
        read_all(run)
    assert named in caught.value.message


def swap_blobs(db: sqlite3.Connection) -> None:
    (one,) = db.execute("SELECT bridge FROM turns WHERE turn_id = 'ses.t2'").fetchone()
    db.execute("UPDATE turns SET bridge = ? WHERE turn_id = 'ses.t3'", (one,))


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (swap_blobs, "turn ses.t3, column bridge"),
        (lambda db: db.execute("UPDATE turns SET parent = 'ses.t1' WHERE turn_id = 'ses.t3'"), "ses.t3, column parent"),
        (lambda db: db.execute("UPDATE turns SET turn_id = 'x' WHERE turn_id = 'ses.t3'"), "turn x, column"),
        (lambda db: db.execute("UPDATE turns SET bridge = 'text' WHERE turn_id = 'ses.t3'"), "no valid frame"),
        (lambda db: db.execute("UPDATE turns SET bridge = x'00' WHERE turn_id = 'ses.t3'"), "no valid frame"),
        (lambda db: db.execute("DELETE FROM turns WHERE turn_id = 'ses.t51'"), "built on turn ses.t51"),
        (lambda db: db.execute("DELETE FROM heads"), "column head"),
        (lambda db: db.execute("DELETE FROM traces"), "0 training rows are stored, 1 were put"),
        (lambda db: db.execute("DROP TABLE prompts"), "run.db is damaged"),
    ],
)
def test_rows_that_were_moved_or_removed_are_found(
    run: Path, damage: Callable[[sqlite3.Connection], object], named: str
) -> None:
    with closing(sqlite3.connect(run / "run.db")) as db, db:
        damage(db)
    with pytest.raises(VerifyError) as caught:
        read_all(run)
    assert named in caught.value.message


def test_a_broken_page_is_a_verify_error(run: Path) -> None:
    raw = bytearray((run / "run.db").read_bytes())
    for start in range(4096, len(raw), 4096):
        raw[start : start + 64] = b"\xff" * 64
    (run / "run.db").write_bytes(raw)
    with pytest.raises(VerifyError, match=r"run\.db is damaged"):
        read_all(run)
