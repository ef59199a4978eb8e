"""The measured process: the real gateway and run store, and an engine that answers at once.

`python -m tugline.testing.bench_server RUN_DIR [live]`, then one JSON question per line: `open`, `reset`, `finish`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np

from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import NO_IDS, Floats, Ids, count, ids, take
from tugline.core.contracts import EngineInfo, Generation, Piece, Policy, Sample
from tugline.core.errors import EngineError
from tugline.core.turn import Sampling
from tugline.dialects import DIALECTS
from tugline.engines.modeldir import read_model_dir
from tugline.engines.spelling import spell
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.store import RunStore
from tugline.testing.bench_proc import answer_lines, fields
from tugline.testing.bench_talk import step

CONTEXT = 200_000
REPLIES = 64
LAG_EVERY = 0.02
PIECE = 8
"""Tokens handed out at a time, as the embedded engine does."""


class Truth(msgspec.Struct, frozen=True):
    """What the engine says about one of its answers."""

    session_id: str
    digest: str


class Finished(msgspec.Struct, frozen=True):
    """Answer to `finish`: engine_ref -> truth, and the longest that the event loop was late, in seconds."""

    truth: dict[str, Truth]
    lag: float


def digest(prompt: Ids, sampled: Ids, logprobs: Floats) -> str:
    """Of one generation: any other id, order or bit of a log-probability gives another."""
    hashed = blake2b(digest_size=16)
    for column in (prompt, sampled, logprobs):
        hashed.update(len(column).to_bytes(8, "little"))
        hashed.update(column)
    return hashed.hexdigest()


class CannedEngine:
    """Core `Engine` that has its replies ready. Log-probabilities differ in every answer, so that none can stand in for
    another; of each answer it keeps a digest to be proven against."""

    def __init__(self, model_dir: Path) -> None:
        from tokenizers import Tokenizer

        files = read_model_dir(model_dir)
        tokenizer = Tokenizer.from_buffer(files.tokenizer_json)
        self._info = EngineInfo(
            kind="canned",
            model=files.name,
            model_dir=files.path,
            context=CONTEXT,
            vocab=files.vocab,
            stop_ids=files.stop_ids,
            capacity=64,
        )
        said = (tokenizer.encode(spell(files.parser, step(n)), add_special_tokens=False).ids for n in range(REPLIES))
        self._replies = [ids([*column, files.stop_ids[0]]) for column in said]
        rng = np.random.default_rng(0)
        self._logprobs = [-rng.exponential(0.3, count(r)).astype("<f4") for r in self._replies]
        self.truth: dict[str, Truth] = {}

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def start(self) -> None:
        """Always ready."""

    async def generate(self, request: Generation) -> Sample:
        """The next reply. Raises EngineError when it does not fit into what was asked for."""
        number = len(self.truth)
        sampled = self._replies[number % REPLIES]
        if count(sampled) > request.sampling.max_tokens:
            raise EngineError("the canned reply is longer than max_tokens", retryable=False)
        shift = np.float32(number // REPLIES * 2.0**-10)
        logprobs = Floats((self._logprobs[number % REPLIES] - shift).tobytes())
        ref = f"canned.{number}"
        self.truth[ref] = Truth(request.session_id, digest(request.prompt_ids, sampled, logprobs))
        return Sample(
            ids=sampled,
            logprobs=logprobs,
            finish="stop",
            version_runs=((0, 0),),
            prompt_ids=request.prompt_ids,
            engine_ref=ref,
        )

    async def generate_stream(self, request: Generation) -> AsyncGenerator[Piece, None]:
        """The same reply, as an engine hands it out that samples for many at a time."""
        sample = await self.generate(request)
        for start in range(0, count(sample.ids), PIECE):
            await asyncio.sleep(0)
            yield Piece(take(sample.ids, start, start + PIECE))
        yield Piece(NO_IDS, sample)

    async def abort(self, request_id: str) -> None:
        """Nothing ever runs."""

    async def release(self, session_id: str) -> None:
        """Nothing is held."""

    async def close(self) -> None:
        """Nothing to end."""


class LagWatch:
    """The longest delay of the event loop, sampled."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(LAG_EVERY)
            self.worst = max(self.worst, time.perf_counter() - begun - LAG_EVERY)


async def main(read: Callable[[], Awaitable[bytes]], write: Callable[[object], None]) -> None:
    """Serve until the input ends."""
    engine = CannedEngine(PILOT)
    model = await asyncio.to_thread(chat_model, PILOT)
    await asyncio.to_thread(model.probe)
    store = await asyncio.to_thread(RunStore.create, Path(sys.argv[1]), "")
    options = GatewayOptions(streaming="live" if sys.argv[2:] == ["live"] else "buffered")
    gateway = LocalGateway(engine, model, store, DIALECTS, options)
    port = await gateway.start()
    lag = LagWatch()
    watching = asyncio.ensure_future(lag.run())
    policy = Policy(Sampling(max_tokens=1024))
    names: list[str] = []
    while line := await read():
        question = fields(line)
        if question["do"] == "open":
            keys = {name: (await gateway.open(name, policy)).secret for name in question["names"]}
            names += keys
            write({"port": port, "keys": keys})
        elif question["do"] == "reset":
            lag.worst = 0.0
            write({})
        else:
            worst = lag.worst
            for name in names:
                await gateway.close(name)
            write(Finished(engine.truth, worst))
    watching.cancel()
    await gateway.stop()
    await store.close()


if __name__ == "__main__":
    answer_lines(main)
