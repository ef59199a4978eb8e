"""One generate call, step by step: attach, bridge, admit, sample, verify, parse, commit.

Everything that decides is a pure function of a lower layer; this driver only orders the steps and waits. It runs as a
task of its own, so that it outlives the connection that asked for it (grace period, retry joining).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from tugline.core.columns import count, last
from tugline.core.contracts import Conversation, Dialect, EngineInfo, Generation, MessageEngine, Sample
from tugline.core.errors import EngineError, Forbidden, StoreError, TuglineError, boundary, describe
from tugline.core.items import Pending, Reply, Request, Usage
from tugline.core.turn import CallOutcome, CallRecord, Sampling, Turn
from tugline.forest.check import check_sample, routes_fit
from tugline.forest.forest import Attachment
from tugline.forest.roles import Place, links_at_commit
from tugline.gateway.admission import admit, admit_elsewhere, check_budget, check_request
from tugline.gateway.live import Feed
from tugline.gateway.metrics import Metrics
from tugline.gateway.prompt import Deps, Prompt, make_prompt
from tugline.gateway.session import Lane, OpenSession
from tugline.gateway.shown import first_of, reply_of, unasked
from tugline.gateway.spoken import converse, sampling_for, taken_in
from tugline.gateway.upstream import Failures, attempts, sample
from tugline.tokens.model import Parsed

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inbound:
    """A decoded call on its way."""

    call_id: str
    seq: int
    started: float
    dialect: Dialect
    path: str
    request: Request
    pending: Pending
    lane: Lane
    place: Place


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sample, what it says, and the sampling it was drawn with."""

    sample: Sample
    parsed: Parsed
    sampling: Sampling
    stop: str | None = None
    """The stop string that its ids spell, if it asked for any: it may lie in what is never shown."""
    usage: Usage | None = None
    """What the engine counted, where its ids do not say it all."""


@dataclass(frozen=True, slots=True)
class End:
    """How a call ended, for its record."""

    outcome: CallOutcome
    status: int
    turn: Turn | None = None
    prompt: Prompt | None = None
    ref: str | None = None
    error: str | None = None
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Produced:
    """A committed turn and the reply made of it."""

    reply: Reply
    turn: Turn
    record: CallRecord


async def produce(
    session: OpenSession,
    call: Inbound,
    attached: Attachment,
    deps: Deps,
    admitted: Callable[[], None],
    feed: Feed | None = None,
) -> Produced:
    """Run the whole exchange. `admitted()` is called once the call can no longer fail for its own fault. `feed` gets
    what can be shown of the reply while it is sampled.

    Raises the error to show the harness, in which case the forest is unchanged and the call's record is durable
    (if it can be).
    """
    try:
        with boundary(TuglineError, "internal error"):
            return await _steps(session, call, attached, deps, admitted, feed)
    except CommittedButGone:
        raise
    except asyncio.CancelledError as gone:
        await log_failure(session, call, deps, end_of(session, gone))
        raise
    except TuglineError as err:
        if err.__cause__ is not None and type(err) is TuglineError:
            _log.error("call %s failed", call.call_id, exc_info=err)
        await log_failure(session, call, deps, end_of(session, err))
        raise


async def _steps(
    session: OpenSession,
    call: Inbound,
    attached: Attachment,
    deps: Deps,
    admitted: Callable[[], None],
    feed: Feed | None,
) -> Produced:
    if isinstance(deps.engine, MessageEngine):
        return await _converse(session, call, attached, deps, admitted)
    prompt, sampling = await _prepare(session, call, attached, deps)
    if feed is not None:
        feed.begin(count(prompt.ids), lambda: deps.model.live(prompt.ids, call.request.options.stop))
    admitted()
    taken, retried = await _sample(session, call, (prompt, sampling), deps, feed)
    prompt = replace(prompt, drift=prompt.drift + retried)
    parsed = await _off_loop(
        deps, lambda: deps.model.parse(prompt.ids, taken.ids, taken.finish, call.request.head.tools)
    )
    stops = call.request.options.stop
    spelled = first_of(deps.model.decode(taken.ids), stops)[1] if stops else None
    drawn = Sampled(taken, parsed, sampling, spelled)
    return await _produced(session, call, prompt, drawn, deps)


