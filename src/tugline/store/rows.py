"""Turns and training rows <-> the columns of run.db.

Every column is a frame (see `frames`) bound to its row, so damage is named: session, turn or trace, column.
A training row is stored against the turns that it was built from: `tail` is what follows the longest common prefix with
its last turn's full ids, `logprobs` is XORed with those of its spans' turns. Checksums of the row's own columns prove
that what is rebuilt is what was stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from tugline.core.columns import NO_IDS, WIDTH, Floats, Ids, common_prefix, concat, count, floats_array, take
from tugline.core.errors import VerifyError
from tugline.core.items import Head
from tugline.core.routes import Routes
from tugline.core.trace import Span, Trace
from tugline.core.turn import Turn
from tugline.store.frames import Frames
from tugline.store.records import Records, encode
from tugline.trajectory.rows import path_to, routes_of

TURN_COLUMNS = ("bridge", "sampled", "logprobs")


@dataclass(frozen=True, slots=True)
class TurnRow:
    """What one turn is in run.db, apart from its depth. `payload` digests the whole turn."""

    turn_id: str
    session_id: str
    parent: str | None
    head: bytes
    head_data: bytes
    columns: tuple[bytes, ...]
    """record, bridge, sampled, logprobs, items, echo."""
    payload: bytes


@dataclass(frozen=True, slots=True)
class TraceRow:
    """What one training row is in run.db."""

    session_id: str
    trace_id: str
    record: bytes
    tail: bytes
    mask: bytes
    logprobs: bytes


@dataclass(frozen=True, slots=True)
class Derivation:
    """How a training row's columns follow from turns. Sums are BLAKE2b-128 of the row's own columns."""

    base: str | None
    """Turn whose full ids the row starts with, for `keep` tokens."""
    keep: int
    values: int
    """Number of log-probabilities."""
    ids_sum: bytes
    logprobs_sum: bytes
    routes_sum: bytes = b""
    """Empty: the row has no routes."""
    routes: Routes | None = None
    """Those of a row whose turns do not give them."""


class RowCodec:
    """Packs and unpacks rows. Belongs to one thread at a time, as its frames do."""

    def __init__(self, records: Records, frames: Frames) -> None:
        self.records = records
        self.frames = frames
        self._derivation = msgspec.msgpack.Decoder(tuple[bytes, Derivation])

    def pack_turn(self, turn: Turn) -> TurnRow:
        """Columns of a turn."""
        key, frames = turn.turn_id, self.frames
        head_data, record = encode(turn.head), self.records.turn.pack(turn)
        head = hashlib.blake2b(head_data, digest_size=16).digest()
        items, echo = self.records.pack_items(turn.items), encode(turn.echo)
        payload = hashlib.blake2b(digest_size=16)
        for part in (record, head, turn.bridge, turn.sampled, turn.logprobs, items, echo):
            payload.update(len(part).to_bytes(8, "little") + part)
        columns = (
            frames.pack(f"turns.record/{key}/{head.hex()}", record),
            *(frames.pack_column(f"turns.{name}/{key}", getattr(turn, name)) for name in TURN_COLUMNS),
            frames.pack(f"turns.items/{key}", items),
            frames.pack(f"turns.echo/{key}", echo),
        )
        return TurnRow(key, turn.session_id, turn.parent, head, head_data, columns, payload.digest())

    def pack_head(self, row: TurnRow) -> bytes:
        """The blob of a turn's head. Heads are large and shared: call this only where it is not stored yet."""
        return self.frames.pack(f"heads.data/{row.head.hex()}", row.head_data)

    def head(self, digest: bytes, blob: object, where: str) -> Head:
        """A head by its digest. Raises VerifyError."""
        where = f"{where}, column head"
        if blob is None:
            raise VerifyError(f"{where} is damaged: no such head is stored")
        return self.records.head(self.frames.unpack(f"heads.data/{digest.hex()}", blob, where), where)

    def turn(self, row: Sequence[object], head: Head, where: str) -> Turn:
        """A turn from (turn_id, session_id, parent, head digest, *columns). Raises VerifyError naming the column."""
        key, session_id, parent, digest, record, *columns, items, echo = row
        digest_hex = digest.hex() if isinstance(digest, bytes) else ""
        arrays = {
            name: self.frames.unpack(f"turns.{name}/{key}", blob, f"{where}, column {name}")
            for name, blob in zip(TURN_COLUMNS, columns, strict=True)
        }
        at = f"{where}, column record"
        turn = self.records.turn.unpack(
            self.frames.unpack(f"turns.record/{key}/{digest_hex}", record, at),
            at,
            head=head,
            items=self.records.items(
                self.frames.unpack(f"turns.items/{key}", items, f"{where}, column items"), f"{where}, column items"
            ),
            echo=self.records.echo(
                self.frames.unpack(f"turns.echo/{key}", echo, f"{where}, column echo"), f"{where}, column echo"
            ),
            **arrays,
        )
        for name, found, expected in (("session_id", session_id, turn.session_id), ("parent", parent, turn.parent)):
            if found != expected:
                raise VerifyError(f"{where}, column {name} is damaged: {found!r} where the record says {expected!r}")
        return turn

    def pack_trace(self, trace: Trace, turns: Mapping[str, Turn]) -> TraceRow:
        """Columns of a training row, given the session's turns."""
        key, frames = f"{trace.session_id}/{trace.trace_id}", self.frames
        base = trace.spans[-1].turn_id if trace.spans and trace.spans[-1].turn_id in turns else None
        keep = common_prefix(trace.token_ids, full_ids(base, turns))
        expected = _expected(trace.spans, count(trace.logprobs), turns)
        routes = trace.routed_experts
        derivation = Derivation(
            base,
            keep,
            count(trace.logprobs),
            _sum(trace.token_ids),
            _sum(trace.logprobs),
            _sum(routes.data) if routes is not None else b"",
            None if routes is None or _routes(trace.spans, turns) == routes else routes,
        )
        return TraceRow(
            trace.session_id,
            trace.trace_id,
            frames.pack(f"traces.record/{key}", encode((self.records.trace.pack(trace), derivation))),
            frames.pack_column(f"traces.tail/{key}", take(trace.token_ids, keep)),
            frames.pack(f"traces.mask/{key}", trace.loss_mask),
            frames.pack_column(f"traces.logprobs/{key}", _xor(trace.logprobs, expected)),
        )

    def trace(self, row: TraceRow, turns: Mapping[str, Turn]) -> Trace:
        """A training row again. Raises VerifyError naming trace and column."""
        key, where = f"{row.session_id}/{row.trace_id}", f"session {row.session_id}, trace {row.trace_id}, column"
        try:
            packed, how = self._derivation.decode(
                self.frames.unpack(f"traces.record/{key}", row.record, f"{where} record")
            )
        except msgspec.MsgspecError as err:
            raise VerifyError(f"{where} record cannot be read: {err}") from err
        if how.base is not None and how.base not in turns:
            raise VerifyError(f"{where} tail is built on turn {how.base}, which is not stored")
        tail = Ids(self.frames.unpack(f"traces.tail/{key}", row.tail, f"{where} tail"))
        token_ids = concat([take(full_ids(how.base, turns), 0, how.keep), tail])
        mask = self.frames.unpack(f"traces.mask/{key}", row.mask, f"{where} mask")
        delta = self.frames.unpack(f"traces.logprobs/{key}", row.logprobs, f"{where} logprobs")
        columns = {"token_ids": token_ids, "loss_mask": mask, "logprobs": Floats(delta), "routed_experts": None}
        trace = self.records.trace.unpack(packed, f"{where} record", **columns)
        if how.routes_sum:
            routes = how.routes or _routes(trace.spans, turns)
            if routes is None or _sum(routes.data) != how.routes_sum:
                raise VerifyError(f"{where} routed_experts no longer fits the turns that it was built from")
            trace = replace(trace, routed_experts=routes)
        logprobs = Floats(_xor(delta, _expected(trace.spans, how.values, turns)))
        for name, column, expected in (("tail", token_ids, how.ids_sum), ("logprobs", logprobs, how.logprobs_sum)):
            if _sum(column) != expected:
                raise VerifyError(f"{where} {name} no longer fits the turns that it was built from")
        return replace(trace, logprobs=logprobs)


