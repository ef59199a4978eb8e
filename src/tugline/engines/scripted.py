"""An engine that plays a script: users test their harness with it, and we test everything behind an engine.

It writes down and returns what a real engine would: ids, log-probabilities, its own journal. No model runs.

Script: one JSON object per line and generation, played in order per session:
`{"reasoning", "text", "calls": [{"name", "arguments": "<string>"}], "ids"?, "finish": "stop|length", "cut"?, "delay_s",
"fail_after_tokens"?}`. The first line may be `{"settings": {"noncanonical": 0.3, "seed": 0, "repeat": false}}`.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from tugline.core.columns import Floats, Ids, concat, count, ids, ids_array, ids_list, take
from tugline.core.contracts import EngineInfo, Generation, JournalEntry, Piece, Sample
from tugline.core.errors import ConfigError, EngineError, boundary
from tugline.core.turn import Finish
from tugline.engines.journal import JournalWriter, journal_path, next_boot
from tugline.engines.modeldir import NOTHING, Asked, ModelFiles, read_model_dir
from tugline.engines.script import Script, Step, read_script
from tugline.engines.spelling import Respeller, spell, stop_of
from tugline.engines.stopping import StopStrings
from tugline.engines.streaming import Say, pieces_of

CAPACITY = 64
PIECE = 8
"""Tokens handed out at a time."""
SEEN = 64
"""Tokens at a prompt's end that tell whether it opened reasoning."""


@dataclass(slots=True)
class _Session:
    """Where a session stands in the script."""

    next: int = 0
    failed: int = -1
    """The last step that has failed once already."""


class ScriptedEngine:
    """Core `Engine` without a model. Deterministic: the same script and session id give the same ids."""

    def __init__(
        self,
        script: Path | Sequence[object],
        model_dir: Path,
        journal_dir: Path,
        *,
        seed: int | None = None,
        asked: Asked = NOTHING,
    ) -> None:
        """`script` is a file, or its lines as objects. Raises ConfigError naming line and field, or a file."""
        from tokenizers import Tokenizer

        files = read_model_dir(model_dir, asked)
        self._name = str(script) if isinstance(script, Path) else "script"
        self._script: Script = read_script(script, files)
        _spellable(self._script, files.parser, self._name)
        self._seed = self._script.settings.seed if self._script.settings.seed is not None else seed or 0
        with boundary(ConfigError, f"{model_dir / 'tokenizer.json'}: cannot be used"):
            self._tokenizer = Tokenizer.from_buffer(files.tokenizer_json)
        self._respeller = Respeller(files.tokenizer_json, self._tokenizer)
        self._files = files
        self._info = _info(files)
        self._journal_dir = journal_dir
        self._journal: JournalWriter | None = None
        self._state = _State()

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def start(self) -> None:
        """Opens a new journal file. Raises EngineError."""
        await asyncio.to_thread(self._open)

    async def generate(self, request: Generation) -> Sample:
        """Play the session's next step. A cancelled or failed one is played again by the next call."""
        return await self._play(request, None)

    def generate_stream(self, request: Generation) -> AsyncGenerator[Piece, None]:
        """As `generate`; the ids come in pieces of `PIECE` tokens, spread over the step's delay."""
        return pieces_of(lambda say: self._play(request, say))

    async def _play(self, request: Generation, say: Say | None) -> Sample:
        if self._journal is None:
            raise EngineError("the scripted engine is not running", retryable=False)
        self._check(request)
        session = self._state.sessions.setdefault(request.session_id, _Session())
        at = session.next
        step = self._step(at, request.session_id)
        aborted = asyncio.Event()
        self._state.running[request.request_id] = aborted
        session.next += 1
        try:
            planned, finish = self._plan(step, at, request)
            if step.fail_after_tokens is not None and session.failed < at:
                session.failed = at
                await _speak(take(planned, 0, step.fail_after_tokens), say, aborted, step.delay_s)
                raise EngineError(f"scripted failure after {step.fail_after_tokens} tokens (step {at + 1})")
            passed = await _speak(planned, say, aborted, step.delay_s)
            if passed is not None:
                planned, finish = take(planned, 0, passed), "abort"
            return await self._answer(request, planned, finish)
        except (EngineError, asyncio.CancelledError):
            if session.next == at + 1:
                session.next = at
            raise
        finally:
            self._state.running.pop(request.request_id, None)

    async def abort(self, request_id: str) -> None:
        """A running step ends now, with the share of its tokens that its delay has let pass."""
        event = self._state.running.get(request_id)
        if event is not None:
            event.set()

    async def release(self, session_id: str) -> None:
        """The session's place in the script is forgotten."""
        self._state.sessions.pop(session_id, None)
        if self._journal is not None:
            with self._state.writing:
                self._journal.forget(session_id)

    async def close(self) -> None:
        """Idempotent."""
        for event in self._state.running.values():
            event.set()
        journal, self._journal = self._journal, None
        if journal is not None:
            await asyncio.to_thread(self._shut, journal)

    def _write(self, journal: JournalWriter, entry: JournalEntry) -> None:
        with self._state.writing, boundary(EngineError, "write the engine's journal"):
            journal.append(entry)
            journal.flush()

    def _open(self) -> None:
        with boundary(EngineError, "open the engine's journal"):
            self._journal_dir.mkdir(parents=True, exist_ok=True)
            boot = next_boot(self._journal_dir)
            self._journal = JournalWriter(journal_path(self._journal_dir, boot))
            self._state.boot, self._state.served = boot, 0

    def _shut(self, journal: JournalWriter) -> None:
        with self._state.writing, boundary(EngineError, "close the engine's journal"):
            journal.close()

    def _check(self, request: Generation) -> None:
        length = count(request.prompt_ids)
        if not 0 < length < self._info.context:
            raise EngineError(f"a prompt of {length} tokens, context {self._info.context}", retryable=False)
        if request.sampling.max_tokens < 1:
            raise EngineError("max_tokens is below 1", retryable=False)
        if request.request_id in self._state.running:
            raise EngineError(f"request {request.request_id!r} is already running", retryable=False)
        column = ids_array(request.prompt_ids)
        if int(column.min()) < 0 or int(column.max()) >= self._info.vocab:
            raise EngineError("the prompt has ids outside the vocabulary", retryable=False)

    def _step(self, at: int, session_id: str) -> Step:
        steps = self._script.steps
        if at >= len(steps) and not self._script.settings.repeat:
            raise EngineError(
                f"{self._name} has {len(steps)} generations, session {session_id!r} asked for one more", retryable=False
            )
        return steps[at % len(steps)]

    def _plan(self, step: Step, at: int, request: Generation) -> tuple[Ids, Finish]:
        if step.ids is not None:
            planned = ids(step.ids)
        else:
            planned = self._spelled(step, random.Random(f"{self._seed}/{request.session_id}/{at}"), request.prompt_ids)
        room = min(request.sampling.max_tokens, self._info.context - count(request.prompt_ids))
        stopped = StopStrings(self._tokenizer, request.stop).cut(take(planned, 0, room))
        if stopped is not None:
            return stopped, "stop"
        return (take(planned, 0, room), "length") if count(planned) > room else (planned, step.finish)

    def _spelled(self, step: Step, rng: random.Random, prompt: Ids) -> Ids:
        """A step's ids: spelled as the model's family writes, respelled, cut or stopped."""
        files = self._files
        behind = self._tokenizer.decode(ids_list(take(prompt, -SEEN)), skip_special_tokens=False)
        text = spell(files.parser, step, behind)
        column = self._tokenizer.encode(text, add_special_tokens=False).ids
        planned = ids(self._respeller.respell(column, self._script.settings.noncanonical, rng))
        if step.finish == "stop":
            stop = stop_of(files.parser, step, files.stop)
            return concat([planned, ids([files.stop_ids[files.stop.index(stop)]])])
        if step.cut is None:
            return planned
        return take(planned, 0, int(step.cut if step.cut >= 1 else step.cut * count(planned)))

    async def _answer(self, request: Generation, sampled: Ids, finish: Finish) -> Sample:
        if self._journal is None:
            raise EngineError("the scripted engine was closed", retryable=False)
        self._state.served += 1
        entry = JournalEntry(
            engine_ref=f"{self._state.boot}.{self._state.served}",
            session_id=request.session_id,
            prompt_ids=request.prompt_ids,
            ids=sampled,
            logprobs=_logprobs(request.prompt_ids, sampled),
            finish=finish,
            version_runs=((0, 0),) if sampled else (),
        )
        await asyncio.to_thread(self._write, self._journal, entry)
        return Sample(
            ids=sampled,
            logprobs=entry.logprobs,
            finish=finish,
            version_runs=entry.version_runs,
            prompt_ids=request.prompt_ids,
            engine_ref=entry.engine_ref,
        )


