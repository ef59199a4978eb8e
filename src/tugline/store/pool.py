"""Connections to one run.db: each is used by one thread at a time, together with its own zstd contexts."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tugline.core.errors import RunError, VerifyError, describe
from tugline.store.frames import Frames
from tugline.store.records import Records
from tugline.store.rows import RowCodec
from tugline.store.schema import connect

_UNREACHABLE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_MISUSE)


@dataclass(frozen=True, slots=True)
class Connection:
    """A database handle and the codec that goes with it."""

    db: sqlite3.Connection
    rows: RowCodec

    @classmethod
    def over(cls, db: sqlite3.Connection, records: Records) -> Connection:
        """Give a handle its own codec."""
        return cls(db, RowCodec(records, Frames()))


@contextmanager
def snapshot(conn: Connection) -> Iterator[None]:
    """Queries that belong together see one state of the file, whatever is written or removed meanwhile."""
    conn.db.execute("BEGIN")
    try:
        yield
    finally:
        conn.db.execute("ROLLBACK")


class Connections(Protocol):
    """Where readers get their connection from."""

    def borrow(self) -> AbstractContextManager[Connection]: ...
    def close(self) -> None: ...


class ReadPool:
    """Read-only connections, opened as threads need them. Thread-safe."""

    def __init__(self, file: Path, records: Records) -> None:
        self._file = file
        self._records = records
        self._lock = threading.Lock()
        self._free: list[Connection] = []
        self._closed = False

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        """A connection for the duration of one query. Raises RunError when closed, VerifyError when damaged."""
        with self._lock:
            if self._closed:
                raise RunError(f"{self._file} has been closed")
            conn = self._free.pop() if self._free else None
        if conn is None:
            conn = Connection.over(connect(self._file, mode="ro"), self._records)
        try:
            with reading(self._file):
                yield conn
        finally:
            with self._lock:
                keep = not self._closed
                if keep:
                    self._free.append(conn)
            if not keep:
                conn.db.close()

    def close(self) -> None:
        """Close what is not in use now, and the rest when it comes back."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for conn in free:
            conn.db.close()


class SharedReads:
    """Reads through the writer's own connection: the only one there can be under an exclusive file lock."""

    def __init__(self, file: Path, writer: Connection, turn: threading.Lock) -> None:
        self._file = file
        self._writer = writer
        self._turn = turn
        self._closed = False

    @contextmanager
    def borrow(self) -> Iterator[Connection]:
        """The writer's connection, between two of its transactions."""
        with self._turn, reading(self._file):
            if self._closed:
                raise RunError(f"{self._file} has been closed")
            yield self._writer

    def close(self) -> None:
        """No more reads; the connection itself is the writer's to close."""
        with self._turn:
            self._closed = True


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.Error as err:
        if getattr(err, "sqlite_errorcode", None) in _UNREACHABLE:
            raise RunError(
                f"{file} cannot be read now: {describe(err)} (on a network file system only the running process can)"
            ) from err
        raise VerifyError(f"{file} is damaged: {describe(err)}") from err
