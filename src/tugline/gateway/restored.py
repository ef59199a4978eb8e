"""What a gateway knows again of a session that an earlier one served: which replies were delivered, which wait.

A turn counts as delivered when a later one extends it, when its reply was sent again, or when its call was settled so.
Anything else may have been lost on its way, also where the gateway died between the commit and the last byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tugline.core.columns import count, last
from tugline.core.contracts import MessageEngine
from tugline.core.items import Pending, Reply, Request, Usage
from tugline.core.turn import CallOutcome, CallRecord, Turn
from tugline.forest.forest import Forest
from tugline.gateway.prompt import Deps
from tugline.gateway.session import Lane
from tugline.gateway.shown import first_of, reply_of

AGAIN = (CallOutcome.REPLAYED, CallOutcome.COALESCED)


def remember(lanes: Mapping[str, Lane], turns: Sequence[Turn], calls: Sequence[CallRecord]) -> dict[str, CallRecord]:
    """Tell retry books and forests of stored turns; the call that began each turn whose reply waits, by turn id."""
    extended = {turn.parent for turn in turns}
    again = {call.turn_id for call in calls if call.outcome in AGAIN}
    begun: dict[str | None, CallRecord] = {}
    for record in calls:
        begun.setdefault(record.turn_id, record)  # it was committed with the turn
    waiting: dict[str, CallRecord] = {}
    for turn in turns:
        lane, call = lanes.get(turn.engine), begun.get(turn.turn_id)
        if lane is None or call is None or not call.fingerprint:  # of an older version: nothing is known
            continue
        asked = bytes.fromhex(call.fingerprint)
        answered = call.settled and call.outcome is CallOutcome.ANSWERED
        if answered or turn.turn_id in extended or turn.turn_id in again:
            lane.forest.mark_delivered(turn.turn_id)
            lane.retries.delivered(asked, turn.turn_id)
        else:
            lane.retries.undelivered(asked, turn.turn_id)
            waiting[turn.turn_id] = call
    return waiting


def reply_again(forest: Forest, turn: Turn, call: CallRecord, request: Request, deps: Deps) -> Reply:
    """The reply of a stored turn, as it was made when the turn was sampled. `request`: the one that it answers, sent
    again. Reads and parses the whole turn."""
    if isinstance(deps.engine, MessageEngine):  # its ids, where it gives any, are not ours to read
        finish = "tool_calls" if turn.echo.calls else "length" if turn.finish == "length" else "stop"
        usage = Usage(turn.prompt_len, count(turn.sampled), call.cached)
        created = int(call.started)
        stem = turn.turn_id.removeprefix("turn_")
        return Reply(stem, request.model, created, turn.echo, finish, usage, request)
    model, prompt = deps.model, forest.prompt(turn.turn_id)
    parsed = model.parse(prompt, turn.sampled, turn.finish, request.head.tools)
    spelled = first_of(model.decode(turn.sampled), request.options.stop)[1] if request.options.stop else None
    return reply_of(
        Pending(turn.turn_id.removeprefix("turn_"), request.model, int(call.started), request),
        parsed,
        Usage(count(prompt), count(turn.sampled), call.cached, parsed.reasoning_tokens),
        (turn.finish == "stop" and last(turn.sampled) not in deps.engine.info.stop_ids, spelled),
    )