class _State:
    """What changes while the engine runs."""

    def __init__(self) -> None:
        self.sessions: dict[str, _Session] = {}
        self.running: dict[str, asyncio.Event] = {}
        self.boot = ""
        self.served = 0
        self.writing = threading.Lock()
        """A cancelled call's write may still run in its thread."""


async def _speak(planned: Ids, say: Say | None, aborted: asyncio.Event, seconds: float) -> int | None:
    """Wait, handing out pieces meanwhile. When aborted: how many tokens had their time."""
    parts = -(-count(planned) // PIECE) if say is not None else 0
    for n in range(parts):
        if await _pause(aborted, seconds / parts) < 1.0:
            return n * PIECE
        if say is not None:
            say(take(planned, n * PIECE, (n + 1) * PIECE))
        await asyncio.sleep(0)
    share = 1.0 if parts else await _pause(aborted, seconds)
    return None if share == 1.0 else int(count(planned) * share)


async def _pause(aborted: asyncio.Event, seconds: float) -> float:
    """Wait, or until aborted: the share of the time that passed, 1.0 when all of it did."""
    if seconds <= 0:
        return 1.0
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout(seconds):
            await aborted.wait()
    except TimeoutError:
        return 1.0
    return min(0.999, (loop.time() - begun) / seconds)


def _spellable(script: Script, parser: str, name: str) -> None:
    """Raises ConfigError for a step that the family's format cannot hold: no session begins on it."""
    for number, step in enumerate(script.steps, start=1):
        if step.ids is None:
            try:
                spell(parser, step)
            except ConfigError as err:
                text = err.message.removeprefix(f"{err.where}: ")
                raise ConfigError(text, where=f"{name} generation {number}") from err


def _info(files: ModelFiles) -> EngineInfo:
    return EngineInfo(
        kind="scripted",
        model=files.name,
        model_dir=files.path,
        context=files.context,
        vocab=files.vocab,
        stop_ids=files.stop_ids,
        capacity=CAPACITY,
    )


def _logprobs(prompt: Ids, sampled: Ids) -> Floats:
    """Made-up but deterministic: float32[n] in [-4.01, -0.01], different for another prompt, position or id."""
    salt = int.from_bytes(blake2b(prompt, digest_size=4).digest(), "little")
    column = ids_array(sampled).astype(np.uint64)
    mixed = (column * 2654435761 + np.arange(len(column), dtype=np.uint64) * 40503 + salt) % 4001
    return Floats((-0.01 - mixed / 1000.0).astype("<f4").tobytes())
