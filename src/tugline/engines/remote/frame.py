"""The frame of a driver: names, the breaker, the record of what came over the wire.

Retries are the gateway's, each under a name of its own, so that one call gives one turn at most; this frame makes sure
that an attempt which failed samples no further.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from tugline.core.columns import NO_FLOATS, NO_IDS, Ids
from tugline.core.contracts import EngineInfo, EngineLoad, JournalEntry, Reading, Sample
from tugline.core.errors import EngineError, boundary
from tugline.engines.journal import JournalWriter, journal_path, next_boot, routes_path
from tugline.engines.modeldir import ModelFiles
from tugline.engines.remote.abilities import Abilities, Kind
from tugline.engines.remote.client import Http
from tugline.engines.remote.guard import Guard
from tugline.engines.remote.promtext import totals
from tugline.engines.remote.refusal import Refusal, refused
from tugline.engines.remote.reply import Taken, sample_of
from tugline.engines.remote.where import Remote

LOOK = 5.0
"""Seconds that a look at an engine's health, an abort or a question may take."""
CAPACITY = 64
AGAIN = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds after which an abort that shows no effect is repeated; then the connection is closed."""
UPDATE = 600.0
"""Seconds for one step of a weight update."""
SAME_KIND = 0.02
"""Nats: how far the best token's log-probability may move with the temperature of an engine that reports raw ones."""
SPELLING = "Hello, world: 12 + 30 = 42?\n\tdef f(x):"
"""Text whose tokens differ between tokenizers of different families."""

Work: TypeAlias = tuple[Taken, tuple[tuple[int, int], ...]]
"""A reply and its version runs."""


def kind_of(warm: float | None, colder: float | None, hint: str) -> Kind | None:
    """Which log-probabilities an engine reports, from the best token's at temperature 1 and at a colder one. Raises
    EngineError for values that are no log-probabilities at all."""
    if warm is None or colder is None:
        return None
    if max(warm, colder) > SAME_KIND:
        raise EngineError(f"the engine returns logits; {hint}", retryable=False, fault="logits")
    return "raw" if abs(warm - colder) < SAME_KIND else "processed"


@dataclass(slots=True)
class State:
    """What changes while an engine is used."""

    boot: str = ""
    served: int = 0
    running: dict[str, asyncio.Task[Work]] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    writing: threading.Lock = field(default_factory=threading.Lock)
    loose: set[asyncio.Task[None]] = field(default_factory=set)
    """Aborts under way that nobody waits for."""


