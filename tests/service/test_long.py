"""Long sessions and many calls at once, over HTTP, with the gateway and its store replaced in the middle of each.

Small here. `make soak` runs 5,000 turns and 200,000 tokens.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from property.harness import digest
from service.gateway_kit import tools
from service.raw_client import RawClient
from service.wire_kit import NONCANONICAL, assert_exact, model_dir
from tugline.cli.wiring import chat_model, make_trajectory
from tugline.core.columns import Ids, count
from tugline.core.contracts import Generation, Policy, Sample
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.turn import Sampling, Turn
from tugline.dialects import DIALECTS
from tugline.engines.journal import JournalIndex
from tugline.engines.scripted import ScriptedEngine
from tugline.forest.forest import Forest
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.gateway.running import Timing
from tugline.rollout.proof import Proof, prove_run
from tugline.store import RunStore

PATH = "/v1/chat/completions"
SESSION = "ses_a"
STEP = {"text": "Now a step.", "calls": [{"name": "bash", "arguments": '{"command": "ls -l"}'}]}
SCRIPT: list[object] = [
    NONCANONICAL,
    STEP,
    {"reasoning": "Hm. ", **STEP},
    STEP,
    {"text": "Half a w", "finish": "length"},
]
REPLIES = len(SCRIPT) - 1


class Held(ScriptedEngine):
    """While `hold` is set each generation waits for its gate."""

    hold = False

    def __init__(self, script: list[object], folder: Path, journal: Path) -> None:
        super().__init__(script, folder, journal)
        self.gates: list[tuple[Generation, asyncio.Event]] = []

    async def generate(self, request: Generation) -> Sample:
        if self.hold:
            gate = asyncio.Event()
            self.gates.append((request, gate))
            await gate.wait()
        return await super().generate(request)


class World:
    """One session whose engine lives on while gateways come and go."""

    def __init__(self, tmp_path: Path) -> None:
        folder = model_dir(tmp_path, 2_000_000)
        self.run = tmp_path / "run"
        self.model = chat_model(folder)
        self.model.probe()
        self.store = RunStore.create(self.run, "")
        self.engine = Held(SCRIPT, folder, self.run / "engine")
        self.http = aiohttp.ClientSession()
        self.gateway: Any = None
        self.secret = ""

    async def boot(self) -> None:
        """A gateway on the store as it is. The one before is gone without a word, as after a crash."""
        if self.gateway is not None:
            await self.gateway._listener.close()
            for task in self.gateway._watching:
                task.cancel()
            self.gateway._pool.shutdown(wait=True)
            await self.store.close()
            self.store = RunStore.open(self.run, write=True)
        options = GatewayOptions(timing=Timing(3600.0, 600.0), max_body=64 << 20)
        self.gateway = LocalGateway(self.engine, self.model, self.store, DIALECTS, options)
        await self.gateway.start()
        self.secret = (await self.gateway.open(SESSION, Policy(Sampling(max_tokens=400)))).secret

    @property
    def forest(self) -> Forest:
        return self.gateway._sessions[SESSION].lanes[""].forest  # type: ignore[no-any-return]

    def left(self) -> int:
        """Running generations whose clients are known to have left."""
        entries = self.gateway._sessions[SESSION].lanes[""].retries._entries
        return sum(left for entry in entries.values() for left in entry.running.values())

    def known(self) -> list[object]:
        """All that a restart must not change: turns, parents, keys, ids, leaves."""
        forest = self.forest
        rows = [(t.turn_id, t.seq, t.parent, t.key_exact, t.key_lenient) for t in forest.turns.values()]
        ends = [(leaf, digest(forest.full(leaf))) for leaf in forest.leaves()]
        return [rows, ends]

    async def ask(self, messages: list[bytes]) -> dict[str, Any]:
        """The message that answers."""
        headers = {"authorization": f"Bearer {self.secret}", "content-type": "application/json"}
        data = aiohttp.BytesPayload(body(messages))
        async with self.http.post(self.gateway.url + PATH, data=data, headers=headers) as response:
            text = await response.read()
            assert response.status == 200, text
            return dict(json.loads(text)["choices"][0]["message"])

    async def prove(self) -> Proof:
        """End the session; its rows, checked against the engine's own journal."""
        await self.gateway.close(SESSION)
        ended = Ended(SessionKey(SESSION, "g", "task", 0), Outcome.COMPLETED, 1.0)
        await self.store.put_session(ended)
        self.made = make_trajectory(ended, self.turns(), list(self.store.iter_calls(SESSION)))
        await self.store.put_trajectory(self.made)
        return prove_run(self.store, JournalIndex(self.run / "engine").get)

    def turns(self) -> list[Turn]:
        return list(self.store.iter_turns(SESSION))


@asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    await made.engine.start()
    await made.boot()
    try:
        yield made
    finally:
        await made.http.close()
        await made.gateway.stop()
        await made.engine.close()
        await made.store.close()


def body(messages: list[bytes]) -> bytes:
    """A request, in time linear in its bytes."""
    front = json.dumps({"model": "m", "tools": tools("bash", "write")}).encode()
    return front[:-1] + b', "messages": [' + b", ".join(messages) + b"]}"


def message(role: str, content: str, **more: Any) -> bytes:
    return json.dumps({"role": role, "content": content, **more}).encode()


def after(reply: dict[str, Any], words: str) -> list[bytes]:
    """The reply as a client keeps it, and what the harness says to it."""
    results = [message("tool", words, tool_call_id=call["id"]) for call in reply.get("tool_calls") or []]
    return [json.dumps(reply).encode(), *(results or [message("user", words)])]


async def conversation(at: World, turns: int, words: str, restarts: tuple[int, ...]) -> Ids:
    """A session of so many turns; gateway and store are replaced before the turns named. Its last ids."""
    talk = [message("user", "Do the work.")]
    for n in range(turns):
        if n in restarts:
            before = at.known()
            await at.boot()
            assert at.known() == before
        talk += after(await at.ask(talk), f"{n}: {words}")
    turn = at.turns()[-1]
    assert at.forest.leaves() == (turn.turn_id,)
    return at.forest.full(turn.turn_id)


