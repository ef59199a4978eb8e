"""Queries over one connection. Damage raises VerifyError naming session, turn (call, trace) and column."""

from __future__ import annotations

from collections.abc import Mapping

from tugline.core.columns import NO_IDS, WIDTH, Ids, concat, take
from tugline.core.errors import NotFound, VerifyError
from tugline.core.items import Head
from tugline.core.session import SessionState
from tugline.core.trace import Trace
from tugline.core.turn import CallRecord, Turn
from tugline.store.pool import Connection
from tugline.store.rows import TraceRow, full_ids

_TURN = (
    "SELECT t.turn_id, t.session_id, t.parent, t.head, t.record, t.bridge, t.sampled, t.logprobs, t.items, t.echo,"
    " h.data FROM turns t LEFT JOIN heads h ON h.digest = t.head"
)


def about_key(session_id: str) -> str:
    """Key in `meta` of what the opener of a session said about it."""
    return f"session/{session_id}"


def state_of(conn: Connection, session_id: str, blob: object) -> SessionState:
    """A stored session state."""
    where = f"session {session_id}, column state"
    state = conn.rows.records.state(conn.rows.frames.unpack(f"sessions.state/{session_id}", blob, where), where)
    if state.key.session_id != session_id:
        raise VerifyError(f"{where} is another session's")
    return state


def call_of(conn: Connection, call_id: str, blob: object) -> CallRecord:
    """A stored call record."""
    where = f"call {call_id}, column record"
    return conn.rows.records.call(conn.rows.frames.unpack(f"calls.record/{call_id}", blob, where), where)


def calls(conn: Connection, session_id: str) -> list[CallRecord]:
    """Calls of a session in commit order."""
    query = "SELECT call_id, record FROM calls WHERE session_id = ? ORDER BY id"
    found = [call_of(conn, call_id, blob) for call_id, blob in conn.db.execute(query, (session_id,))]
    for call in found:
        if call.session_id != session_id:
            raise VerifyError(f"session {session_id}, call {call.call_id}, column session_id is damaged")
    return found


def turns(conn: Connection, session_id: str) -> list[Turn]:
    """Turns of a session in commit order; full prompt copies are checked against the chain."""
    heads: dict[object, Head] = {}
    found = [
        _turn(conn, row, heads)
        for row in conn.db.execute(f"{_TURN} WHERE t.session_id = ? ORDER BY t.id", (session_id,))
    ]
    for turn in found:
        if turn.session_id != session_id:
            raise VerifyError(f"session {session_id}, turn {turn.turn_id}, column session_id is damaged")
    _check_copies(conn, session_id, {t.turn_id: t for t in found})
    return found


def prompt_and_sampled(conn: Connection, turn_id: str) -> tuple[Ids, Ids]:
    """A turn's full prompt and sampled ids, from the nearest copy above it. Raises NotFound."""
    chain: list[Turn] = []
    start = NO_IDS
    step: str | None = turn_id
    heads: dict[object, Head] = {}
    while step is not None:
        row = conn.db.execute(f"{_TURN} WHERE t.turn_id = ?", (step,)).fetchone()
        if row is None:
            raise NotFound(f"turn {step} is not stored")
        turn = _turn(conn, row, heads)
        copy = conn.db.execute("SELECT ids FROM prompts WHERE turn_id = ?", (step,)).fetchone()
        if copy is not None:
            start = concat([_copy(conn, turn, copy[0]), turn.sampled])
            break
        chain.append(turn)
        step = turn.parent
    if not chain:
        return Ids(start[: len(start) - len(turn.sampled)]), turn.sampled
    full = bytearray(start)
    for turn in reversed(chain):
        del full[turn.keep * WIDTH :]
        full += turn.bridge
        if turn is not chain[0]:
            full += turn.sampled
    return Ids(bytes(full)), chain[0].sampled


def traces(conn: Connection, session_id: str) -> list[Trace]:
    """Training rows of a session in the order given."""
    query = "SELECT session_id, trace_id, record, tail, mask, logprobs FROM traces WHERE session_id = ? ORDER BY id"
    rows = [TraceRow(*row) for row in conn.db.execute(query, (session_id,))]
    if not rows:
        return []
    by_id = {t.turn_id: t for t in turns(conn, session_id)}
    return [conn.rows.trace(row, by_id) for row in rows]


def _turn(conn: Connection, row: tuple[object, ...], heads: dict[object, Head]) -> Turn:
    *columns, head_blob = row
    where = f"session {row[1]}, turn {row[0]}"
    digest = row[3]
    if digest not in heads:
        if not isinstance(digest, bytes):
            raise VerifyError(f"{where}, column head is damaged: it is no digest")
        heads[digest] = conn.rows.head(digest, head_blob, where)
    return conn.rows.turn(columns, heads[digest], where)


def _copy(conn: Connection, turn: Turn, blob: object) -> Ids:
    where = f"session {turn.session_id}, turn {turn.turn_id}, column prompt"
    return Ids(conn.rows.frames.unpack(f"prompts.ids/{turn.turn_id}", blob, where))


def _check_copies(conn: Connection, session_id: str, by_id: Mapping[str, Turn]) -> None:
    query = "SELECT turn_id, ids FROM prompts WHERE turn_id IN (SELECT turn_id FROM turns WHERE session_id = ?)"
    for turn_id, blob in conn.db.execute(query, (session_id,)).fetchall():
        turn = by_id[turn_id]
        chain = concat([take(full_ids(turn.parent, by_id), 0, turn.keep), turn.bridge])
        if _copy(conn, turn, blob) != chain:
            raise VerifyError(f"session {session_id}, turn {turn_id}, column prompt is not what its chain gives")
