"""A gateway with every dialect over a scripted engine, and the proof of what went through it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tugline.cli.wiring import PILOT, chat_model, make_trajectory
from tugline.core.columns import count
from tugline.core.contracts import Access, Engine, Policy
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.turn import Sampling, Turn
from tugline.dialects import DIALECTS
from tugline.engines.journal import JournalIndex
from tugline.engines.scripted import ScriptedEngine
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.gateway.running import Timing
from tugline.gateway.upstream import RetryPolicy
from tugline.rollout.proof import Proof, prove_run
from tugline.store import RunStore

DIALECT_NAMES = tuple(dialect.name for dialect in DIALECTS)
NONCANONICAL = {"settings": {"noncanonical": 0.3, "seed": 5, "repeat": True}}
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001"
    "a5f645400000000049454e44ae426082"
)
"""One transparent pixel."""
Streaming = Literal["buffered", "live"]
STREAMING: Streaming = "live" if os.environ.get("TUGLINE_TEST_STREAMING") == "live" else "buffered"
"""The mode of every gateway that a test does not ask another of."""


@dataclass
class Wire:
    """A running gateway and its records."""

    store: RunStore
    engine: Engine
    gateway: LocalGateway
    run: Path
    opened: list[str] = field(default_factory=list)

    async def session(self, name: str = "ses_a", max_tokens: int = 1000, **policy: object) -> Access:
        self.opened.append(name)
        return await self.gateway.open(name, Policy(Sampling(max_tokens=max_tokens), **policy))  # type: ignore[arg-type]

    def turns(self, name: str = "ses_a") -> list[Turn]:
        return list(self.store.iter_turns(name))

    async def prove(self) -> Proof:
        """End every session, build its rows, and check all of it against the engine's own journal."""
        for name in self.opened:
            await self.gateway.close(name)
            ended = Ended(SessionKey(name, f"grp_{name}", "task", 0), Outcome.COMPLETED, 1.0)
            await self.store.put_session(ended)
            calls = list(self.store.iter_calls(name))
            await self.store.put_trajectory(make_trajectory(ended, self.turns(name), calls))
        return prove_run(self.store, JournalIndex(self.run / "engine").get)


def assert_exact(proof: Proof, calls: int, sessions: int = 1) -> None:
    """One continuous row per session, every call as the engine wrote it down."""
    assert proof.findings == []
    assert (proof.calls_total, proof.calls_exact) == (calls, calls)
    rows = (proof.traces_total, proof.traces_exact, proof.traces_continuous)
    assert rows == (sessions, sessions, sessions), f"{rows} rows in all, exact, continuous; drift {dict(proof.drift)}"
    assert proof.sampled_tokens == proof.trained_tokens


def model_dir(tmp_path: Path, context: int | None) -> Path:
    """The shipped policy's tokenizer and template, with another window: a scripted engine needs no weights."""
    if context is None:
        return PILOT
    made = tmp_path / "model"
    shutil.copytree(PILOT, made, ignore=shutil.ignore_patterns("*.safetensors"))
    facts = json.loads((made / "tugline.json").read_text())
    (made / "tugline.json").write_text(json.dumps(facts | {"context": context}))
    return made


@asynccontextmanager
async def wire(
    tmp_path: Path,
    script: list[object],
    *,
    context: int | None = None,
    timing: Timing = Timing(),
    max_body: int = 1 << 20,
    host: str = "127.0.0.1",
    streaming: Streaming = STREAMING,
    engine: Callable[[Engine], Engine] = lambda engine: engine,
    model_files: Path | None = None,
) -> AsyncIterator[Wire]:
    """A running gateway on a TCP port. `engine`: puts something around the scripted engine."""
    folder = model_files or model_dir(tmp_path, context)
    store = RunStore.create(tmp_path / "run", "")
    played = engine(ScriptedEngine(script, folder, tmp_path / "run" / "engine"))
    await played.start()
    retry = RetryPolicy(2, 0.01, 0.02)
    options = GatewayOptions(host=host, timing=timing, retry=retry, max_body=max_body, streaming=streaming)
    model = chat_model(folder)
    model.probe()
    gateway = LocalGateway(played, model, store, DIALECTS, options)
    await gateway.start()
    try:
        yield Wire(store, played, gateway, tmp_path / "run")
    finally:
        await gateway.stop()
        await played.close()
        await store.close()


def tokens(turn: Turn) -> tuple[int, int]:
    """(prompt, sampled) of a turn."""
    return turn.prompt_len, count(turn.sampled)