class Frame(ABC):
    """What every driver shares, whatever its engine takes."""

    def __init__(self, remote: Remote, files: ModelFiles, journal_dir: Path, kind: str) -> None:
        self.remote = remote
        self.http = Http(remote)
        self.faults: Counter[str] = Counter()
        """What went wrong, by name."""
        self.abilities: Abilities | None = None
        self._files = files
        self._journal_dir = journal_dir
        self._journal: JournalWriter | None = None
        self.guard = Guard(remote, self.faults, self._meet_again)
        self._state = State()
        self._info = EngineInfo(
            kind=kind,
            model=files.name,
            model_dir=files.path,
            context=files.context,
            vocab=files.vocab,
            stop_ids=files.stop_ids,
            capacity=CAPACITY,
        )

    @abstractmethod
    async def greet(self) -> Abilities:
        """Find out what the engine can do. Raises EngineError, not retryable when it cannot serve this policy."""

    @abstractmethod
    async def tell_abort(self, request_id: str) -> bool:
        """Ask the engine to stop a request; False: it cannot be asked."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def start(self) -> None:
        """Waits for the engine as long as `Remote.patience` says. Raises EngineError with what it lacks."""
        self.http.open()
        await asyncio.to_thread(self._open)
        try:
            await self._came_up()
        except BaseException:
            await self.close()
            raise

    async def abort(self, request_id: str) -> None:
        """A running request ends with what it has; where the engine cannot be asked, with nothing."""
        task = self._state.running.get(request_id)
        if task is None:
            return
        self._state.aborted.add(request_id)
        with suppress(EngineError):
            for seconds in AGAIN:  # it may not have got there yet, and engines abort when they come to it
                if not await self.tell_abort(request_id):
                    break
                if (await asyncio.wait({task}, timeout=seconds))[0]:
                    return
        task.cancel()

    async def release(self, session_id: str) -> None:
        """Nothing of a session is kept here but the record's memory of it; the engine's cache evicts by itself."""
        if self._journal is not None:
            with self._state.writing:
                self._journal.forget(session_id)

    async def close(self) -> None:
        """Idempotent. The engine itself goes on: it is not ours."""
        for task in list(self._state.running.values()):
            task.cancel()
        self.guard.close()
        if self._state.loose:
            await asyncio.wait(self._state.loose, timeout=LOOK)
        await self.http.close()
        journal, self._journal = self._journal, None
        if journal is not None:
            await asyncio.to_thread(self._shut, journal)

    # ------------------------------------------------------------------------------------------------ one call

    async def run(self, name: str, ask: Callable[[], Coroutine[Any, Any, Work]]) -> Work:
        """One attempt, under its name. Raises EngineError; the engine samples no further for it then."""
        if self._journal is None:
            raise EngineError("the engine is not started, or closed", retryable=False, fault="closed")
        if name in self._state.running:
            why = f"request {name!r} is already running"
            raise EngineError(why, retryable=False, fault="bad_request")

        sent = False

        async def admitted() -> Work:
            nonlocal sent
            await self.guard.admit()
            sent = True
            with boundary(EngineError, "ask the engine"):
                return await ask()

        task = self._state.running[name] = asyncio.ensure_future(admitted())
        try:
            taken, runs = await self._taken(name, task)
        except EngineError as err:
            self.guard.failed(err)
            if sent:
                self._forget_at_engine(name)
            err.message = self.remote.without_key(err.message.encode("utf-8", "replace")).decode("utf-8", "replace")
            err.args = (err.message,)
            raise
        except asyncio.CancelledError:
            if sent:
                self._forget_at_engine(name)
            raise
        finally:
            self._state.running.pop(name, None)
            self._state.aborted.discard(name)
        self.guard.succeeded()
        if taken.fault is not None:
            self.faults[taken.fault] += 1
        return taken, runs

    async def _taken(self, name: str, task: asyncio.Task[Work]) -> Work:
        """The reply; empty when the request was aborted and the engine could not be asked for what it had."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            hung_up = task.cancelled() and name in self._state.aborted
            task.cancel()
            await asyncio.wait({task})
            if not hung_up:
                raise
            if not task.cancelled():
                task.exception()
            return Taken(NO_IDS, NO_FLOATS, "abort", None, ()), ()

    def _forget_at_engine(self, name: str) -> None:
        """What nobody waits for must not go on sampling. Hanging up does it at most engines, at some too late."""

        async def tell() -> None:
            with suppress(EngineError):
                await self.tell_abort(name)

        task = asyncio.ensure_future(tell())
        self._state.loose.add(task)
        task.add_done_callback(self._state.loose.discard)

    # ---------------------------------------------------------------------------------------------- the breaker

    async def _meet_again(self) -> bool:
        """One look at an engine that was away. It may be another one: it is met anew before anybody calls it."""
        if not await self.alive():
            return False
        self._met(await self.greet())
        await self.came_back()
        return True

    async def came_back(self) -> None:
        """Bring an engine that answers again to where it was; nothing is to be done for most. Raises EngineError."""
        return None

    def readings(self) -> tuple[Reading, ...]:
        """See Observed."""
        return self.guard.readings()

    async def measured(self, names: Mapping[str, str]) -> EngineLoad:
        """What `/metrics` says; `names`: of the engine's series, by field of EngineLoad. Raises EngineError."""
        answer = await self.http.get("/metrics", LOOK)
        if answer.status != 200:
            raise refused(answer)
        text = answer.body.decode("utf-8", "replace")
        found = await asyncio.to_thread(totals, text, set(names.values()), {names.get("cache_usage", "")})
        return EngineLoad(**{field: found.get(series) for field, series in names.items()})

    async def alive(self) -> bool:
        """Whether it says that it is well."""
        try:
            return (await self.http.get("/health", LOOK)).status == 200
        except EngineError:
            return False

    async def _came_up(self) -> None:
        """Wait until it answers and has said what it can do."""
        loop, wait = asyncio.get_running_loop(), min(1.0, self.remote.patience / 20)
        limit = loop.time() + self.remote.patience
        while True:
            err = EngineError(f"nobody answers at {self.remote.url}", retryable=True, fault="unreachable")
            if await self.alive():
                try:
                    return self._met(await self.greet())
                except EngineError as met:
                    err = met
            pause = max(wait, (err.after or 0.0) if isinstance(err, Refusal) else 0.0)
            if not err.retryable or loop.time() + pause > limit:
                raise err
            await asyncio.sleep(pause)

    def _met(self, found: Abilities) -> None:
        """Raises EngineError when the engine cannot serve this policy, or not any more."""
        if found.tokenizer == "differs":
            raise EngineError(
                f"{self.remote.url} serves {found.model!r} with another tokenizer than {self._files.path}",
                retryable=False,
                fault="other_model",
            )
        if self.abilities is not None and found.level < self.abilities.level:
            raise EngineError(f"{self.remote.url} came back without ids", retryable=False, fault="other_model")
        self.abilities = found
        self._info = replace(
            self._info,
            context=min(self._files.context, found.context or self._files.context),
            level=found.level,
            logprob_kind=found.kind or "raw",
            echoes_prompt=found.echo,
        )

    # ----------------------------------------------------------------------------------------------- the record

    async def recorded(self, session_id: str, prompt_ids: Ids, work: Work) -> Sample:
        """The sample that a reply is, once what came over the wire is written down. Raises EngineError."""
        taken, runs = work
        journal = self._journal
        if journal is None:
            raise EngineError("the engine was closed", retryable=False, fault="closed")
        self._state.served += 1
        sample = sample_of(taken, runs, f"{self._state.boot}.{self._state.served}", prompt_ids)
        entry = JournalEntry(
            engine_ref=sample.engine_ref or "",
            session_id=session_id,
            prompt_ids=prompt_ids,
            ids=sample.ids,
            logprobs=sample.logprobs,
            finish=sample.finish,
            version_runs=runs,
        )
        try:
            await asyncio.to_thread(self._write, journal, entry, taken.experts)
        except EngineError as err:  # to sample again would not help a full disk
            raise EngineError(err.message, retryable=False, fault="no_record") from err
        return sample

    def _write(self, journal: JournalWriter, entry: JournalEntry, experts: bytes | None) -> None:
        with self._state.writing, boundary(EngineError, "write the record of the engine's replies"):
            if experts is not None:  # beside the record, which is read far more often
                place = routes_path(self._journal_dir, entry.engine_ref)
                place.parent.mkdir(exist_ok=True)
                place.write_bytes(experts)
            journal.append(entry)
            journal.flush()

    def _open(self) -> None:
        with boundary(EngineError, "open the record of the engine's replies"):
            self._journal_dir.mkdir(parents=True, exist_ok=True)
            self._state.boot = next_boot(self._journal_dir)
            self._journal = JournalWriter(journal_path(self._journal_dir, self._state.boot))

    def _shut(self, journal: JournalWriter) -> None:
        with self._state.writing, boundary(EngineError, "close the record of the engine's replies"):
            journal.close()