async def _converse(
    session: OpenSession, call: Inbound, attached: Attachment, deps: Deps, admitted: Callable[[], None]
) -> Produced:
    """The same for an engine that takes messages."""
    engine, request, lane = deps.engine, call.request, call.lane
    assert isinstance(engine, MessageEngine)
    sampling = sampling_for(session.policy, request, engine.info, session.spent, elsewhere=bool(lane.engine))
    admitted()
    begun = time.perf_counter()
    asked = Conversation(call.call_id, session.session_id, request.head, request.items, request.options, sampling)
    failures = Failures(deps.metrics.fault)
    said, _ = await attempts(
        lambda name: converse(engine, replace(asked, request_id=name)), call.call_id, deps.retry, failures
    )
    deps.metrics.stage.labels("generate").observe(time.perf_counter() - begun)
    spoken = taken_in(said, request, attached, lane.forest)
    drawn = Sampled(spoken.said.sample, spoken.parsed, sampling, usage=said.usage)
    prompt = replace(spoken.prompt, drift=spoken.prompt.drift + failures.drift)
    return await _produced(session, call, prompt, drawn, deps)


async def _produced(session: OpenSession, call: Inbound, prompt: Prompt, drawn: Sampled, deps: Deps) -> Produced:
    """The turn and its reply, durable."""
    taken = drawn.sample
    turn, reply = _make_turn(session, call, prompt, drawn, deps.engine.info)
    cached = drawn.usage.cached if drawn.usage else taken.cached_tokens
    end = End(CallOutcome.ANSWERED, 200, turn, prompt, taken.engine_ref, cached=cached)
    record = _record(session, call, end)
    await _commit(session, call, record, turn, deps)
    _measure(deps.metrics, turn)
    return Produced(reply, turn, record)


async def _commit(session: OpenSession, call: Inbound, record: CallRecord, turn: Turn, deps: Deps) -> None:
    """Make the call durable, then part of the forest. Cancelled in between, the turn stays, marked undelivered."""
    forest = call.lane.forest
    writing = asyncio.ensure_future(deps.log.commit(record, turn))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        if writing.exception() is None:
            forest.commit(turn)
            session.grew(turn)
            tally(session, call, deps.metrics, CallOutcome.UNDELIVERED)
            with contextlib.suppress(StoreError):
                await deps.log.mark(record.call_id, CallOutcome.UNDELIVERED)
            raise CommittedButGone from None
        raise
    forest.commit(turn)
    session.grew(turn)


class CommittedButGone(asyncio.CancelledError):
    """Cancelled after the turn had become durable: there is nothing more to record."""


async def _prepare(session: OpenSession, call: Inbound, attached: Attachment, deps: Deps) -> tuple[Prompt, Sampling]:
    unmet = check_request(session.policy, call.request)
    if not call.lane.engine:
        check_budget(session.policy, session.spent)
    begun = time.perf_counter()
    prompt = await _off_loop(deps, lambda: make_prompt(call.lane.forest, call.request, attached, deps))
    prompt = replace(prompt, drift=prompt.drift + unmet)
    deps.metrics.stage.labels("prompt").observe(time.perf_counter() - begun)
    info, length = deps.engine.info, count(prompt.ids)
    if call.lane.engine:
        return prompt, admit_elsewhere(session.policy, call.request, info, length)
    return prompt, admit(session.policy, call.request, info, length, session.spent)


async def _sample(
    session: OpenSession, call: Inbound, asked: tuple[Prompt, Sampling], deps: Deps, feed: Feed | None
) -> tuple[Sample, tuple[str, ...]]:
    """The sample, and what failed before it."""
    begun = time.perf_counter()
    prompt, sampling = asked
    request = _generation(session, call, prompt, sampling)
    failures = Failures(deps.metrics.fault)
    taken, _ = await sample(deps.engine, request, deps.retry, feed, failures)
    deps.metrics.stage.labels("generate").observe(time.perf_counter() - begun)
    return taken, failures.drift


def _make_turn(
    session: OpenSession, call: Inbound, prompt: Prompt, sampled: Sampled, info: EngineInfo
) -> tuple[Turn, Reply]:
    taken, parsed, sampling = sampled.sample, sampled.parsed, sampled.sampling
    pending = call.pending
    turn_id = f"turn_{pending.id}"
    reply = reply_of(
        pending,
        parsed,
        sampled.usage or Usage(count(prompt.ids), count(taken.ids), taken.cached_tokens, parsed.reasoning_tokens),
        (taken.finish == "stop" and bool(info.stop_ids) and last(taken.ids) not in info.stop_ids, sampled.stop),
    )
    echo = call.dialect.echo(reply)
    exact, lenient = call.lane.forest.keys(prompt.attached, echo)
    request = _generation(session, call, prompt, sampling)
    level = prompt.level(info.level) if prompt.ids else "L0"
    turn = Turn(
        turn_id=turn_id,
        session_id=session.session_id,
        seq=session.next_turn(),
        parent=prompt.attached.parent.turn_id if prompt.attached.parent else None,
        keep=prompt.keep,
        bridge=prompt.bridge,
        sampled=taken.ids,
        logprobs=taken.logprobs,
        version_runs=taken.version_runs,
        finish=taken.finish,
        prompt_len=count(prompt.ids),
        head=call.request.head,
        items=prompt.attached.tail,
        echo=echo,
        key_exact=exact,
        key_lenient=lenient,
        sampling=sampling,
        level=level,
        drift=prompt.drift + parsed.drift + unasked(call.request.options, reply.assistant),
        untrainable=check_sample(request, taken, info),
        engine=call.lane.engine,
        role=call.place.role,
        thread=call.place.thread,
        links=links_at_commit(call.place, session.lanes[""].forest),
        partial=prompt.partial,
        routes=taken.routes.since(prompt.keep - 1) if taken.routes and routes_fit(request, taken) else None,
    )
    return turn, reply


