"""What the gateway holds of one open session. Owned by the event loop; nobody else mutates it."""

from __future__ import annotations

import asyncio
from collections import Counter

from tugline.core.contracts import Policy, SessionCalls
from tugline.core.turn import CallOutcome, Turn
from tugline.forest.forest import Forest
from tugline.forest.retries import RetryBook
from tugline.gateway.admission import Spent


class OpenSession:
    """Forest, retry book, budgets and running work of a session."""

    def __init__(self, session_id: str, policy: Policy, forest: Forest) -> None:
        self.session_id = session_id
        self.policy = policy
        self.forest = forest
        self.retries = RetryBook()
        self.spent = Spent(len(forest.turns), sum(len(t.sampled) // 4 for t in forest.turns.values()))
        self.calls: Counter[str] = Counter()
        self.engine_failures = 0
        self.last_error: str | None = None
        self.tasks: set[asyncio.Task[object]] = set()
        self.closing = False
        self.held = 0
        """Bytes of request bodies being read or answered."""
        self._next_call = 0
        self._next_turn = len(forest.turns)

    def next_seq(self) -> int:
        """Number of a new call, in order of arrival."""
        self._next_call += 1
        return self._next_call - 1

    def next_turn(self) -> int:
        """Number of a new turn. Taken before the commit, so parallel calls never share one."""
        self._next_turn += 1
        return self._next_turn - 1

    def grew(self, turn: Turn) -> None:
        """Account for a committed turn."""
        self.spent = Spent(self.spent.turns + 1, self.spent.sampled_tokens + len(turn.sampled) // 4)

    def count(self, outcome: CallOutcome) -> None:
        """Account for a finished call."""
        self.calls[outcome.value] += 1

    def summary(self) -> SessionCalls:
        """What the rollout service is told."""
        return SessionCalls(
            calls=dict(self.calls),
            turns=self.spent.turns,
            sampled_tokens=self.spent.sampled_tokens,
            engine_failures=self.engine_failures,
            last_error=self.last_error,
        )