async def the_same(tmp_path: Path, turns: int, words: str) -> int:
    """Tokens of a session that was interrupted twice, and is the one that was not."""
    for name in ("straight", "broken"):
        (tmp_path / name).mkdir()
    async with world(tmp_path / "straight") as straight, world(tmp_path / "broken") as broken:
        ours = await conversation(straight, turns, words, ())
        theirs = await conversation(broken, turns, words, (turns // 2, turns // 2 + REPLIES))
        assert ours == theirs
        assert [t.key_lenient for t in straight.turns()] == [t.key_lenient for t in broken.turns()]
        assert [c.root_reason for c in broken.store.iter_calls(SESSION)] == ["root_first"] + [None] * (turns - 1)
        for one in (straight, broken):
            assert_exact(await one.prove(), calls=turns)
        return count(ours)


async def test_a_session_of_many_turns_goes_on_after_a_restart(tmp_path: Path) -> None:
    await the_same(tmp_path, 60, "ok")


async def test_a_session_of_long_results_goes_on_after_a_restart(tmp_path: Path) -> None:
    assert await the_same(tmp_path, 8, "a line of the output; " * 400) > 15_000


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_five_thousand_turns(tmp_path: Path) -> None:
    turns = int(os.environ.get("TUGLINE_TEST_TURNS", "5000"))
    assert await the_same(tmp_path, turns, "a line of the output; " * 3) > 50 * turns


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_two_hundred_thousand_tokens(tmp_path: Path) -> None:
    assert await the_same(tmp_path, 90, "a line of the output; " * 400) > 200_000


# ---------------------------------------------------------------------------------------- 32 calls of one node


async def until(what: Any) -> None:
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.005)


async def at_once(at: World, bodies: list[bytes], leave: set[int]) -> list[RawClient]:
    """Send all; every generation waits at its gate at the same time, then they end in reverse order of arrival, each
    committed before the next may end. Clients `leave` while theirs waits."""
    before = len(at.forest.turns)
    at.engine.hold = True
    clients = []
    for n, data in enumerate(bodies):
        clients.append(client := RawClient(at.gateway.url, at.secret))
        await asyncio.to_thread(client.ask, PATH, data)
        await until(lambda n=n: len(at.engine.gates) == n + 1)
    for n in leave:
        clients[n].leave(reset=n % 2 == 0)
    await until(lambda: at.left() == len(leave))
    at.engine.hold = False
    gates, at.engine.gates = at.engine.gates, []
    prompts = [request.prompt_ids for request, _ in gates]
    for done, (request, gate) in enumerate(reversed(gates)):
        gate.set()
        await until(lambda done=done: len(at.forest.turns) == before + done + 1)
        newest = list(at.forest.turns)[-1]
        assert at.forest.prompt(newest) == request.prompt_ids == prompts[-1 - done], "waits for none begun before"
    return clients


@pytest.mark.parametrize("seed", range(int(os.environ.get("TUGLINE_TEST_SEEDS", "1"))))
@pytest.mark.parametrize("identical", [False, True])
async def test_32_calls_extend_one_turn_at_once(tmp_path: Path, identical: bool, seed: int) -> None:
    rng = random.Random(seed)
    leave = set(rng.sample(range(32), 9))
    async with world(tmp_path) as at:
        talk = [message("user", "Do the work.")]
        talk += after(await at.ask(talk), "ok")
        (node,) = at.turns()
        bodies = [body([*talk, message("user", "go" if identical else f"part {n}")]) for n in range(32)]
        clients = await at_once(at, bodies, leave)
        answers = {n: await asyncio.to_thread(c.read) for n, c in enumerate(clients) if n not in leave}
        for n in answers:
            clients[n].leave()
        assert all(answer.whole and b" 200 " in answer.head.split(b"\r\n")[0] for answer in answers.values())
        told = {n: json.loads(answer.body) for n, answer in answers.items()}
        turn_of = {n: "turn_" + reply["id"].removeprefix("chatcmpl-") for n, reply in told.items()}
        seen = set(turn_of.values())
        siblings = at.turns()[1:]
        assert [t.parent for t in siblings] == [node.turn_id] * 32
        assert len({t.turn_id for t in siblings}) == 32
        before = at.known()
        await at.boot()  # the restart in the middle
        assert at.known() == before
        went_on = rng.sample(sorted(told), 12)
        for n in went_on:
            words = json.loads(bodies[n])["messages"][-1]["content"]
            said = told[n]["choices"][0]["message"]
            await at.ask([*talk, message("user", words), *after(said, "on")])
        parents = [t.parent for t in at.turns()[33:]]
        by_id = {t.turn_id: t.said for t in siblings}
        assert [by_id[p] for p in parents if p] == [by_id[turn_of[n]] for n in went_on]
        if not identical:
            assert parents == [turn_of[n] for n in went_on], "those that say the same stand for each other"
        seen |= {p for p in parents if p}
        proof = await at.prove()
        assert proof.findings == [] and proof.calls_exact == proof.calls_total == 45
        ends = [
            t for t in at.turns()[1:] if t.turn_id not in parents and (t.turn_id in seen or t.parent != node.turn_id)
        ]
        assert proof.traces_exact == proof.traces_continuous == proof.traces_total == len(ends)
        unseen = sum(count(t.sampled) for t in siblings if t.turn_id not in seen)
        assert at.made.untrained == {"undelivered": unseen}
        assert proof.trained_tokens + unseen == sum(count(t.sampled) for t in at.turns())
