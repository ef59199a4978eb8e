"""From a request's bytes to a reply's bytes: retries by delivery state, keep-alives, grace, errors in native shape.

Headers leave only when nothing that is the call's own fault can fail any more, and at the latest when the client has
waited `keepalive` seconds. A reply whose turn could not be stored is not served.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tugline.core.columns import count
from tugline.core.contracts import Dialect, MessageEngine, RoleRule
from tugline.core.errors import Forbidden, StoreError, TuglineError, boundary, describe
from tugline.core.ident import new_id
from tugline.core.items import Pending, Reply, Request
from tugline.core.roles import first_hint
from tugline.core.turn import CallOutcome, CallRecord
from tugline.forest.attach import Attachment
from tugline.forest.retries import Fresh, Join, Replay
from tugline.forest.roles import Place, place
from tugline.gateway.admission import check_length, check_request, engine_for
from tugline.gateway.connection import Connection, refuse, stream_headers
from tugline.gateway.exchange import (
    Inbound,
    Produced,
    end_of,
    log_failure,
    produce,
    session_ended,
    side_record,
    tally,
)
from tugline.gateway.incoming import Incoming, decoded
from tugline.gateway.live import Follower, Live
from tugline.gateway.marks import Marks
from tugline.gateway.prompt import Deps, make_prompt
from tugline.gateway.receipt import PATIENCE
from tugline.gateway.restored import reply_again
from tugline.gateway.running import FAREWELL, Running, Timing, look
from tugline.gateway.session import Lane, OpenSession, continued
from tugline.gateway.shown import kept
from tugline.gateway.spoken import estimated

BIG_BODY = 64 * 1024
"""Larger bodies are decoded and attached off the loop: thousands of small items cost 20 ms."""


class Delivery:
    """Serves generate calls of all sessions of a gateway."""

    def __init__(self, lanes: Mapping[str, Deps], timing: Timing, roles: Sequence[RoleRule] = ()) -> None:
        """`lanes`: what calls to each engine need; "" is the policy."""
        self._roles = tuple(roles)
        self._lanes = lanes
        self._deps = lanes[""]
        self._timing = timing
        self._running: dict[str, Running] = {}
        self._replies: dict[str, Reply] = {}
        """Replies of undelivered turns by turn id, kept until replayed or the session ends."""
        self._live = Live(self._deps.metrics)
        self._marks = Marks(self._deps.log)

    async def serve(self, session: OpenSession, incoming: Incoming, conn: Connection) -> None:
        """Answer one generate call, whatever happens."""
        seq, call_id, started = session.next_seq(), new_id("call"), time.time()
        dialect = incoming.dialect
        try:
            with boundary(TuglineError, "internal error"):
                lane, request, placed = await self._read(session, incoming)
        except TuglineError as err:
            session.last_error = describe(err)
            self._count(session, dialect, CallOutcome.REJECTED)
            await refuse(conn, dialect, err)
            return
        pending = Pending(new_id("turn").removeprefix("turn_"), request.model, int(started), request)
        call = Inbound(call_id, seq, started, dialect, incoming.path, request, pending, lane, placed)
        self._deps.metrics.running.inc()
        serving = asyncio.current_task()
        if serving is not None:
            session.serving.add(serving)
        watcher = asyncio.ensure_future(conn.watch())
        try:
            await self._answer(session, call, placed.attached, conn)
        finally:
            watcher.cancel()
            session.serving.discard(serving)
            self._deps.metrics.running.dec()

    def forget(self, session: OpenSession) -> None:
        """Drop replies kept for a session that has ended."""
        for lane in session.lanes.values():
            for turn_id in lane.forest.turns:
                self._replies.pop(turn_id, None)

    async def count(self, session: OpenSession, incoming: Incoming, conn: Connection) -> None:
        """Answer a count call with the length that the prompt of the same request would have. Never training data."""
        seq, call_id, started = session.next_seq(), new_id("call"), time.time()
        dialect = incoming.dialect
        try:
            with boundary(TuglineError, "internal error"):
                lane, request, placed = await self._read(session, incoming)
                body = dialect.counted(await self._counted(session, lane, request, placed))
        except TuglineError as err:
            self._count(session, dialect, CallOutcome.REJECTED)
            await refuse(conn, dialect, err)
            return
        pending = Pending(call_id, request.model, int(started), request)
        call = Inbound(call_id, seq, started, dialect, incoming.path, request, pending, lane, placed)
        with contextlib.suppress(StoreError):
            await self._deps.log.commit(side_record(session, call, None, CallOutcome.SIDE), None)
        self._count(session, dialect, CallOutcome.SIDE)
        await conn.whole(200, {"content-type": "application/json"}, body)

    async def _counted(self, session: OpenSession, lane: Lane, request: Request, placed: Place) -> int:
        deps, asked = self._lanes[lane.engine], (lane.forest, request, placed.attached)
        if isinstance(deps.engine, MessageEngine):
            return estimated(request)
        check_request(session.policy, request)
        return count((await asyncio.get_running_loop().run_in_executor(deps.pool, make_prompt, *asked, deps)).ids)

    async def _read(self, session: OpenSession, incoming: Incoming) -> tuple[Lane, Request, Place]:
        begun = time.perf_counter()
        if len(incoming.body) <= BIG_BODY:
            read = self._placed(session, incoming, decoded(incoming))
        else:
            loop = asyncio.get_running_loop()
            request = await loop.run_in_executor(self._deps.pool, decoded, incoming)
            read = await loop.run_in_executor(self._deps.pool, self._placed, session, incoming, request)
        self._deps.metrics.stage.labels("read").observe(time.perf_counter() - begun)
        if look(self._running.values(), read[0].retries, read[2].attached.fingerprint):
            await asyncio.sleep(FAREWELL)
        await self._recall(session, *read)
        if session.closing:  # before its body had come, or while it was decoded
            raise Forbidden("this session has ended; its key is no longer valid")
        return read

    def _placed(self, session: OpenSession, incoming: Incoming, request: Request) -> tuple[Lane, Request, Place]:
        """Where a request belongs: its engine's lane, the history it names, the turn it continues, its role."""
        lane = session.lanes[engine_for(session.policy, request.model)]
        check_length(request, self._lanes[lane.engine].engine.info.context)
        if request.previous is not None:
            request = replace(request, items=continued(lane, request))
        attached = lane.forest.attach(request, session.rules)
        request = session.dated(request, attached.head, clocked=self._lanes[lane.engine].model.clocked)
        hint = first_hint(self._roles, incoming.headers, request)
        return lane, request, place(lane.forest, request, attached, hint, session.lanes[""].forest)

    async def _answer(self, session: OpenSession, call: Inbound, attached: Attachment, conn: Connection) -> None:
        lane = call.lane
        session.receipts.look()
        look(self._running.values(), lane.retries, attached.fingerprint)
        verdict = lane.retries.decide(attached.fingerprint)
        if isinstance(verdict, Fresh) and verdict.resample:
            session.receipts.look(ask=True)
            verdict = lane.retries.decide(attached.fingerprint)
        if isinstance(verdict, Replay) and verdict.turn_id in self._replies:
            reply = self._replies[verdict.turn_id]
            lane.retries.take(attached.fingerprint)  # whoever asks the same meanwhile wants another
            if not await self._replay(session, call, (verdict.turn_id, reply), conn):
                lane.retries.give_back(attached.fingerprint, verdict.turn_id)
            return
        running = self._running.get(verdict.call_id) if isinstance(verdict, Join) else None
        if running is None or running.task.cancelling():
            running = self._begin(session, call, attached)
        else:
            lane.retries.join(attached.fingerprint, running.call_id)
        feed = running.feed if call.request.options.stream else None
        follower = Follower(feed, call.dialect, replace(running.pending, request=call.request), conn)
        session.sending[call.call_id] = partial(self._give_up, session, call, running, attached)
        try:
            produced = await self._wait(running, attached, call, conn, follower)
        except (TuglineError, asyncio.CancelledError) as err:
            lane.retries.failed(attached.fingerprint, running.call_id)
            shown = err if isinstance(err, TuglineError) else session_ended()
            if session.sending.pop(call.call_id, None) is not None:
                await self._failed(session, call, running, err)
            await refuse(conn, call.dialect, shown, running.pending)
            if isinstance(err, asyncio.CancelledError) and not running.task.done():
                raise
            return
        delivered = await self._send(conn, call, produced.reply, follower)
        if session.sending.pop(call.call_id, None) is None:
            return
        good = CallOutcome.ANSWERED if call.call_id == running.call_id else CallOutcome.COALESCED
        outcome = good if delivered else CallOutcome.UNDELIVERED
        if delivered:  # before anything is waited for: the connection may be gone then, and what it could tell
            self._expect(session, (call, good), attached, (produced.turn.turn_id, produced.reply), conn)
        await self._settle(session, (call, running.call_id), attached, produced, outcome)

    async def _failed(
        self, session: OpenSession, call: Inbound, running: Running, err: TuglineError | asyncio.CancelledError
    ) -> None:
        """Count and record a call that had joined another: that one is, where it failed."""
        if call.call_id != running.call_id:
            await log_failure(session, call, self._lanes[call.lane.engine], end_of(session, err))

    async def _give_up(self, session: OpenSession, call: Inbound, running: Running, attached: Attachment) -> None:
        """The session ends before this call's client has taken what there was for it."""
        try:
            produced = running.task.result()
        except asyncio.InvalidStateError:
            return
        except (TuglineError, asyncio.CancelledError) as err:
            await self._failed(session, call, running, err)
            return
        await self._settle(session, (call, running.call_id), attached, produced, CallOutcome.UNDELIVERED)

    def _expect(
        self,
        session: OpenSession,
        counted: tuple[Inbound, CallOutcome],
        attached: Attachment,
        turn: tuple[str, Reply],
        conn: Connection,
    ) -> None:
        """A reply was handed over. Should its client not read it, all that its delivery changed is taken back, unless
        a later turn shows that it was read."""
        (call, outcome), turn_id = counted, turn[0]
        lane, call_id, dialect, reply = call.lane, call.call_id, call.dialect.name, kept(turn[1])
        fingerprint = attached.fingerprint  # connections stay open: they must not hold on to whole requests

        def lost(last: bool) -> None:
            if lane.forest.children(turn_id):
                return
            self._deps.metrics.revoked.labels(dialect, outcome.value).inc()
            session.recount(outcome)
            self._marks.mark(call_id, CallOutcome.UNDELIVERED)
            if last:
                lane.forest.mark_undelivered(turn_id)
                lane.retries.revoke(fingerprint, turn_id)
                if not session.closing:
                    self._replies[turn_id] = reply

        session.receipts.expect(conn.line, conn.request, turn_id, lost)

    async def _recall(self, session: OpenSession, lane: Lane, request: Request, placed: Place) -> None:
        """Make a reply anew that an earlier gateway could not deliver, if this request asks for it."""
        verdict = lane.retries.decide(placed.attached.fingerprint)
        begun = session.waiting.get(verdict.turn_id) if isinstance(verdict, Replay) else None
        if begun is None or begun.turn_id is None or begun.turn_id in self._replies:
            return
        deps, turn = self._lanes[lane.engine], lane.forest.turns[begun.turn_id]
        made = await asyncio.get_running_loop().run_in_executor(
            deps.pool, reply_again, lane.forest, turn, begun, request, deps
        )
        if session.waiting.pop(turn.turn_id, None) is not None and not session.closing:
            self._replies[turn.turn_id] = kept(made)

    def forgotten(self, calls: Iterable[CallRecord]) -> None:
        """Calls of an earlier gateway whose reply nobody is known to have read: recorded so, they train only if that
        turns out."""
        for call in calls:
            if call.outcome is CallOutcome.ANSWERED:
                self._marks.mark(call.call_id, CallOutcome.UNDELIVERED)

    async def settled(self, session: OpenSession) -> None:
        """What became of each call and reply of a session that ends is known and recorded when this returns."""
        if session.serving:
            await asyncio.wait(set(session.serving), timeout=PATIENCE)
        while session.sending:  # clients that do not read on
            _, give_up = session.sending.popitem()
            await give_up()
        await session.receipts.end()
        await self._marks.written()

    def _begin(self, session: OpenSession, call: Inbound, attached: Attachment) -> Running:
        admitted, deps = asyncio.Event(), self._lanes[call.lane.engine]
        call = replace(call, place=call.place.again(call.lane.retries.answered(attached.fingerprint)))
        stream = call.request.options.stream
        live = self._timing.live if session.policy.streaming is None else session.policy.streaming == "live"
        feed = self._live.feed(deps.engine, call.dialect) if live and stream else None
        task = asyncio.ensure_future(produce(session, call, attached, deps, admitted.set, feed))
        running = self._running[call.call_id] = Running(call.call_id, task, admitted, call.pending, feed)
        session.tasks.add(task)
        call.lane.retries.begin(attached.fingerprint, call.call_id)

        def done(finished: asyncio.Task[Produced]) -> None:
            self._running.pop(call.call_id, None)
            session.tasks.discard(finished)
            if not finished.cancelled():
                finished.exception()  # seen here even if every client has left

        task.add_done_callback(done)
        return running

    async def _wait(
        self, running: Running, attached: Attachment, call: Inbound, conn: Connection, follower: Follower
    ) -> Produced:
        """Wait for the generation with keep-alives. When the client leaves: grace, then abort unless it is wanted."""
        running.wanted += 1
        running.conns.append(conn)
        gone = asyncio.ensure_future(conn.gone.wait())
        try:
            while True:
                events: set[asyncio.Future[Any]] = {running.task, gone, follower.news()}
                await asyncio.wait(events, timeout=self._timing.keepalive, return_when=asyncio.FIRST_COMPLETED)
                if running.task.done():
                    return running.task.result()
                if conn.gone.is_set():
                    break
                if call.request.options.stream and running.admitted.is_set():
                    more = follower.take() or follower.beat()
                    if not conn.started:
                        await conn.start(200, stream_headers(call.dialect))
                    await conn.body(more, more=True)
            if running.wanted == 1:
                call.lane.retries.abandon(attached.fingerprint, running.call_id)
            await asyncio.wait({running.task}, timeout=self._timing.grace)
        finally:
            running.wanted -= 1
            gone.cancel()
        if not running.task.done() and not running.wanted:
            running.task.cancel()
        return await asyncio.shield(running.task)

    async def _send(self, conn: Connection, call: Inbound, reply: Reply, follower: Follower | None = None) -> bool:
        """Send the reply, or what is left of it; False when the client had left before the last byte was handed over,
        or has seen something else. It is spelled as this call asked for it, whoever asked first."""
        if conn.left():
            return False
        reply = replace(reply, request=call.request)
        with contextlib.suppress(OSError):
            if not call.request.options.stream:
                await conn.whole(200, {"content-type": "application/json"}, call.dialect.encode(reply))
            else:
                if follower is None:
                    pending = Pending(reply.id, reply.model, reply.created, reply.request)
                    follower = Follower(None, call.dialect, pending, conn)
                ended = self._live.close(follower, reply)
                if ended is None:
                    return False
                rest, terminal = ended
                if not conn.started:
                    await conn.start(200, stream_headers(call.dialect))
                await conn.body(rest, more=True)
                if conn.left():  # what was read then is not the whole
                    return False
                await conn.body(terminal, more=False)
            return not conn.left()  # known by now, it is of what was sent before: the last part went nowhere
        return False

    async def _settle(
        self,
        session: OpenSession,
        calls: tuple[Inbound, str],
        attached: Attachment,
        produced: Produced,
        outcome: CallOutcome,
    ) -> None:
        """`calls`: the call that ends here so, and the id of the one that began the generation."""
        (call, begun_by), turn_id = calls, produced.turn.turn_id
        tally(session, call, self._deps.metrics, outcome)
        if outcome is not CallOutcome.UNDELIVERED:
            call.lane.retries.delivered(attached.fingerprint, turn_id, begun_by)
            call.lane.forest.mark_delivered(turn_id)
            self._replies.pop(turn_id, None)
        else:
            call.lane.retries.undelivered(attached.fingerprint, turn_id, begun_by)
            if not session.closing and not call.lane.forest.delivered(turn_id):  # else nobody would come for it
                self._replies[turn_id] = kept(produced.reply)
        if call.call_id != begun_by:
            with contextlib.suppress(StoreError):
                await self._deps.log.commit(side_record(session, call, turn_id, outcome), None)
            return
        marking = self._marks.mark(call.call_id, outcome)
        if outcome is CallOutcome.UNDELIVERED:
            await marking

    async def _replay(self, session: OpenSession, call: Inbound, turn: tuple[str, Reply], conn: Connection) -> bool:
        turn_id, reply = turn

        async def settle(delivered: bool) -> None:
            outcome = CallOutcome.REPLAYED if delivered else CallOutcome.UNDELIVERED
            tally(session, call, self._deps.metrics, outcome)
            if delivered:  # before the record is written: the next request may come meanwhile
                self._replies.pop(turn_id, None)
                call.lane.retries.delivered(call.place.attached.fingerprint, turn_id, call.call_id)
                call.lane.forest.mark_delivered(turn_id)
            with contextlib.suppress(StoreError):
                await self._deps.log.commit(side_record(session, call, turn_id, outcome), None)

        session.sending[call.call_id] = partial(settle, False)
        delivered = await self._send(conn, call, reply)
        if session.sending.pop(call.call_id, None) is None:
            return False
        if delivered:
            self._expect(session, (call, CallOutcome.REPLAYED), call.place.attached, turn, conn)
        await settle(delivered)
        return delivered

    def _count(self, session: OpenSession, dialect: Dialect, outcome: CallOutcome) -> None:
        session.count(outcome)
        self._deps.metrics.call(dialect.name, outcome)
