"""What anyone may ask of a run directory, live or finished. Synchronous; safe from any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tugline.core.columns import Ids
from tugline.core.contracts import Verdict
from tugline.core.errors import VerifyError
from tugline.core.session import SessionState
from tugline.core.trace import Trace, Trajectory
from tugline.core.turn import CallRecord, Turn
from tugline.store import reads
from tugline.store.pool import Connections, snapshot


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as it was put. `info` is what the caller gave (JSON)."""

    group_id: str
    task_id: str
    n: int
    info: Any


class RunReader:
    """Read access. All methods raise VerifyError for damage (naming the place) and RunError when it cannot be read."""

    def __init__(self, path: Path, connections: Connections) -> None:
        self.path = path
        self._connections = connections

    def sessions(self) -> list[tuple[SessionState, float]]:
        """Latest state of every session with the Unix time of its last change, in order of first appearance."""
        query = (
            "SELECT s.session_id, s.state, s.wall FROM sessions s"
            " JOIN (SELECT session_id, min(id) AS first FROM transitions GROUP BY session_id) t USING (session_id)"
            " ORDER BY t.first"
        )
        with self._connections.borrow() as conn:
            return [(reads.state_of(conn, key, blob), wall) for key, blob, wall in conn.db.execute(query)]

    def session(self, session_id: str) -> tuple[SessionState, float] | None:
        """Latest state of one session with the Unix time of its last change, or None."""
        query = "SELECT state, wall FROM sessions WHERE session_id = ?"
        with self._connections.borrow() as conn:
            found = conn.db.execute(query, (session_id,)).fetchone()
            return None if found is None else (reads.state_of(conn, session_id, found[0]), found[1])

    def page(
        self, limit: int, after: str = "", group: str | None = None, keep: Callable[[SessionState], bool] | None = None
    ) -> list[tuple[SessionState, float]]:
        """At most `limit` sessions in order of their ids, which is the order of their creation, behind the id `after`;
        of one group, and of those that `keep` takes."""
        query = "SELECT session_id, state, wall FROM sessions WHERE session_id > ?"
        values: tuple[str, ...] = (after,)
        if group is not None:
            query, values = query + " AND group_id = ?", (after, group)
        page: list[tuple[SessionState, float]] = []
        with self._connections.borrow() as conn:
            for key, blob, wall in conn.db.execute(query + " ORDER BY session_id", values):
                state = reads.state_of(conn, key, blob)
                if keep is None or keep(state):
                    page.append((state, wall))
                if len(page) >= limit:
                    break
        return page

    def about(self, session_id: str) -> Any:
        """The JSON value that the opener of a session left with it, or None."""
        return self.meta(reads.about_key(session_id))

    def history(self, session_id: str) -> list[tuple[str, float]]:
        """(state name, Unix time) of each transition of a session, in order."""
        query = "SELECT name, wall FROM transitions WHERE session_id = ? ORDER BY id"
        with self._connections.borrow() as conn:
            return [(name, wall) for name, wall in conn.db.execute(query, (session_id,))]

    def states(self, session_id: str) -> list[SessionState]:
        """Every state that a session was in, in order."""
        query = "SELECT state FROM transitions WHERE session_id = ? ORDER BY id"
        with self._connections.borrow() as conn:
            return [reads.state_of(conn, session_id, blob) for (blob,) in conn.db.execute(query, (session_id,))]

    def iter_sessions(self) -> Sequence[SessionState]:
        """Latest state of every session."""
        return [state for state, _ in self.sessions()]

    def iter_calls(self, session_id: str) -> Sequence[CallRecord]:
        """Calls of a session in commit order."""
        with self._connections.borrow() as conn:
            return reads.calls(conn, session_id)

    def session_of(self, name: str) -> str | None:
        """Session of a call or a turn by its id, or None."""
        query = (
            "SELECT session_id FROM calls WHERE call_id = ? UNION ALL SELECT session_id FROM turns WHERE turn_id = ?"
        )
        with self._connections.borrow() as conn:
            found = conn.db.execute(query, (name, name)).fetchone()
            return None if found is None else str(found[0])

    def iter_turns(self, session_id: str) -> Sequence[Turn]:
        """Turns of a session in commit order: a parent always stands before its children."""
        with self._connections.borrow() as conn:
            return reads.turns(conn, session_id)

    def iter_traces(self, session_id: str) -> Sequence[Trace]:
        """Training rows of a session in the order given."""
        with self._connections.borrow() as conn:
            return reads.traces(conn, session_id)

    def prompt(self, turn_id: str) -> Ids:
        """Full prompt ids of a turn, rebuilt from at most a quarter of its turns, or 50. Raises NotFound."""
        with self._connections.borrow() as conn:
            return reads.prompt_and_sampled(conn, turn_id)[0]

    def trajectory(self, session_id: str) -> Trajectory | None:
        """What was put for a session, or None."""
        with self._connections.borrow() as conn, snapshot(conn):
            query = "SELECT record FROM trajectories WHERE session_id = ?"
            found = conn.db.execute(query, (session_id,)).fetchone()
            if found is None:
                return None
            where = f"session {session_id}, trajectory, column record"
            data = conn.rows.frames.unpack(f"trajectories.record/{session_id}", found[0], where)
            record = conn.rows.records.trajectory(data, where)
            traces = reads.traces(conn, session_id)
        if len(traces) != record.rows:
            raise VerifyError(f"session {session_id}: {len(traces)} training rows are stored, {record.rows} were put")
        return Trajectory(
            session_id=session_id,
            group_id=record.group_id,
            outcome=record.outcome,
            failure=record.failure,
            reward=record.reward,
            reward_parts=record.reward_parts,
            traces=tuple(traces),
            untrained=record.untrained,
        )

    def verdict(self, session_id: str) -> Verdict | None:
        """The last verdict put for a session, or None."""
        with self._connections.borrow() as conn:
            query = "SELECT record FROM verdicts WHERE session_id = ?"
            found = conn.db.execute(query, (session_id,)).fetchone()
            if found is None:
                return None
            where = f"session {session_id}, verdict, column record"
            data = conn.rows.frames.unpack(f"verdicts.record/{session_id}", found[0], where)
            reward, parts = conn.rows.records.verdict(data, where)
            return Verdict(reward, parts)

    def groups(self) -> list[StoredGroup]:
        """All groups in the order they were put."""
        with self._connections.borrow() as conn:
            rows = conn.db.execute("SELECT group_id, task_id, n, info FROM groups ORDER BY rowid").fetchall()
            return [
                StoredGroup(
                    key,
                    task,
                    n,
                    msgspec.json.decode(
                        conn.rows.frames.unpack(f"groups.info/{key}/{task}/{n}", blob, f"group {key}, column info")
                    ),
                )
                for key, task, n, blob in rows
            ]

    def sealed(self, session_id: str) -> bool:
        """Whether a session takes no more calls."""
        with self._connections.borrow() as conn:
            return conn.db.execute("SELECT 1 FROM seals WHERE session_id = ?", (session_id,)).fetchone() is not None

    def meta(self, key: str) -> Any:
        """The JSON value put under a key, or None."""
        with self._connections.borrow() as conn:
            found = conn.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            if found is None:
                return None
            return msgspec.json.decode(
                conn.rows.frames.unpack(f"meta.value/{key}", found[0], f"meta {key}, column value")
            )
