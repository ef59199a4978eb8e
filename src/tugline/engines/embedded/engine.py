"""The parent's side of the embedded engine: core `Engine` over a child process that is started again when it dies."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import TypedDict, Unpack

from tugline.core.columns import Floats, Ids, count, ids_array
from tugline.core.contracts import EngineInfo, Generation, Piece, Sample
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.engines.api import InFlight
from tugline.engines.embedded import wire
from tugline.engines.embedded.child import Child, Spec
from tugline.engines.modeldir import Asked, read_model_dir, require_weights
from tugline.engines.streaming import Say, pieces_of

START_LIMIT = 180.0
"""Seconds from spawning the process to its first word."""
RESTART_LIMIT = 60.0
"""Seconds that a new generation waits for a process that is being started again."""
_GRACE = 5.0
_MAX_RESTARTS = 5
"""In a row, without a single answer in between."""


class Options(TypedDict, total=False):
    """Optional settings of `EmbeddedEngine`."""

    device: str
    threads: int
    slots: int
    seed: int | None
    asked: Asked


class EmbeddedEngine:
    """Core `Engine`, `Scorer` and `LiveWeights` on this machine."""

    def __init__(self, model_dir: Path, journal_dir: Path, **options: Unpack[Options]) -> None:
        """Options: device="cpu", threads=1, slots=32 (contexts held at once), seed=None (of generations without one),
        asked (what is chosen instead of the directory's own).

        Raises ConfigError for a broken model directory.
        """
        asked = options.get("asked") or Asked()
        files = read_model_dir(model_dir, asked)
        require_weights(model_dir)
        slots = options.get("slots", 32)
        self._spec = Spec(
            model_dir=model_dir.resolve(),
            journal_dir=journal_dir,
            device=options.get("device", "cpu"),
            threads=options.get("threads", 1),
            slots=slots,
            seed=options.get("seed"),
            asked=asked,
        )
        self._info = EngineInfo(
            kind="embedded",
            model=files.name,
            model_dir=files.path,
            context=files.context,
            vocab=files.vocab,
            stop_ids=files.stop_ids,
            capacity=slots,
        )
        self._life = _Life(self._spec)

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def pid(self) -> int | None:
        """The engine process, or None while there is none."""
        return self._life.child.process.pid if self._life.child else None

    async def start(self) -> None:
        """The process runs and has its weights. Raises EngineError with the end of its log."""
        await self._life.start()

    async def generate(self, request: Generation) -> Sample:
        """Sample once, until a stop token, a stop string or the limit."""
        return await self._generate(request, None)

    def generate_stream(self, request: Generation) -> AsyncGenerator[Piece, None]:
        """As `generate`, with the ids as they are sampled."""
        return pieces_of(lambda say: self._generate(request, say))

    async def _generate(self, request: Generation, listen: Say | None) -> Sample:
        s = request.sampling
        self._check(request)
        name = request.request_id
        ask = wire.Generate(
            *(name, request.session_id, request.prompt_ids, _draw(s), s.max_tokens, s.seed, request.stop),
            live=listen is not None,
        )
        try:
            done = await self._life.ask(name, ask, listen)
        except asyncio.CancelledError:
            self._life.tell(wire.Abort(name))
            raise
        if not isinstance(done, wire.Done):
            raise EngineError(f"the engine answered {type(done).__name__}")
        return Sample(
            ids=Ids(done.ids),
            logprobs=Floats(done.logprobs),
            finish=done.finish,
            version_runs=done.version_runs,
            prompt_ids=request.prompt_ids,
            engine_ref=done.engine_ref,
            cached_tokens=done.cached,
        )

    async def abort(self, request_id: str) -> None:
        """Its `generate` returns at once with what was sampled, finish "abort"."""
        self._life.tell(wire.Abort(request_id))

    async def release(self, session_id: str) -> None:
        """The session's slots may be taken."""
        self._life.tell(wire.Release(session_id))

    async def load_weights(self, path: Path, version: int, in_flight: InFlight = "recompute") -> None:
        """Swap weights in place between two tokens. A process started later also uses them."""
        weights = _absolute(path)
        name = self._life.new_name("load")
        done = await self._life.ask(name, wire.Load(name, str(weights), version, in_flight))
        if isinstance(done, wire.Loaded):
            self._life.weights = (weights, version)

    @property
    def score_tolerance(self) -> float:
        """Nats; float32 batched sampling against one teacher-forced pass."""
        return 5e-3

    async def score(self, row: Ids, sampling: Sampling) -> Floats:
        """See `Scorer`. Runs between two steps: the others wait for one forward."""
        name = self._life.new_name("score")
        done = await self._life.ask(name, wire.Score(name, row, _draw(sampling)))
        if not isinstance(done, wire.Scored):
            raise EngineError(f"the engine answered {type(done).__name__}")
        return Floats(done.logprobs)

    async def health(self) -> wire.Status:
        """Counters of the running process. Raises EngineError when there is none."""
        name = self._life.new_name("health")
        done = await self._life.ask(name, wire.Health(name))
        if not isinstance(done, wire.Status):
            raise EngineError(f"the engine answered {type(done).__name__}")
        return done

    async def close(self) -> None:
        """Idempotent; running generations fail. No process is left when this returns."""
        await self._life.close()

    def _check(self, request: Generation) -> None:
        size = count(request.prompt_ids)
        if not 0 < size < self._info.context or request.sampling.max_tokens < 1:
            raise EngineError(
                f"a prompt of {size} tokens, {request.sampling.max_tokens} to sample, context {self._info.context}",
                retryable=False,
            )
        column = ids_array(request.prompt_ids)
        if int(column.min()) < 0 or int(column.max()) >= self._info.vocab:
            raise EngineError(f"the prompt has ids outside the vocabulary of {self._info.vocab}", retryable=False)


class _Life:
    """Who is alive, who waits for what, and the restarts."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._pending: dict[str, asyncio.Future[wire.FromChild]] = {}
        self._listeners: dict[str, Say] = {}
        self._names = itertools.count()
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._answers = 0
        self._dead: EngineError | None = EngineError("the engine was not started", retryable=False)
        self.child: Child | None = None
        self.weights: tuple[Path, int] | None = None

    def new_name(self, kind: str) -> str:
        """A request id that no caller uses."""
        return f"\0{kind}-{next(self._names)}"

    async def start(self) -> None:
        if self._keeper is not None:
            raise EngineError("the engine is already started", retryable=False)
        self._dead = None
        try:
            child = await self._boot()
        except BaseException as err:
            self._dead = err if isinstance(err, EngineError) else EngineError("the start was cancelled")
            raise
        self._keeper = asyncio.create_task(self._keep(child), name="embedded engine keeper")

    async def ask(self, name: str, message: wire.ToChild, listen: Say | None = None) -> wire.FromChild:
        """Send and wait for the answer. Raises EngineError as the process says it, or for its death. `listen` hears
        ids that come before it."""
        if name in self._pending:
            raise EngineError(f"request {name!r} is already running", retryable=False)
        future: asyncio.Future[wire.FromChild] = asyncio.get_running_loop().create_future()
        self._pending[name] = future
        if listen is not None:
            self._listeners[name] = listen
        try:
            child = await self._alive()
            child.send(message)
            await child.drain()
            answer = await future
        finally:
            del self._pending[name]
            self._listeners.pop(name, None)
            if future.done() and not future.cancelled():
                future.exception()  # marked as seen, for one that lost its waiter
        if isinstance(answer, wire.Failed):
            raise EngineError(answer.message, retryable=answer.retryable)
        return answer

    def tell(self, message: wire.ToChild) -> None:
        """Send; no answer comes."""
        if self.child is not None:
            self.child.send(message)

    async def close(self) -> None:
        keeper, self._keeper = self._keeper, None
        self._dead = EngineError("the engine is closed", retryable=False)
        self._up.set()
        if keeper is not None:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
        child, self.child = self.child, None
        self._fail(self._dead)
        if child is not None:
            await child.end(_GRACE)

    async def _alive(self) -> Child:
        try:
            async with asyncio.timeout(RESTART_LIMIT):
                while self.child is None and self._dead is None:
                    await self._up.wait()
        except TimeoutError:
            raise EngineError(f"the engine did not come back within {RESTART_LIMIT:.0f} s") from None
        if self._dead is not None or self.child is None:
            raise self._dead or EngineError("the engine is gone")
        return self.child

    async def _boot(self) -> Child:
        """A process that is ready; it becomes `self.child`. Raises EngineError; no process is left then."""
        child = await Child.start(self._spec, self.weights)
        try:
            async with asyncio.timeout(START_LIMIT):
                ready = await child.receive()
        except TimeoutError:
            await child.end(0.0)
            raise EngineError(f"the engine process said nothing within {START_LIMIT:.0f} s; log {child.log}") from None
        except BaseException:
            await child.end(0.0)
            raise
        if not isinstance(ready, wire.Ready):
            why = await child.post_mortem()
            await child.end(0.0)
            raise EngineError(why, retryable=False)
        self.child = child
        self._up.set()
        return child

    async def _keep(self, child: Child) -> None:
        failures = 0
        while True:
            before = self._answers
            await child.listen(self._deliver)
            self.child = None
            self._up.clear()
            why = EngineError(await child.post_mortem(), retryable=True)
            await child.end(0.0)
            self._fail(why)
            failures = 1 if self._answers > before else failures + 1
            again = await self._again(failures, why)
            if again is None:
                return
            child = again

    async def _again(self, failures: int, why: EngineError) -> Child | None:
        """A new process, with growing pauses between attempts; None when it is given up."""
        while failures <= _MAX_RESTARTS:
            await asyncio.sleep(min(5.0, 0.1 * 3 ** (failures - 1)) if failures > 1 else 0.0)
            try:
                return await self._boot()
            except EngineError as err:
                why = err
                failures += 1
        self._dead = EngineError(f"given up after {_MAX_RESTARTS} restarts: {why.message}", retryable=False)
        self._up.set()
        return None

    def _deliver(self, message: wire.FromChild) -> None:
        if isinstance(message, wire.Ready):
            return
        if isinstance(message, wire.Partial):
            if message.request_id in self._listeners:
                self._listeners[message.request_id](Ids(message.ids))
            return
        future = self._pending.get(message.request_id)
        if future is not None and not future.done():
            self._answers += 1
            future.set_result(message)

    def _fail(self, why: EngineError) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EngineError(why.message, retryable=why.retryable))


def _draw(sampling: Sampling) -> wire.Draw:
    return wire.Draw(sampling.temperature, sampling.top_p, sampling.top_k)


def _absolute(path: Path) -> Path:
    """A later process may be started from another working directory."""
    return path.absolute()