def _generation(session: OpenSession, call: Inbound, prompt: Prompt, sampling: Sampling) -> Generation:
    known = max(0, prompt.keep - 1)
    stop = call.request.options.stop
    return Generation(call.call_id, session.session_id, prompt.ids, sampling, stop, routes_from=known)


def outcome_of(err: TuglineError) -> CallOutcome:
    """How a call that ended with this error is counted and recorded."""
    if isinstance(err, EngineError):
        return CallOutcome.ENGINE_FAILED
    return CallOutcome.STORE_FAILED if isinstance(err, StoreError) else CallOutcome.REJECTED


def session_ended() -> Forbidden:
    """What a call is told that runs when its session ends."""
    return Forbidden("the session ended while the call was running")


def end_of(session: OpenSession, err: TuglineError | asyncio.CancelledError) -> End:
    """How a call ends that gives no turn. Cancelled: its session has ended, or nobody waits for it."""
    if isinstance(err, asyncio.CancelledError):
        if not session.closing:
            return End(CallOutcome.UNDELIVERED, 499, error="the client was gone")
        err = session_ended()
    return End(outcome_of(err), err.status, error=describe(err))


def tally(session: OpenSession, call: Inbound, metrics: Metrics, outcome: CallOutcome) -> None:
    """Count a call, once it has ended: here what its record says."""
    session.count(outcome)
    metrics.call(call.dialect.name, outcome)


async def log_failure(session: OpenSession, call: Inbound, deps: Deps, end: End) -> None:
    """Count and record a call that gave no turn, whoever cancels it meanwhile. A store that fails here has already
    failed the call in the harness's sight."""
    tally(session, call, deps.metrics, end.outcome)
    session.last_error = end.error
    if end.outcome is CallOutcome.ENGINE_FAILED:
        session.engine_failures += 1
    writing = asyncio.ensure_future(deps.log.commit(_record(session, call, end), None))
    try:
        await asyncio.shield(writing)
    except StoreError as failed:
        session.last_error = describe(failed)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        raise


def _record(session: OpenSession, call: Inbound, end: End) -> CallRecord:
    turn, prompt = end.turn, end.prompt
    return CallRecord(
        call_id=call.call_id,
        session_id=session.session_id,
        seq=call.seq,
        dialect=call.dialect.name,
        path=call.path,
        turn_id=turn.turn_id if turn else None,
        outcome=end.outcome,
        status=end.status,
        started=call.started,
        duration=max(0.0, time.time() - call.started),
        asked_model=call.request.model[:200],
        asked=msgspec.json.encode(call.request.options).decode(),
        engine_ref=end.ref,
        root_reason=prompt.root_reason if prompt else None,
        drift=turn.drift if turn else (),
        error=end.error,
        engine=call.lane.engine,
        ignored=call.request.ignored,
        echoed=prompt.attached.echoed if prompt else (),
        fingerprint=call.place.attached.fingerprint.hex() if turn else "",
        cached=end.cached,
    )


def side_record(session: OpenSession, call: Inbound, turn_id: str | None, outcome: CallOutcome) -> CallRecord:
    """The record of a call that sampled nothing itself."""
    return CallRecord(
        call_id=call.call_id,
        session_id=session.session_id,
        seq=call.seq,
        dialect=call.dialect.name,
        path=call.path,
        turn_id=turn_id,
        outcome=outcome,
        status=200,
        started=call.started,
        duration=max(0.0, time.time() - call.started),
        asked_model=call.request.model[:200],
        engine=call.lane.engine,
        ignored=call.request.ignored,
    )


def _measure(metrics: Metrics, turn: Turn) -> None:
    metrics.tokens.labels("prompt").inc(turn.prompt_len)
    metrics.tokens.labels("prompt_new").inc(count(turn.bridge))
    metrics.tokens.labels("sampled").inc(count(turn.sampled))
    for reason in turn.drift:
        metrics.drift.labels(reason).inc()
    if turn.untrainable is not None:
        metrics.faults.labels(turn.untrainable).inc()


async def _off_loop(deps: Deps, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(deps.pool, work)
