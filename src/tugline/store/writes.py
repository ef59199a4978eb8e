"""What is written in a transaction, and when it is refused. Every function raises StoreError for a refusal."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from tugline.core.columns import Ids, concat, count, take
from tugline.core.contracts import Verdict
from tugline.core.errors import StoreError
from tugline.core.session import Ended, SessionState, state_name
from tugline.core.trace import Trajectory
from tugline.core.turn import CallOutcome, CallRecord, Turn
from tugline.store import reads
from tugline.store.pool import Connection
from tugline.store.records import TrajectoryRecord, encode
from tugline.store.rows import TraceRow, TurnRow

COPY_EVERY = 50
"""Least depth between full copies of a prompt."""

COPIES = 3
"""Bits of a copy's number that may be set at its top: copies stand at 1 to 8, 10, 12, 14, 16, 20, ... times the least
depth. So a prompt is rebuilt from at most a quarter of its turns, and all copies together are linear in the last."""


def commit(conn: Connection, call: CallRecord, turn: Turn | None) -> None:
    """Store a call and its turn. Doing it again is nothing."""
    row = conn.rows.pack_turn(turn) if turn is not None else None
    record = encode(call)
    payload = hashlib.blake2b(record + (row.payload if row is not None else b""), digest_size=16).digest()
    found = conn.db.execute("SELECT payload FROM calls WHERE call_id = ?", (call.call_id,)).fetchone()
    if found is not None:
        if found[0] != payload:
            raise StoreError(f"call {call.call_id} is already stored with another content", code="call_conflict")
        return
    refuse_sealed(conn, call.session_id)
    if turn is not None and row is not None:
        if turn.session_id != call.session_id or turn.turn_id != call.turn_id:
            raise StoreError(f"call {call.call_id} does not name turn {turn.turn_id} of its own session")
        _insert_turn(conn, turn, row)
    conn.db.execute(
        "INSERT INTO calls (call_id, session_id, turn_id, payload, record) VALUES (?, ?, ?, ?, ?)",
        (call.call_id, call.session_id, call.turn_id, payload, _call_blob(conn, call)),
    )


def mark(conn: Connection, call_id: str, outcome: CallOutcome) -> None:
    """Set a call's outcome: its delivery is known."""
    found = conn.db.execute("SELECT record FROM calls WHERE call_id = ?", (call_id,)).fetchone()
    if found is None:
        raise StoreError(f"call {call_id} is not stored")
    call = reads.call_of(conn, call_id, found[0])
    refuse_sealed(conn, call.session_id)
    if call.outcome is not outcome or not call.settled:
        blob = _call_blob(conn, replace(call, outcome=outcome, settled=True))
        conn.db.execute("UPDATE calls SET record = ? WHERE call_id = ?", (blob, call_id))


def seal(conn: Connection, session_id: str, wall: float) -> None:
    """Refuse what a session's calls would still write."""
    conn.db.execute("INSERT OR IGNORE INTO seals VALUES (?, ?)", (session_id, wall))


def refuse_sealed(conn: Connection, session_id: str) -> None:
    """Raise StoreError for a session that has ended."""
    if conn.db.execute("SELECT 1 FROM seals WHERE session_id = ?", (session_id,)).fetchone():
        raise StoreError(f"session {session_id} is sealed: it takes no more calls", code="session_sealed")


def put_session(conn: Connection, state: SessionState, wall: float) -> None:
    """Enter a state. Entering the present state again is nothing."""
    session_id = state.key.session_id
    blob = conn.rows.frames.pack(f"sessions.state/{session_id}", conn.rows.records.pack_state(state))
    found = conn.db.execute("SELECT state FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    if found is not None and found[0] == blob:
        return
    conn.db.execute(
        "INSERT INTO sessions VALUES (?, ?, ?, ?)"
        " ON CONFLICT (session_id) DO UPDATE SET group_id = excluded.group_id, state = excluded.state,"
        " wall = excluded.wall",
        (session_id, state.key.group_id, blob, wall),
    )
    conn.db.execute(
        "INSERT INTO transitions (session_id, name, state, wall) VALUES (?, ?, ?, ?)",
        (session_id, state_name(state), blob, wall),
    )


def put_group(conn: Connection, group_id: str, task_id: str, n: int, info: bytes, wall: float) -> None:
    """Name a group. Doing it again is nothing; with another content it is refused."""
    blob = conn.rows.frames.pack(f"groups.info/{group_id}/{task_id}/{n}", info)
    found = conn.db.execute("SELECT task_id, n, info FROM groups WHERE group_id = ?", (group_id,)).fetchone()
    if found is None:
        conn.db.execute("INSERT INTO groups VALUES (?, ?, ?, ?, ?)", (group_id, task_id, n, blob, wall))
    elif found != (task_id, n, blob):
        raise StoreError(f"group {group_id} is already stored with another content", code="group_conflict")


def put_verdict(conn: Connection, session_id: str, verdict: Verdict, wall: float) -> None:
    """Store what a verifier said; the last one stands."""
    blob = conn.rows.frames.pack(f"verdicts.record/{session_id}", encode((verdict.reward, dict(verdict.parts))))
    conn.db.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", (session_id, blob, wall))


def put_traces(conn: Connection, session_id: str, rows: Sequence[TraceRow]) -> None:
    """Replace a session's training rows."""
    conn.db.execute("DELETE FROM traces WHERE session_id = ?", (session_id,))
    conn.db.executemany(
        "INSERT INTO traces (session_id, trace_id, record, tail, mask, logprobs) VALUES (?, ?, ?, ?, ?, ?)",
        [(r.session_id, r.trace_id, r.record, r.tail, r.mask, r.logprobs) for r in rows],
    )


def put_trajectory(conn: Connection, trajectory: Trajectory, rows: Sequence[TraceRow], wall: float) -> None:
    """Replace a session's trajectory: its rows and what is said of them as a whole."""
    put_traces(conn, trajectory.session_id, rows)
    record = encode(
        TrajectoryRecord(
            group_id=trajectory.group_id,
            outcome=trajectory.outcome,
            failure=trajectory.failure,
            reward=trajectory.reward,
            reward_parts=trajectory.reward_parts,
            untrained=trajectory.untrained,
            rows=len(rows),
        )
    )
    blob = conn.rows.frames.pack(f"trajectories.record/{trajectory.session_id}", record)
    conn.db.execute("INSERT OR REPLACE INTO trajectories VALUES (?, ?, ?)", (trajectory.session_id, blob, wall))


def put_meta(conn: Connection, values: Mapping[str, object]) -> None:
    """Store JSON values."""
    for key, value in values.items():
        blob = conn.rows.frames.pack(f"meta.value/{key}", msgspec.json.encode(value))
        conn.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, blob))


