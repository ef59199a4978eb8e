"""A gateway that dies, and another that goes on with its sessions: what was delivered, what waits for a retry."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.raw_client import RawClient, call, request_of
from service.test_live import relax
from service.wire_kit import DIALECT_NAMES, Wire, wire
from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import count
from tugline.core.contracts import Policy
from tugline.core.items import Assistant
from tugline.core.turn import CallOutcome, Sampling
from tugline.dialects import DIALECTS
from tugline.engines.scripted import ScriptedEngine
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.gateway.restored import reply_again
from tugline.store import RunStore

TESTS = Path(__file__).parents[1]
REPEAT = {"settings": {"noncanonical": 0.3, "seed": 4, "repeat": True}}
FIRST_LIFE = """
import asyncio, os, signal, sys
from pathlib import Path
from service.wire_kit import wire
from tugline.gateway.delivery import Delivery

honest = Delivery._send

async def send(self, conn, call, reply, follower=None):
    if (reply.assistant.text or "").startswith("lost"):
        os.kill(os.getpid(), signal.SIGKILL)  # committed, and not one byte of it has left
    return await honest(self, conn, call, reply, follower)

Delivery._send = send

async def main():
    bash = {"name": "bash", "arguments": "{}"}
    script = [{"text": "kept words"}, {"reasoning": "hm", "text": "lost words", "calls": [bash]}]
    async with wire(Path(sys.argv[1]), script) as kit:
        access = await kit.session()
        os.write(1, f"{access.url} {access.secret}\\n".encode())
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def second_life(run: Path, script: list[object]) -> AsyncIterator[Wire]:
    """Another gateway on the same run."""
    store = RunStore.open(run, write=True)
    engine = ScriptedEngine(script, PILOT, run / "engine")
    await engine.start()
    gateway = LocalGateway(engine, chat_model(PILOT), store, DIALECTS, GatewayOptions())
    await gateway.start()
    try:
        yield Wire(store, engine, gateway, run)
    finally:
        await gateway.stop()
        await engine.close()
        await store.close()


async def until_settled(run: Path) -> None:
    """The first call's delivery is on disk."""
    with RunStore.open(run, write=False) as reader:
        async with asyncio.timeout(10):
            while not [c for c in reader.iter_calls("ses_a") if c.settled]:
                await asyncio.sleep(0.02)


