"""Continuous batching: which tokens run in the next step, and what comes of them.

A row is a generation. Its tokens are the prompt and what was sampled so far; those without keys and values yet are
*open*. A row with one open token is decoding; one with more is (again) filling its context, chunk by chunk, so that the
others never wait for a long prompt.
"""

from __future__ import annotations

import random
from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tugline.core.columns import WIDTH, Floats, Ids, common_prefix, concat, count, take
from tugline.core.errors import EngineError
from tugline.core.turn import Finish
from tugline.engines.api import InFlight
from tugline.engines.embedded.slots import TAINTED, Segment, Slot, SlotTable
from tugline.engines.embedded.wire import Draw, Generate
from tugline.engines.stopping import StopStrings

CHUNK = 256
"""Prompt tokens per step while other rows decode."""
LONE_CHUNK = 1024
"""Prompt tokens per step when nobody waits for the step."""
LIVE_TOKENS = 8
LIVE_SECONDS = 0.05
"""How often a live request is told of new ids. Each message costs the parent process a wake-up."""
_WORTH_WAITING = 64
"""A prompt waits for a running prefill that is about to compute so many tokens it shares."""


class Model(Protocol):
    """What the scheduler needs of `SlotModel`."""

    def forward(self, segments: list[Segment], wanted: list[int]) -> Any: ...
    def copy(self, source: int, target: int, tokens: int) -> None: ...
    def load(self, path: Path) -> None: ...


class Sampler(Protocol):
    """Logits [n, V] to (ids, log-probabilities); a log-probability that is not finite marks broken weights."""

    def __call__(self, logits: Any, draws: list[Draw], uniform: list[float]) -> tuple[list[int], list[float]]: ...


@dataclass(slots=True, eq=False)
class Row:
    """One generation under way."""

    ask: Generate
    limit: int
    """Tokens it may sample."""
    rng: random.Random
    """Its own: draws do not depend on batch-mates. Python's generator is the same in every torch version."""
    stops: StopStrings | None = None
    sampled: Ids = Ids(b"")
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    runs: list[tuple[int, int]] = field(default_factory=list)
    slot: Slot | None = None
    cached: int = 0
    told: int = 0
    """Sampled tokens that a live request has been told of, and when."""
    told_at: float = 0.0

    @property
    def tokens(self) -> Ids:
        return concat([Ids(self.ask.prompt), self.sampled])

    def piece(self, start: int, stop: int) -> Ids:
        """Tokens start..stop of prompt and sample."""
        own = start - len(self.ask.prompt) // WIDTH
        return take(self.sampled, own, own + stop - start) if own >= 0 else take(self.tokens, start, stop)

    def open(self) -> int:
        """Tokens without keys and values."""
        done = len(self.slot.ids) if self.slot else 0
        return (len(self.ask.prompt) + len(self.sampled) - done) // WIDTH


@dataclass(frozen=True, slots=True)
class Ended:
    """A row that left, with its finish, or the reason why it has none."""

    row: Row
    finish: Finish | None
    error: str = ""

    def logprobs(self) -> Floats:
        return Floats(self.row.logprobs.tobytes())


@dataclass(slots=True)
class Counters:
    """Since the start."""

    sampled: int = 0
    prefilled: int = 0
    cached: int = 0
    steps: int = 0


