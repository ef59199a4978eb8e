"""The one thread that writes run.db. Commits at once when idle; what queues up meanwhile shares the next commit.

A member of a group that is refused (another payload under the same id, a sealed session) fails alone. When the group
itself cannot be written (full disk), each member is tried again in its own transaction, so that only those fail that
really cannot be written.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tugline.core.errors import StoreError, TuglineError, boundary, describe
from tugline.store.place import free_bytes
from tugline.store.pool import Connection

T = TypeVar("T")

GROUP = 25
"""Members of one commit, at most."""
GROUP_SECONDS = 0.02
"""A group takes no more members after this time."""


class _Unwritable(StoreError):
    """SQLite could not write: the transaction is lost, its other members are not to blame."""


@dataclass(eq=False, slots=True)
class _Job:
    work: Callable[[Connection], Any]
    future: Future[Any]
    error: TuglineError | None = None
    result: Any = field(default=None)


class Writer:
    """Owns a connection and its thread. `turn` is held during each transaction."""

    def __init__(self, conn: Connection, file: Path, turn: threading.Lock) -> None:
        self._conn = conn
        self._file = file
        self._turn = turn
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._closed = False
        # a daemon: what was acknowledged is durable, so nothing is lost when a process ends without close()
        self._thread = threading.Thread(target=self._loop, name=f"store {file.parent.name}", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Connection], T]) -> Future[T]:
        """Run `work` in a transaction; the future ends when it is durable, or with StoreError."""
        future: Future[T] = Future()
        with self._gate:
            if self._closed:
                raise StoreError(f"{self._file.parent} has been closed")
            self._jobs.put(_Job(work, future))
        return future

    def stop(self) -> None:
        """Finish what was submitted, then end the thread. Idempotent; blocks."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)
        self._thread.join()

    def _loop(self) -> None:
        stopped = False
        while not stopped:
            job = self._jobs.get()
            if job is None:
                return
            with self._turn:
                done, stopped = self._together(job)
            for member in done:
                _settle(member)

    def _together(self, first: _Job) -> tuple[list[_Job], bool]:
        """One group: (its members, whether the end of the queue was seen)."""
        members: list[_Job] = []
        until = time.monotonic() + GROUP_SECONDS
        job: _Job | None = first
        stopped = False
        try:
            self._execute("BEGIN IMMEDIATE")
            while job is not None:
                if job.future.set_running_or_notify_cancel():
                    members.append(job)
                    self._member(job)
                job = None
                if len(members) < GROUP and time.monotonic() < until and not self._jobs.empty():
                    job = self._jobs.get_nowait()
                    stopped = job is None
            self._execute("COMMIT")
        except _Unwritable as err:
            self._undo()
            if job is not None and job not in members and job.future.set_running_or_notify_cancel():
                members.append(job)  # BEGIN itself failed
            if len(members) == 1:
                members[0].error = err
            else:
                for member in members:
                    self._alone(member)
        return members, stopped

    def _member(self, job: _Job) -> None:
        """Run one job in a savepoint; being refused undoes it alone."""
        self._execute("SAVEPOINT member")
        try:
            job.result = self._run(job)
        except _Unwritable:
            raise
        except StoreError as err:
            self._execute("ROLLBACK TO member")
            job.error = err
        self._execute("RELEASE member")

    def _alone(self, job: _Job) -> None:
        job.error = job.result = None
        try:
            self._execute("BEGIN IMMEDIATE")
            job.result = self._run(job)
            self._execute("COMMIT")
        except StoreError as err:
            self._undo()
            job.error = err

    def _run(self, job: _Job) -> Any:
        try:
            with boundary(StoreError, f"write to {self._file.name}"):
                try:
                    return job.work(self._conn)
                except sqlite3.IntegrityError:
                    raise  # the row is refused, the transaction is whole
                except sqlite3.Error as err:
                    raise self._unwritable(err) from err
        except StoreError:
            raise
        except TuglineError as err:
            raise StoreError(err.message) from err

    def _execute(self, statement: str) -> None:
        try:
            self._conn.db.execute(statement)
        except sqlite3.Error as err:
            raise self._unwritable(err) from err

    def _undo(self) -> None:
        # a full disk may have rolled it back already; if this fails too, the next BEGIN says so to whoever comes next
        with contextlib.suppress(sqlite3.Error):
            if self._conn.db.in_transaction:
                self._conn.db.execute("ROLLBACK")

    def _unwritable(self, err: sqlite3.Error) -> _Unwritable:
        full = getattr(err, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL
        try:
            free = f"{free_bytes(self._file.parent) >> 20} MiB are free there"
        except OSError as gone:
            free = describe(gone)
        return _Unwritable(
            f"{self._file} cannot be written: {describe(err)} ({free})",
            code="disk_full" if full else None,
        )


def _settle(job: _Job) -> None:
    if job.error is not None:
        job.future.set_exception(job.error)
    else:
        job.future.set_result(job.result)