@pytest.mark.chaos
@pytest.mark.parametrize(("api", "stream"), [("chat", False), ("anthropic", True), ("gemini", True)])
async def test_after_a_kill_what_was_lost_is_replayed_and_what_was_read_is_sampled_anew(
    tmp_path: Path, api: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    relax(monkeypatch)
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{FIRST_LIFE}"
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        url, secret = (await asyncio.to_thread(child.stdout.readline)).decode().split()
        kept = await call(url, secret, api, "one", stream=stream)
        assert kept.said(api, stream=stream).text == "kept words"
        await until_settled(tmp_path / "run")
        lost = await call(url, secret, api, "two", stream=stream)
        assert lost.raw == b""
        assert await asyncio.to_thread(child.wait) == -signal.SIGKILL
    finally:
        child.kill()
        await asyncio.to_thread(child.wait)
        assert child.stdout is not None
        child.stdout.close()
    async with second_life(tmp_path / "run", [REPEAT, {"text": "new words"}]) as kit:
        secret = (await kit.session()).secret
        before = kit.turns()
        client = await asyncio.to_thread(RawClient, kit.gateway.url, secret)

        async def ask(text: str) -> Assistant:
            """On one connection: each request says that the answer before it was read."""
            client.ask(*request_of(api, text, stream=stream))
            return (await asyncio.to_thread(client.read)).said(api, stream=stream)

        again = await ask("two")
        assert (again.text, len(again.calls), kit.turns()) == ("lost words", 1, before)
        for text in ("two", "one"):
            assert (await ask(text)).text == "new words"
        client.leave()
        proof = await kit.prove()
        assert (proof.findings, proof.calls_exact) == ([], 4)
        assert proof.trained_tokens == proof.sampled_tokens
        links = [t.link("resample_of") for t in kit.turns()]
        assert links == [None, None, before[1].turn_id, before[0].turn_id]
        outcomes = [c.outcome for c in kit.store.iter_calls("ses_a")]
        assert outcomes == [
            CallOutcome.ANSWERED, CallOutcome.UNDELIVERED, CallOutcome.REPLAYED, *[CallOutcome.ANSWERED] * 2
        ]  # fmt: skip


SAYS: list[dict[str, Any]] = [
    {"reasoning": " why ", "text": "\n It is. ", "calls": [{"name": "bash", "arguments": '{"a" :  1.0}'}]},
    {"text": "One, two, STOP three"},
    {"text": "cut off in the middle", "finish": "length"},
    {"text": "a call <tool_call> that is none"},
]


@pytest.mark.parametrize("api", DIALECT_NAMES)
async def test_a_reply_made_again_is_the_reply(tmp_path: Path, api: str) -> None:
    async with wire(tmp_path, SAYS) as kit:
        secret = (await kit.session()).secret
        delivery = kit.gateway._delivery
        made = {}
        honest = delivery._send

        async def send(conn: Any, called: Any, reply: Any, follower: Any = None) -> bool:
            made[f"turn_{reply.id}"] = reply
            return await honest(conn, called, reply, follower)

        delivery._send = send  # type: ignore[method-assign]
        stops = {"chat": {"stop": ["STOP"]}, "anthropic": {"stop_sequences": ["STOP"]}}.get(api, {})
        for n in range(len(SAYS)):
            await call(kit.gateway.url, secret, api, f"go {n}", stream=False, **stops)
        forest = kit.gateway._sessions["ses_a"].lanes[""].forest
        calls = {c.turn_id: c for c in kit.store.iter_calls("ses_a")}
        assert len(made) == len(SAYS)
        for turn_id, reply in made.items():
            turn = forest.turns[turn_id]
            assert reply_again(forest, turn, calls[turn_id], reply.request, kit.gateway._lanes[""]) == reply


@pytest.mark.parametrize("read", [False, True])
async def test_a_client_that_left_before_the_restart_gets_its_reply_after_it(tmp_path: Path, read: bool) -> None:
    async with wire(tmp_path, [REPEAT, {"text": "words", "delay_s": 0.2}]) as kit:
        secret = (await kit.session()).secret
        client = await asyncio.to_thread(RawClient, kit.gateway.url, secret)
        client.ask(*request_of("chat", "go", stream=False))
        if read:
            await asyncio.to_thread(client.read)
        else:
            client.leave()
        async with asyncio.timeout(20):
            while not any(c.settled for c in kit.store.iter_calls("ses_a")):
                await asyncio.sleep(0.01)
        client.leave()
        (first,) = kit.store.iter_calls("ses_a")
        assert first.outcome is (CallOutcome.ANSWERED if read else CallOutcome.UNDELIVERED)
        again = LocalGateway(kit.engine, chat_model(PILOT), kit.store, DIALECTS, GatewayOptions())
        await again.start()
        try:
            secret = (await again.open("ses_a", Policy(Sampling(max_tokens=50)))).secret
            answer = await call(again.url, secret, "chat", "go", stream=False)
            assert answer.said("chat", stream=False).text == "words" or read
            assert len(kit.turns()) == 1 + read
        finally:
            await again.stop()


async def test_calls_of_an_older_version_are_left_alone(tmp_path: Path) -> None:
    async with wire(tmp_path, [REPEAT, {"text": "words"}]) as kit:
        secret = (await kit.session()).secret
        await call(kit.gateway.url, secret, "chat", "go", stream=False)
        (turn,) = kit.turns()
        assert count(turn.sampled) > 0
        honest = kit.store.load_calls

        async def old(session_id: str) -> Any:
            return [replace(c, fingerprint="", settled=False) for c in await honest(session_id)]

        kit.store.load_calls = old  # type: ignore[method-assign]
        secret = (await kit.session()).secret
        await call(kit.gateway.url, secret, "chat", "go", stream=False)
        assert len(kit.turns()) == 2


@pytest.mark.parametrize("then", ["nothing", "again", "on"])
async def test_a_reply_that_nobody_is_known_to_have_read_trains_once_somebody_does(tmp_path: Path, then: str) -> None:
    async with wire(tmp_path, [REPEAT, {"text": "words"}]) as kit:
        secret = (await kit.session()).secret

        async def dies_first(call_id: str, outcome: CallOutcome) -> None:
            """The gateway is gone before it has noted what became of the reply."""

        kit.store.mark = dies_first  # type: ignore[method-assign]
        await call(kit.gateway.url, secret, "chat", "go", stream=False)
        del kit.store.mark
        (turn,) = kit.turns()
        kit.gateway = again = LocalGateway(kit.engine, chat_model(PILOT), kit.store, DIALECTS, GatewayOptions())
        await again.start()
        try:
            secret = (await again.open("ses_a", Policy(Sampling(max_tokens=50)))).secret
            if then == "again":
                await call(again.url, secret, "chat", "go", stream=False)
            if then == "on":
                said = {"role": "assistant", "content": "words"}
                history = [{"role": "user", "content": "go"}, said, {"role": "user", "content": "more"}]
                await call(again.url, secret, "chat", "", stream=False, messages=history)
            proof = await kit.prove()
        finally:
            await again.stop()
        assert proof.findings == []
        first, *more = kit.store.iter_calls("ses_a")
        assert (first.outcome, first.settled) == (CallOutcome.UNDELIVERED, True)
        expected = {"nothing": [], "again": [CallOutcome.REPLAYED], "on": [CallOutcome.ANSWERED]}[then]
        assert [c.outcome for c in more] == expected
        assert proof.trained_tokens == (0 if then == "nothing" else sum(count(t.sampled) for t in kit.turns()))
        assert (kit.turns()[0], len(kit.turns())) == (turn, 2 if then == "on" else 1)