def full_ids(turn_id: str | None, turns: Mapping[str, Turn]) -> Ids:
    """prompt ++ sampled of a turn; empty for None or where the chain is not whole."""
    chain: list[Turn] = []
    while turn_id is not None:
        turn = turns.get(turn_id)
        if turn is None:
            return NO_IDS
        chain.append(turn)
        turn_id = turn.parent
    full = bytearray()
    for turn in reversed(chain):
        del full[turn.keep * WIDTH :]
        full += turn.bridge
        full += turn.sampled
    return Ids(bytes(full))


def _routes(spans: Sequence[Span], turns: Mapping[str, Turn]) -> Routes | None:
    """What the turns of a row say of its tokens' experts."""
    if not spans:
        return None
    try:
        return routes_of(path_to(spans[-1].turn_id, turns))
    except VerifyError:
        return None


def _expected(spans: Sequence[Span], values: int, turns: Mapping[str, Turn]) -> bytes:
    """float32[values]: the turns' log-probabilities at their spans, NaN elsewhere. Spans out of range are skipped."""
    out = np.full(values, np.nan, dtype="<f4")
    for span in spans:
        if span.turn_id in turns and 0 <= span.start <= span.end <= values:
            own = floats_array(turns[span.turn_id].logprobs)[: span.end - span.start]
            out[span.start : span.start + len(own)] = own
    return out.tobytes()


def _xor(a: bytes, b: bytes) -> bytes:
    return (np.frombuffer(a, np.uint8) ^ np.frombuffer(b, np.uint8)).tobytes()


def _sum(column: bytes) -> bytes:
    return hashlib.blake2b(column, digest_size=16).digest()
