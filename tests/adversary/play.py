"""Plays adversarial sessions against a gateway over HTTP: the model's side in a scripted engine, the harness's side in
the wire forms of each API."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from adversary.plan import Move, respelled
from property.views_wire import WRITERS, Call, Result, Said, Talk, Tool, User
from tugline.cli.wiring import make_trajectory
from tugline.core.contracts import Access, Policy
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.turn import Sampling
from tugline.dialects import DIALECTS
from tugline.engines.journal import JournalIndex
from tugline.engines.script import Step
from tugline.engines.scripted import ScriptedEngine
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.gateway.running import Timing
from tugline.gateway.upstream import RetryPolicy
from tugline.rollout.proof import Proof, prove_run
from tugline.store import RunStore
from tugline.testing.replay_said import said
from tugline.tokens.model import ChatModel

DIALECT_NAMES = ("anthropic", "chat", "responses", "gemini")
MODES = ("whole", "streamed", "live")
_TEXT = {"type": "string"}
TOOLS = (
    Tool("run", "Run a command.", {"type": "object", "properties": {"cmd": _TEXT, "n": {"type": "number"}}}),
    Tool("write", None, {"type": "object", "properties": {"path": _TEXT, "content": _TEXT}, "required": ["path"]}),
    Tool("look", "Look around.", {"type": "object", "properties": {}}),
)
_PATHS = {"chat": "/v1/chat/completions", "anthropic": "/v1/messages", "responses": "/v1/responses"}


class Cast(ScriptedEngine):
    """Plays another script in each session."""

    def __init__(self, model_dir: Path, journal: Path, noncanonical: float) -> None:
        super().__init__([{"settings": {"noncanonical": noncanonical, "seed": 7}}, {"text": "x"}], model_dir, journal)
        self.scripts: dict[str, list[Step]] = {}

    def _step(self, at: int, session_id: str) -> Step:
        return self.scripts[session_id][at]


@dataclass
class Stage:
    """A running gateway and its records."""

    store: RunStore
    engine: Cast
    gateway: LocalGateway
    http: aiohttp.ClientSession
    run: Path
    played: dict[str, Played] = field(default_factory=dict)


@dataclass
class Played:
    """What a harness saw of its session."""

    answered: int = 0
    refused: list[str] = field(default_factory=list)
    """Errors that it was answered with."""
    empty: int = 0
    """Turns that said nothing."""


@asynccontextmanager
async def stage(folder: Path, model: ChatModel, scratch: Path, live: bool) -> AsyncIterator[Stage]:
    """A gateway on a TCP port. `folder`: the model directory of `model`."""
    store = RunStore.create(scratch, "")
    engine = Cast(folder, scratch / "engine", 0.3)
    await engine.start()
    options = GatewayOptions(
        timing=Timing(), retry=RetryPolicy(2, 0.01, 0.02), max_body=8 << 20, streaming="live" if live else "buffered"
    )
    gateway = LocalGateway(engine, model, store, DIALECTS, options)
    await gateway.start()
    async with aiohttp.ClientSession() as http:
        try:
            yield Stage(store, engine, gateway, http, scratch)
        finally:
            await gateway.stop()
            await engine.close()
            await store.close()


async def play(at: Stage, name: str, dialect: str, mode: str, moves: list[Move], tools: bool) -> None:
    """One session from its first request to its end."""
    at.engine.scripts[name] = [msgspec.convert(move.step, Step) for move in moves]
    seen = at.played[name] = Played()
    access = await at.gateway.open(name, Policy(Sampling(max_tokens=4000)))
    talk = Talk(("You are careful.\n",), TOOLS if tools else (), (User(("Go.",)),))
    for move in moves:
        turn = await _ask(at, access, dialect, mode, talk, seen)
        if turn is None:
            break
        talk = _answered(talk, turn, move)
    await at.gateway.close(name)
    ended = Ended(SessionKey(name, f"grp_{name}", "task", 0), Outcome.COMPLETED, 1.0)
    await at.store.put_session(ended)
    turns, calls = list(at.store.iter_turns(name)), list(at.store.iter_calls(name))
    await at.store.put_trajectory(make_trajectory(ended, turns, calls))


async def _ask(at: Stage, access: Access, dialect: str, mode: str, talk: Talk, seen: Played) -> Said | None:
    """The model's turn as this client keeps it, or None when there was none."""
    writer, streamed = WRITERS[dialect], mode != "whole"
    made = writer.body(talk, writer.wire(talk))
    if not talk.tools:
        made.pop("tools", None)
    path = _PATHS.get(dialect, "")
    if dialect == "gemini":
        path = f"/v1beta/models/policy:{'streamGenerateContent?alt=sse' if streamed else 'generateContent'}"
    elif streamed:
        made["stream"] = True
    headers = {"authorization": f"Bearer {access.secret}", "content-type": "application/json"}
    if dialect == "anthropic":
        headers["anthropic-version"] = "2023-06-01"
    async with at.http.post(at.gateway.url + path, data=msgspec.json.encode(made), headers=headers) as response:
        try:
            text = (await response.read()).decode()
        except aiohttp.ClientPayloadError:
            seen.refused.append(f"the stream of turn {seen.answered + 1} was cut")
            return None
        if response.status != 200:
            seen.refused.append(f"turn {seen.answered + 1}: {response.status} {text[:300]}")
            return None
    turn = said(dialect, text if streamed else json.loads(text))
    seen.answered += 1
    if turn is None:
        seen.empty += 1
        return Said(None, None, ())
    return Said(turn.text, turn.reasoning, tuple(Call(c.id, c.name, c.arguments) for c in turn.calls))


def _answered(talk: Talk, turn: Said, move: Move) -> Talk:
    """The talk as the harness goes on with it."""
    calls = tuple(replace(c, arguments=respelled(c.arguments, move.spelling)) for c in turn.calls)
    kept = turn.reasoning if move.keep_reasoning or not (turn.text or calls) else None
    echo = Said(turn.text, kept, calls)
    results = [Result(c, move.results[n % len(move.results)], None) for n, c in enumerate(calls)]
    random.Random(move.order).shuffle(results)
    after: list[Any] = [tuple(results)] if results else []
    after += [User((text,)) for text in move.user]
    if not after:
        after = [User(("Go on.",))]
    return replace(talk, turns=(*talk.turns, echo, *after))


def prove(at: Stage, names: list[str]) -> Proof:
    """What `tugline verify` finds of these sessions."""
    return prove_run(_Some(at.store, frozenset(names)), JournalIndex(at.run / "engine").get)


class _Some:
    """A store that holds some of its sessions."""

    def __init__(self, store: RunStore, names: frozenset[str]) -> None:
        self._store, self._names = store, names

    def sessions(self) -> list[Any]:
        return [pair for pair in self._store.sessions() if pair[0].key.session_id in self._names]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)
