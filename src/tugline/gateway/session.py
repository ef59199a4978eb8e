"""What the gateway holds of one open session. Owned by the event loop; nobody else mutates it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from itertools import dropwhile, takewhile

from tugline.core.contracts import Policy, SessionCalls
from tugline.core.errors import BadRequest
from tugline.core.items import Head, Item, Request, System
from tugline.core.turn import CallOutcome, CallRecord, Turn
from tugline.forest.forest import Forest
from tugline.forest.retries import RetryBook
from tugline.forest.rules import rules_of
from tugline.gateway.admission import Spent
from tugline.gateway.receipt import Receipts

ANSWERS = (CallOutcome.ANSWERED, CallOutcome.REPLAYED, CallOutcome.COALESCED)


class Lane:
    """What a session has with one engine: "" is the policy. Turns of two engines never share a tree."""

    def __init__(self, engine: str, forest: Forest) -> None:
        self.engine = engine
        self.forest = forest
        self.retries = RetryBook()


class OpenSession:
    """Lanes, budgets and running work of a session."""

    def __init__(self, session_id: str, policy: Policy, lanes: Mapping[str, Lane]) -> None:
        self.session_id = session_id
        self.policy = policy
        self.rules = rules_of(policy)
        self.lanes = lanes
        ours = lanes[""].forest.turns
        known = (turn.head.clock for lane in lanes.values() for turn in lane.forest.turns.values())
        self.clock = next(filter(None, known), 0) or int(time.time())
        """What templates that print the time are told, in Unix seconds: when the session began to ask. It is stored
        with each head, so that a session that is opened again, and who renders it again, keeps it."""
        self.spent = Spent(len(ours), sum(len(t.sampled) // 4 for t in ours.values()))
        self.other_turns = sum(len(lane.forest.turns) for name, lane in lanes.items() if name)
        self.calls: Counter[str] = Counter()
        self.engine_failures = 0
        self.last_error: str | None = None
        self.tasks: set[asyncio.Task[object]] = set()
        self.receipts = Receipts()
        self.serving: set[asyncio.Task[object]] = set()
        """Those of calls whose answer is not settled."""
        self.sending: dict[str, Callable[[], Awaitable[None]]] = {}
        """What settles each of them as undelivered, should the session end first."""
        self.waiting: dict[str, CallRecord] = {}
        """Turns whose reply an earlier gateway could not deliver -> the call that began each."""
        self.closing = False
        self.held = 0
        """Bytes of request bodies being read or answered."""
        self._next_call = 0
        self._next_turn = sum(len(lane.forest.turns) for lane in lanes.values())

    def dated(self, request: Request, head: Head | None, *, clocked: bool) -> Request:
        """The request under `head`, if not its own, with the session's instant where the template prints the time."""
        head = head or request.head
        if clocked and head.clock != self.clock:
            head = replace(head, clock=self.clock)
        return request if head is request.head else replace(request, head=head)

    def next_seq(self) -> int:
        """Number of a new call, in order of arrival."""
        self._next_call += 1
        return self._next_call - 1

    def next_turn(self) -> int:
        """Number of a new turn. Taken before the commit, so parallel calls never share one."""
        self._next_turn += 1
        return self._next_turn - 1

    def grew(self, turn: Turn) -> None:
        """Account for a committed turn. Budgets are the policy's."""
        if turn.engine:
            self.other_turns += 1
            return
        self.spent = Spent(self.spent.turns + 1, self.spent.sampled_tokens + len(turn.sampled) // 4)

    def count(self, outcome: CallOutcome) -> None:
        """Account for a finished call. An answer says that what failed before it has not hurt the agent."""
        self.calls[outcome.value] += 1
        if outcome in ANSWERS:
            self.engine_failures, self.last_error = 0, None

    def recount(self, outcome: CallOutcome) -> None:
        """A call that was counted as an answer turned out to be no delivery."""
        self.calls[outcome.value] -= 1
        self.calls[CallOutcome.UNDELIVERED.value] += 1

    def summary(self) -> SessionCalls:
        """What the rollout service is told."""
        return SessionCalls(
            calls=dict(self.calls),
            turns=self.spent.turns,
            sampled_tokens=self.spent.sampled_tokens,
            engine_failures=self.engine_failures,
            last_error=self.last_error,
            other_turns=self.other_turns,
        )


def continued(lane: Lane, request: Request) -> tuple[Item, ...]:
    """The items of the conversation that ends with reply `request.previous`, and those of the request. Instructions
    are not carried over, as the API has it. Raises BadRequest for a reply that this session has not."""
    turn_id = f"turn_{request.previous}"
    if turn_id not in lane.forest.turns:
        raise BadRequest(
            f"Previous response {(request.previous or '')[:100]!r} not found: it is no reply of this session.",
            path="previous_response_id",
            code="previous_response_not_found",
        )
    lead = list(takewhile(_is_instructions, request.items))
    history = dropwhile(_is_instructions, lane.forest.history(turn_id))
    return (*lead, *history, *request.items[len(lead) :])


def _is_instructions(item: Item) -> bool:
    return isinstance(item, System) and item.role == "instructions"
