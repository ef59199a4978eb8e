"""run.db's tables, how they grow from version to version, and how a connection is opened.

A release that changes a table appends one step to `MIGRATIONS`; steps never change once released.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from tugline.core.errors import RunError, describe

APPLICATION_ID = 0x54554752
"""Marks run.db as ours in the SQLite header ("TUGR")."""

_V1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE groups (
  group_id TEXT PRIMARY KEY, task_id TEXT NOT NULL, n INTEGER NOT NULL, info BLOB NOT NULL, wall REAL NOT NULL);
CREATE TABLE sessions (session_id TEXT PRIMARY KEY, group_id TEXT NOT NULL, state BLOB NOT NULL, wall REAL NOT NULL);
CREATE INDEX sessions_in ON sessions (group_id);
CREATE TABLE transitions (
  id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, name TEXT NOT NULL, state BLOB NOT NULL, wall REAL NOT NULL);
CREATE INDEX transitions_of ON transitions (session_id);
CREATE TABLE seals (session_id TEXT PRIMARY KEY, wall REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE calls (
  id INTEGER PRIMARY KEY, call_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL, turn_id TEXT,
  payload BLOB NOT NULL, record BLOB NOT NULL);
CREATE INDEX calls_of ON calls (session_id);
CREATE TABLE heads (digest BLOB PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE turns (
  id INTEGER PRIMARY KEY, turn_id TEXT NOT NULL UNIQUE, session_id TEXT NOT NULL, parent TEXT, depth INTEGER NOT NULL,
  head BLOB NOT NULL, record BLOB NOT NULL, bridge BLOB NOT NULL, sampled BLOB NOT NULL, logprobs BLOB NOT NULL,
  items BLOB NOT NULL, echo BLOB NOT NULL);
CREATE INDEX turns_of ON turns (session_id);
CREATE INDEX turns_under ON turns (head);
CREATE TABLE prompts (turn_id TEXT PRIMARY KEY, ids BLOB NOT NULL);
CREATE TABLE trajectories (session_id TEXT PRIMARY KEY, record BLOB NOT NULL, wall REAL NOT NULL);
CREATE TABLE verdicts (session_id TEXT PRIMARY KEY, record BLOB NOT NULL, wall REAL NOT NULL);
CREATE TABLE traces (
  id INTEGER PRIMARY KEY, session_id TEXT NOT NULL, trace_id TEXT NOT NULL, record BLOB NOT NULL,
  tail BLOB NOT NULL, mask BLOB NOT NULL, logprobs BLOB NOT NULL, UNIQUE (session_id, trace_id));
"""

MIGRATIONS: tuple[str, ...] = (_V1,)
"""MIGRATIONS[i] leads from schema version i to i + 1."""


def connect(file: Path, *, mode: str, exclusive: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread, one at a time. `mode` is ro, rw or rwc.

    Raises RunError when the file is no SQLite database or cannot be opened.
    """
    try:
        db = sqlite3.connect(
            f"file:{quote(str(file.absolute()))}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=10.0,
        )
        try:
            if exclusive:
                # set before the first access: WAL then lives in heap memory instead of a shared-memory file
                db.execute("PRAGMA locking_mode=EXCLUSIVE")
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error:
            db.close()
            raise
    except sqlite3.Error as err:
        raise RunError(f"{file} cannot be opened as a run's database: {describe(err)}") from err
    return db


def make_durable(db: sqlite3.Connection) -> None:
    """WAL with synchronous=NORMAL: a commit survives kill -9; a power cut may cost the last ones."""
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("PRAGMA journal_size_limit=67108864")


def version(db: sqlite3.Connection, file: Path, migrations: Sequence[str] = MIGRATIONS) -> int:
    """The schema version. Raises RunError for a foreign file or one written by a newer Tugline."""
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    owner = int(db.execute("PRAGMA application_id").fetchone()[0])
    if found and owner != APPLICATION_ID:
        raise RunError(f"{file} is not a run's database")
    if found > len(migrations):
        raise RunError(
            f"{file} was written by a newer Tugline (schema {found}; this one reads up to {len(migrations)}): "
            "upgrade Tugline to open it"
        )
    return found


def migrate(db: sqlite3.Connection, file: Path, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring the schema up to date, one transaction per step. Raises RunError like `version`."""
    for step in range(version(db, file, migrations), len(migrations)):
        try:
            db.executescript(
                f"BEGIN IMMEDIATE;\n{migrations[step]}\n"
                f"PRAGMA application_id={APPLICATION_ID};\nPRAGMA user_version={step + 1};\nCOMMIT;"
            )
        except sqlite3.Error as err:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise RunError(f"{file} cannot be brought to schema {step + 1}: {describe(err)}") from err
