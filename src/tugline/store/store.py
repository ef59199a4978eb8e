"""The run directory as one object: opened by one writer, read by anyone."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec

import tugline
from tugline.core.clock import Clock, SystemClock
from tugline.core.contracts import Verdict
from tugline.core.errors import RunError, StoreError, VerifyError, boundary
from tugline.core.session import SessionState
from tugline.core.trace import Trace, Trajectory
from tugline.core.turn import CallOutcome, CallRecord, Turn
from tugline.store import reads, writes
from tugline.store.lock import RunLock
from tugline.store.place import NETWORK, file_system, write_whole
from tugline.store.pool import Connection, Connections, ReadPool, SharedReads
from tugline.store.reader import RunReader
from tugline.store.records import Records
from tugline.store.rows import TraceRow
from tugline.store.schema import MIGRATIONS, connect, make_durable, migrate, version
from tugline.store.writer import Writer

T = TypeVar("T")

SETTINGS, DATABASE, LOCK, SESSIONS = "run.toml", "run.db", "lock", "sessions"


@dataclass(slots=True)
class _Held:
    """What only the writing process has."""

    lock: RunLock
    conn: Connection
    writer: Writer
    warnings: tuple[str, ...]


class RunStore(RunReader):
    """A run directory. Make one with `create`, `open` or `open_or_create`; also a context manager (sync and async)."""

    def __init__(self, path: Path, connections: Connections, clock: Clock, held: _Held | None) -> None:
        super().__init__(path, connections)
        self._clock = clock
        self._held = held
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @classmethod
    def create(
        cls, path: Path, settings_toml: str, *, clock: Clock | None = None, exclusive: bool | None = None
    ) -> RunStore:
        """A new run directory, or an empty one. `exclusive` locks the database file for this process alone; None: on
        network file systems. Raises RunError when something else is there or another process is faster."""
        if (path / DATABASE).exists():
            raise RunError(f"{path} is a run already: open it, or choose another directory")
        if (path / SETTINGS).exists():
            raise RunError(f"{path} has a {SETTINGS} but no {DATABASE}: not a run directory; choose another one")
        with boundary(RunError, f"create {path}"):
            path.mkdir(parents=True, exist_ok=True)
        return cls._write_access(path, settings_toml, clock or SystemClock(), exclusive)

    @classmethod
    def open(cls, path: Path, *, write: bool, clock: Clock | None = None, exclusive: bool | None = None) -> RunStore:
        """An existing run. `write=False` never locks or changes anything and works while the run goes on.

        Raises RunError when it is no run, is in use (naming the owner) or was written by a newer Tugline.
        """
        if not (path / DATABASE).is_file():
            raise RunError(f"{path} is not a run directory (no {DATABASE} in it)")
        if write:
            return cls._write_access(path, None, clock or SystemClock(), exclusive)
        return cls._read_access(path, clock or SystemClock())

    @classmethod
    def open_or_create(cls, path: Path, settings_toml: str, *, clock: Clock | None = None) -> RunStore:
        """Go on with a run, or begin one. Settings that differ from the last ones replace run.toml; meta("settings")
        keeps them all."""
        if (path / DATABASE).is_file():
            return cls._write_access(path, settings_toml, clock or SystemClock(), None)
        return cls.create(path, settings_toml, clock=clock)

    # ------------------------------------------------------------------------------------------------ CallLog

    async def commit(self, call: CallRecord, turn: Turn | None) -> None:
        """See `core.contracts.CallLog`. A commit whose await was cancelled may or may not have happened."""
        await self._write(lambda conn: writes.commit(conn, call, turn))

    async def mark(self, call_id: str, outcome: CallOutcome) -> None:
        """See `core.contracts.CallLog`."""
        await self._write(lambda conn: writes.mark(conn, call_id, outcome))

    async def seal(self, session_id: str) -> None:
        """See `core.contracts.CallLog`."""
        await self._write(lambda conn: writes.seal(conn, session_id, self._clock.wall()))

    async def load_turns(self, session_id: str) -> Sequence[Turn]:
        """See `core.contracts.CallLog`. Raises VerifyError for damage."""
        return await asyncio.to_thread(self.iter_turns, session_id)

    async def load_calls(self, session_id: str) -> Sequence[CallRecord]:
        """See `core.contracts.CallLog`. Raises VerifyError for damage."""
        return await asyncio.to_thread(self.iter_calls, session_id)

    # ------------------------------------------------------------------------------------- the rollout service

    async def put_session(self, state: SessionState) -> None:
        """Durable transition, with its time. Repeating the present state is nothing. Raises StoreError."""
        await self._write(lambda conn: writes.put_session(conn, state, self._clock.wall()))

    async def put_group(self, group_id: str, task_id: str, n: int, info: object = None) -> None:
        """Name a group of `n` sessions; `info` is any JSON value. Raises StoreError when it differs from before."""
        data = msgspec.json.encode(info)
        await self._write(lambda conn: writes.put_group(conn, group_id, task_id, n, data, self._clock.wall()))

    async def put_verdict(self, session_id: str, verdict: Verdict) -> None:
        """What the verifier said; the last one stands. Raises StoreError."""
        await self._write(lambda conn: writes.put_verdict(conn, session_id, verdict, self._clock.wall()))

    async def put_traces(self, session_id: str, traces: Sequence[Trace]) -> None:
        """Replace a session's training rows. Its turns must be stored. Raises StoreError."""
        rows = await asyncio.to_thread(self._pack_traces, session_id, traces)
        await self._write(lambda conn: writes.put_traces(conn, session_id, rows))

    async def put_trajectory(self, trajectory: Trajectory) -> None:
        """Replace a session's trajectory with its rows. Raises StoreError."""
        rows = await asyncio.to_thread(self._pack_traces, trajectory.session_id, trajectory.traces)
        await self._write(lambda conn: writes.put_trajectory(conn, trajectory, rows, self._clock.wall()))

    async def put_meta(self, key: str, value: object) -> None:
        """Store a JSON value under a key. Raises StoreError."""
        await self._write(lambda conn: writes.put_meta(conn, {key: value}))

    async def put_about(self, session_id: str, value: object) -> None:
        """Keep a JSON value with a session until it is deleted; the last one stands. Raises StoreError."""
        await self.put_meta(reads.about_key(session_id), value)

    async def delete_session(self, session_id: str) -> None:
        """Remove every record of an ended session and its directory; unknown ones are ignored. The engine's journal
        keeps what the engine did. Raises StoreError (code session_open) for a session that has not ended."""
        await self._write(lambda conn: writes.delete_session(conn, session_id))
        await asyncio.to_thread(shutil.rmtree, self.path / SESSIONS / session_id, ignore_errors=True)

    # --------------------------------------------------------------------------------------------- life

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the opener should be told: a lock taken over from a dead process, a network file system."""
        return self._held.warnings if self._held else ()

    def session_dir(self, session_id: str) -> Path:
        """RUN/sessions/<id>/, created when written to."""
        path = self.path / SESSIONS / session_id
        if self._held is not None:
            path.mkdir(parents=True, exist_ok=True)
        return path

    async def close(self) -> None:
        """Write what is queued, fold the WAL into run.db, release the lock. Idempotent."""
        await asyncio.to_thread(self.close_now)

    def close_now(self) -> None:
        """`close` for callers without an event loop; blocks."""
        held = self._held
        if held is not None:
            held.writer.stop()
        self._connections.close()
        if held is not None:
            self._held = None
            with suppress(sqlite3.Error):  # a reader elsewhere keeps the WAL: run.db stays whole with it
                held.conn.db.execute("PRAGMA busy_timeout=0")
                held.conn.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                # one plain file that opens anywhere, also from read-only media
                held.conn.db.execute("PRAGMA journal_mode=DELETE")
            held.conn.db.close()
            held.lock.release()
        if self._scratch is not None:
            self._scratch.cleanup()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None) -> None:
        self.close_now()

    async def __aenter__(self) -> RunStore:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------------------------------------------- inside

    async def _write(self, work: Callable[[Connection], T]) -> T:
        if self._held is None:
            raise StoreError(f"{self.path} is not open for writing")
        return await asyncio.wrap_future(self._held.writer.submit(work))

    def _pack_traces(self, session_id: str, traces: Sequence[Trace]) -> list[TraceRow]:
        for trace in traces:
            if trace.session_id != session_id:
                raise StoreError(f"trace {trace.trace_id} is of session {trace.session_id}, not {session_id}")
        try:
            with self._connections.borrow() as conn:
                turns = {t.turn_id: t for t in reads.turns(conn, session_id)} if traces else {}
                return [conn.rows.pack_trace(trace, turns) for trace in traces]
        except (RunError, VerifyError) as err:
            raise StoreError(f"training rows of session {session_id}: {err.message}") from err

    @classmethod
    def _write_access(cls, path: Path, settings: str | None, clock: Clock, exclusive: bool | None) -> RunStore:
        with boundary(RunError, f"open {path}"):
            lock = RunLock.acquire(path / LOCK, clock.wall())
            try:
                kind = file_system(path)
                alone = kind in NETWORK if exclusive is None else exclusive
                return cls._with_lock(path, settings, clock, lock, kind if alone else None)
            except BaseException:
                lock.release()
                raise

    @classmethod
    def _with_lock(
        cls, path: Path, settings: str | None, clock: Clock, lock: RunLock, exclusive_on: str | None
    ) -> RunStore:
        file, records = path / DATABASE, Records()
        db = connect(file, mode="rwc", exclusive=exclusive_on is not None)
        try:
            version(db, file)
            make_durable(db)
            migrate(db, file)
            conn = Connection.over(db, records)
            warnings = _warnings(path, lock, exclusive_on)
            _note_opening(conn, path, settings, clock.wall(), warnings)
            (path / SESSIONS).mkdir(exist_ok=True)
        except BaseException:
            db.close()
            raise
        turn = threading.Lock()
        writer = Writer(conn, file, turn)
        reads_: Connections = SharedReads(file, conn, turn) if exclusive_on is not None else ReadPool(file, records)
        return cls(path, reads_, clock, _Held(lock, conn, writer, warnings))

    @classmethod
    def _read_access(cls, path: Path, clock: Clock) -> RunStore:
        file, records, scratch = path / DATABASE, Records(), None
        with closing(connect(file, mode="ro")) as db:
            if version(db, file) < len(MIGRATIONS):
                scratch = tempfile.TemporaryDirectory(prefix="tugline-")
                file = _upgraded_copy(db, file, Path(scratch.name))
        store = cls(path, ReadPool(file, records), clock, None)
        store._scratch = scratch
        return store


def _upgraded_copy(db: sqlite3.Connection, file: Path, scratch: Path) -> Path:
    """Readers change nothing in a run directory: an older schema is brought up to date in a copy."""
    copy = scratch / DATABASE
    with closing(sqlite3.connect(copy)) as target:
        db.backup(target)
    with closing(connect(copy, mode="rw")) as target:
        migrate(target, file)
    return copy


def _warnings(path: Path, lock: RunLock, exclusive_on: str | None) -> tuple[str, ...]:
    found = []
    if lock.dead is not None:
        found.append(f"{path} was left behind by {lock.dead}; going on with it")
    if exclusive_on is not None:
        found.append(
            f"{path} lies on {exclusive_on or 'a file system of unknown type'}: run.db is locked for this process "
            "alone, so verify, report and view work only after it has ended"
        )
    return tuple(found)


def _note_opening(conn: Connection, path: Path, settings: str | None, wall: float, warnings: tuple[str, ...]) -> None:
    """Keep who opened the run with which settings, in one transaction; then show the newest settings in run.toml."""
    values: dict[str, Any] = {}
    found = {
        key: msgspec.json.decode(conn.rows.frames.unpack(f"meta.value/{key}", blob, f"meta {key}"))
        for key, blob in conn.db.execute("SELECT key, value FROM meta WHERE key IN ('settings', 'opened')")
    }
    values["opened"] = [
        *found.get("opened", []),
        {"wall": wall, "tugline": tugline.__version__, "warnings": list(warnings)},
    ]
    kept = found.get("settings", [])
    if settings is not None and (not kept or kept[-1]["toml"] != settings):
        values["settings"] = [*kept, {"wall": wall, "toml": settings}]
    conn.db.execute("BEGIN IMMEDIATE")
    writes.put_meta(conn, values)
    conn.db.execute("COMMIT")
    if settings is not None and ("settings" in values or not (path / SETTINGS).exists()):
        write_whole(path / SETTINGS, settings)