def delete_session(conn: Connection, session_id: str) -> None:
    """Remove all of an ended session but its seal, which goes on refusing what would still come. A session that is
    not stored is nothing."""
    found = conn.db.execute("SELECT state FROM sessions WHERE session_id = ?", (session_id,)).fetchone()
    if found is not None and not isinstance(reads.state_of(conn, session_id, found[0]), Ended):
        raise StoreError(f"session {session_id} has not ended: end it before it is removed", code="session_open")
    own = (session_id,)
    heads = conn.db.execute("SELECT DISTINCT head FROM turns WHERE session_id = ?", own).fetchall()
    conn.db.execute("DELETE FROM prompts WHERE turn_id IN (SELECT turn_id FROM turns WHERE session_id = ?)", own)
    for table in ("traces", "trajectories", "verdicts", "turns", "calls", "transitions", "sessions"):
        conn.db.execute(f"DELETE FROM {table} WHERE session_id = ?", own)
    conn.db.executemany(
        "DELETE FROM heads WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM turns WHERE turns.head = heads.digest)", heads
    )
    conn.db.execute("DELETE FROM meta WHERE key = ?", (reads.about_key(session_id),))


def _call_blob(conn: Connection, call: CallRecord) -> bytes:
    return conn.rows.frames.pack(f"calls.record/{call.call_id}", encode(call))


def _insert_turn(conn: Connection, turn: Turn, row: TurnRow) -> None:
    depth = _depth(conn, turn)
    if not conn.db.execute("SELECT 1 FROM heads WHERE digest = ?", (row.head,)).fetchone():
        conn.db.execute("INSERT INTO heads VALUES (?, ?)", (row.head, conn.rows.pack_head(row)))
    try:
        conn.db.execute(
            "INSERT INTO turns (turn_id, session_id, parent, depth, head, record, bridge, sampled, logprobs, items,"
            " echo) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (row.turn_id, row.session_id, row.parent, depth, row.head, *row.columns),
        )
    except sqlite3.IntegrityError as err:
        raise StoreError(f"turn {turn.turn_id} is already stored by another call", code="turn_conflict") from err
    if copied_at(depth):
        _copy_prompt(conn, turn)


def copied_at(depth: int) -> bool:
    """Whether a full copy is kept of the prompt at this depth."""
    number, rest = divmod(depth, COPY_EVERY)
    return number > 0 and rest == 0 and number % (1 << max(0, number.bit_length() - COPIES)) == 0


def _depth(conn: Connection, turn: Turn) -> int:
    if turn.parent is None:
        return 0
    found = conn.db.execute("SELECT session_id, depth FROM turns WHERE turn_id = ?", (turn.parent,)).fetchone()
    if found is None or found[0] != turn.session_id:
        raise StoreError(f"turn {turn.turn_id}: its parent {turn.parent} is not stored in session {turn.session_id}")
    return int(found[1]) + 1


def _copy_prompt(conn: Connection, turn: Turn) -> None:
    parent = turn.parent or ""
    prompt, sampled = reads.prompt_and_sampled(conn, parent)
    ids: Ids = concat([take(concat([prompt, sampled]), 0, turn.keep), turn.bridge])
    if count(ids) == turn.prompt_len:  # else the turn contradicts itself: verify says so, a copy would hide it
        blob = conn.rows.frames.pack_column(f"prompts.ids/{turn.turn_id}", ids)
        conn.db.execute("INSERT INTO prompts VALUES (?, ?)", (turn.turn_id, blob))
