"""Many sessions at once over engines that fail now and then, or for good."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.engine_kit import DRIVERS, Served, engine, is_error, request_of
from service.wire_kit import DIALECT_NAMES
from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import count
from tugline.core.contracts import ModelRoute, Policy
from tugline.core.turn import CallOutcome, Sampling
from tugline.dialects import DIALECTS
from tugline.engines.journal import read_journal
from tugline.engines.scripted import ScriptedEngine
from tugline.gateway.gateway import GatewayOptions, LocalGateway, Seat
from tugline.gateway.upstream import RetryPolicy
from tugline.store import RunStore

SCRIPT: list[object] = [{"settings": {"repeat": True, "noncanonical": 0.3, "seed": 1}}, {"text": "all is well"}]
BAD = ("http_500", "http_503", "truncated", "reset", "drop", "garbage", "other_reply", "nan", "wrong_echo", "no_stop")
"""Half of them fail an attempt, half make a turn that does not train."""
UNTRAINED = {"nan": "nonfinite_logprob", "wrong_echo": "engine_echo_mismatch", "no_stop": "bad_stop"}
SESSIONS, CALLS = 64, 4


@pytest.mark.parametrize("kind", DRIVERS)
async def test_every_session_ends_right_and_the_counts_add_up(tmp_path: Path, kind: str) -> None:
    """64 sessions, 4 calls each, against a server that fails 30 of 100 generations in ten ways."""
    async with engine(tmp_path, kind, SCRIPT) as at:
        at.served.driver.guard.breaker.limit = 10_000  # what it fails is left to each call's own attempts
        chance, server = random.Random(7), at.served.server
        happened: Counter[str] = Counter()
        honest = server.next_fault

        async def sometimes(session: str = "") -> Any:
            if chance.random() < 0.3:
                server.now.faults[:] = [chance.choice(BAD)]  # type: ignore[list-item]
                happened[server.now.faults[0]] += 1
            return await honest(session)

        server.next_fault = sometimes  # type: ignore[method-assign]
        statuses: Counter[int] = Counter()

        async def agent(n: int) -> None:
            dialect, name = DIALECT_NAMES[n % len(DIALECT_NAMES)], f"ses_{n}"
            key = (await at.run.session(name)).secret
            for turn in range(CALLS):
                path, body, headers = request_of(dialect, f"{n} {turn}", key)
                async with at.http.post(at.run.gateway.url + path, json=body, headers=headers) as response:
                    said = await response.json()
                    statuses[response.status] += 1
                    assert response.status == 200 or is_error(dialect, response.status, said)

        await asyncio.gather(*[agent(n) for n in range(SESSIONS)])
        names = [f"ses_{n}" for n in range(SESSIONS)]
        turns = [turn for name in names for turn in at.run.turns(name)]
        calls = [call for name in names for call in at.run.store.iter_calls(name)]
        ended = Counter(call.outcome for call in calls)
        assert len(calls) == SESSIONS * CALLS and sum(statuses.values()) == len(calls)
        assert ended == {CallOutcome.ANSWERED: statuses[200], CallOutcome.ENGINE_FAILED: len(calls) - statuses[200]}
        assert len(turns) == statuses[200], "a turn per answer, however many attempts it took"
        assert sum(at.faults().values()) == sum(happened.values()) > 50
        told = Counter(turn.untrainable for turn in turns if turn.untrainable)
        assert told == {UNTRAINED[bad]: n for bad, n in happened.items() if bad in UNTRAINED}
        boot = at.served.driver._state.boot  # the server's own engine writes beside it
        journal = read_journal(at.run.run / "engine")
        records = [entry.engine_ref for entry in journal if entry.engine_ref.startswith(boot)]
        assert sorted(records) == sorted(call.engine_ref or "" for call in calls if call.turn_id), "one record each"
        proof = await at.run.prove()
        assert proof.findings == []
        assert proof.trained_tokens == sum(count(turn.sampled) for turn in turns if not turn.untrainable)


async def test_a_broken_engine_does_not_hurt_the_other(tmp_path: Path) -> None:
    """The judge is dead: the policy answers at once, whatever waits for the judge."""
    store = RunStore.create(tmp_path / "run", "")
    made = {
        name: Served(
            "vllm", ScriptedEngine(SCRIPT, PILOT, tmp_path / name), tmp_path / "run" / place, {"patience": 1.0}
        )
        for name, place in (("policy", "engine"), ("judge", "engines/judge"))
    }
    for each in made.values():
        await each.start()
    policy, judge = made["policy"], made["judge"]
    options = GatewayOptions(retry=RetryPolicy(2, 0.01, 0.02))
    model = chat_model(PILOT)
    gateway = LocalGateway(policy, model, store, DIALECTS, options, others={"judge": Seat(judge, model)})  # type: ignore[arg-type]
    await gateway.start()
    rules = Policy(Sampling(max_tokens=100), routes=(ModelRoute("big-*", "judge"),))
    key = (await gateway.open("ses_a", rules)).secret
    async with aiohttp.ClientSession() as http:

        async def ask(model: str, text: str) -> int:
            body = {"model": model, "messages": [{"role": "user", "content": text}]}
            headers = {"authorization": f"Bearer {key}"}
            async with http.post(gateway.url + "/v1/chat/completions", json=body, headers=headers) as response:
                await response.read()
                return response.status

        assert (await ask("big-one", "hello"), await ask("m", "hello")) == (200, 200)
        await judge.server.down()
        waiting = [asyncio.ensure_future(ask("big-one", f"judge {n}")) for n in range(20)]
        while not judge.driver.guard.breaker.open:
            await asyncio.sleep(0.01)
        assert [await ask("m", f"policy {n}") for n in range(10)] == [200] * 10
        assert not any(task.done() for task in waiting), "the policy did not wait for the judge's end"
        assert {await task for task in waiting} == {502}
        assert (policy.driver.guard.breaker.phase, dict(policy.driver.faults)) == ("closed", {})
        assert judge.driver.guard.breaker.open and judge.driver.faults["circuit_open"] == 20
    await gateway.stop()
    await policy.close()
    await judge.close()
    await store.close()