class Scheduler:
    """All rows of an engine. Single-threaded: calls fall between steps."""

    def __init__(self, model: Model, sampler: Sampler, slots: int, stop: frozenset[int], version: int) -> None:
        self._model = model
        self._sampler = sampler
        self._table = SlotTable(slots)
        self._stop = stop
        self._waiting: deque[Row] = deque()
        self._running: list[Row] = []
        self.version = version
        self.counters = Counters()

    @property
    def load(self) -> tuple[int, int]:
        """(running, waiting) rows."""
        return len(self._running), len(self._waiting)

    def news(self, now: float) -> list[tuple[str, Ids]]:
        """(request, ids) of live rows with something to tell: `LIVE_TOKENS`, or any after `LIVE_SECONDS`."""
        found = []
        for row in self._running:
            fresh = count(row.sampled) - row.told if row.ask.live else 0
            if fresh >= LIVE_TOKENS or (fresh and now - row.told_at >= LIVE_SECONDS):
                found.append((row.ask.request_id, take(row.sampled, row.told)))
                row.told, row.told_at = row.told + fresh, now
        return found

    @property
    def busy(self) -> bool:
        return bool(self._running or self._waiting)

    def add(self, row: Row) -> None:
        """Queue a row."""
        self._waiting.append(row)

    def abort(self, request_id: str) -> Ended | None:
        """End a row now, with what it has; None when it is not here."""
        for row in (*self._running, *self._waiting):
            if row.ask.request_id == request_id:
                self._leave(row)
                return Ended(row, "abort")
        return None

    def release(self, session: str) -> None:
        """The session has ended."""
        self._table.release(session)

    def load_weights(self, path: Path, version: int, in_flight: InFlight) -> None:
        """Swap weights; raises EngineError and changes nothing when they do not fit.

        Free slots keep their version, which no longer matches, so nobody builds on them.
        """
        self._model.load(path)
        self.version = version
        rows, self._running = self._running, []
        for row in rows:
            if row.slot is None:
                continue
            if in_flight == "keep":
                row.slot.version = TAINTED
                self._running.append(row)
            else:
                row.slot.ids.clear()
                self._table.give_back(row.slot)
                row.slot = None
        self._waiting.extendleft(r for r in reversed(rows) if r.slot is None)

    def step(self) -> list[Ended]:
        """Run the model once over what is open; the rows that ended by it."""
        batch = self._plan()
        if not batch:
            return []
        self.counters.steps += 1
        wanted = [i for i, (row, n) in enumerate(batch) if n == row.open()]
        logits = self._model.forward([_segment(row, n) for row, n in batch], wanted)
        for row, n in batch:
            slot = _slot(row)
            done = len(slot.ids) // WIDTH
            slot.ids += row.piece(done, done + n)
            self.counters.prefilled += n if n > 1 else 0
        if not wanted:
            return []
        rows = [batch[i][0] for i in wanted]
        draws = [r.ask.draw for r in rows]
        uniform = [r.rng.random() if r.ask.draw.temperature > 0 else 0.0 for r in rows]
        picked = zip(rows, *self._sampler(logits, draws, uniform), strict=True)
        self.counters.sampled += len(rows)
        return [e for e in (self._take(row, token, logprob) for row, token, logprob in picked) if e is not None]

    def _take(self, row: Row, token: int, logprob: float) -> Ended | None:
        if not -1e30 < logprob <= 1e-3:  # NaN fails too
            self._leave(row)
            return Ended(row, None, f"the model gives log-probability {logprob}: its weights are broken")
        if not row.runs or row.runs[-1][1] != self.version:
            row.runs.append((count(row.sampled), self.version))
        row.sampled = Ids(row.sampled + token.to_bytes(WIDTH, "little"))
        row.logprobs.append(min(0.0, logprob))
        finish: Finish | None = None
        if token in self._stop or (row.stops is not None and row.stops.ended(row.sampled)):
            finish = "stop"
        elif count(row.sampled) >= row.limit:
            finish = "length"
        if finish is None:
            return None
        self._leave(row)
        return Ended(row, finish)

    def _leave(self, row: Row) -> None:
        if row in self._running:
            self._running.remove(row)
        else:
            self._waiting.remove(row)
        if row.slot is not None:
            self._table.give_back(row.slot)

    def _plan(self) -> list[tuple[Row, int]]:
        """(row, open tokens to run) of the next step. Decoding rows always run; chunks share a budget, oldest first."""
        batch = [(row, 1) for row in self._running if row.open() == 1]
        budget = CHUNK if batch else LONE_CHUNK
        for row in self._running:
            if budget > 0 and (left := row.open()) > 1:
                batch.append((row, min(left, budget)))
                budget -= batch[-1][1]
        while budget > 0 and self._waiting and self._seat(self._waiting[0]):
            row = self._waiting.popleft()
            self._running.append(row)
            batch.append((row, min(row.open(), budget)))
            budget -= batch[-1][1]
        return batch

    def _seat(self, row: Row) -> bool:
        """Give a waiting row a slot with what can be reused. False: not yet."""
        tokens = row.tokens
        _, ready = self._table.best_prefix(tokens, self.version)
        filling = (r for r in self._running if r.open() > 1 and _slot(r).version == self.version)
        coming = max((common_prefix(tokens, r.tokens) for r in filling), default=0)
        if coming > ready + _WORTH_WAITING:
            return False
        placed = self._table.place(tokens, row.ask.session_id, self.version)
        if placed is None:
            return False
        if placed.source is not None:
            self._model.copy(placed.source, placed.slot.index, placed.keep)
        row.slot = placed.slot
        row.cached = row.cached or min(placed.keep, len(row.ask.prompt) // WIDTH)
        self.counters.cached += placed.keep
        return True


def _segment(row: Row, n: int) -> Segment:
    slot = _slot(row)
    done = len(slot.ids) // WIDTH
    return Segment(slot.index, done, row.piece(done, done + n))


def _slot(row: Row) -> Slot:
    if row.slot is None:
        raise EngineError("a running row has no slot", retryable=False)
    return row.slot
