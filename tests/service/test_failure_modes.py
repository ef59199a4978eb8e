"""Failure modes through the whole gateway: what an agent does, what the engine is asked, which rows train it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from service.gateway_kit import CALL, body, user
from service.wire_kit import NONCANONICAL, Wire, assert_exact, wire
from tugline.cli.wiring import PILOT, chat_model, make_trajectory
from tugline.core.columns import concat, count, ids_list, take
from tugline.core.contracts import Access
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.trace import Trajectory
from tugline.core.turn import Turn

REPEAT = {"settings": {**NONCANONICAL["settings"], "repeat": True}}


@dataclass
class Agent:
    """One session's client."""

    run: Wire
    http: aiohttp.ClientSession
    access: Access

    async def say(self, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
        """The message that answers."""
        headers = {"authorization": f"Bearer {self.access.secret}"}
        url = self.run.gateway.url + "/v1/chat/completions"
        async with self.http.post(url, json=body(*messages, **more), headers=headers) as response:
            text = await response.text()
            assert response.status == 200, text
            if not more.get("stream"):
                return dict(json.loads(text)["choices"][0]["message"])
        return {}

    @property
    def turns(self) -> list[Turn]:
        return self.run.turns()

    def roots(self) -> list[str | None]:
        return [c.root_reason for c in self.run.store.iter_calls("ses_a")]

    async def rows(self) -> Trajectory:
        """End the session; its rows, proven."""
        proof = await self.run.prove()
        assert proof.findings == []
        assert proof.calls_exact == proof.calls_total
        assert proof.traces_exact == proof.traces_total == proof.traces_continuous
        ended = Ended(SessionKey("ses_a", "g", "t", 0), Outcome.COMPLETED, 1.0)
        return make_trajectory(ended, self.turns, list(self.run.store.iter_calls("ses_a")))


@asynccontextmanager
async def agent(tmp_path: Path, *script: Any, context: int | None = None) -> AsyncIterator[Agent]:
    async with wire(tmp_path, list(script), context=context) as run, aiohttp.ClientSession() as http:
        yield Agent(run, http, await run.session())


def trained(made: Trajectory) -> list[int]:
    return [sum(trace.loss_mask) for trace in made.traces]


async def test_nothing_that_closes_a_cut_turn_is_trained(tmp_path: Path) -> None:
    cut = {"text": "cut in the mid", "finish": "length"}
    thinking = {"text": "<think>\ncut while thin", "finish": "length"}
    async with agent(tmp_path, cut, thinking, {"text": "Done."}) as at:
        talk = [user("go")]
        for _ in range(3):
            talk += [await at.say(*talk), user("more")]
        turns = at.turns
        (row,) = (await at.rows()).traces
        assert [t.parent for t in turns] == [None, turns[0].turn_id, turns[1].turn_id]
        stop = chat_model(PILOT).stop_ids[0]
        inside = set()
        for span in row.spans:
            inside |= set(range(span.start, span.end))
        ones = {i for i, bit in enumerate(row.loss_mask) if bit}
        assert ones == inside
        closes = [i for i, token in enumerate(ids_list(row.token_ids)) if token == stop]
        assert {span.end for span in row.spans[:1]} <= set(closes), "the first turn was closed for the next prompt"
        assert [i for i in closes if i in ones] == [row.spans[-1].end - 1], "only the last turn sampled its own close"


async def test_a_stop_inside_a_sample_is_not_the_end_of_the_turn(tmp_path: Path) -> None:
    model = chat_model(PILOT)
    stop = model.stop_ids[0]
    odd = [*ids_list(model.encode("one")), stop, *ids_list(model.encode("two")), stop]
    async with agent(tmp_path, {"ids": odd}, {"text": "Done."}) as at:
        first = await at.say(user("go"))
        assert first["content"] == "one"
        await at.say(user("go"), first, user("more <|im_end|> and more"))
        turns = at.turns
        assert ids_list(turns[0].sampled) == odd and turns[0].untrainable is None
        made = await at.rows()
        assert trained(made) == [sum(count(t.sampled) for t in turns)]
        assert len(made.traces[0].spans) == 2


async def test_an_engine_that_cuts_the_prompt_is_not_believed(tmp_path: Path) -> None:
    async with agent(tmp_path, {"text": "a"}, {"text": "b"}) as at:
        honest = at.run.engine.generate

        async def cuts(request: Any) -> Any:
            short = replace(request, prompt_ids=take(request.prompt_ids, 5))
            return await honest(short)

        at.run.engine.generate = cuts  # type: ignore[method-assign]
        first = await at.say(user("go"))
        at.run.engine.generate = honest  # type: ignore[method-assign]
        await at.say(user("go"), first, user("more"))
        turns = at.turns
        assert [t.untrainable for t in turns] == ["engine_echo_mismatch", None]
        await at.run.gateway.close("ses_a")
        made = make_trajectory(
            Ended(SessionKey("ses_a", "g", "t", 0), Outcome.COMPLETED, 1.0),
            turns,
            list(at.run.store.iter_calls("ses_a")),
        )
        assert trained(made) == [count(turns[1].sampled)]


async def test_template_arguments_that_change_on_the_way_are_another_root(tmp_path: Path) -> None:
    async with agent(tmp_path, REPEAT, {"reasoning": "hm", "text": "one"}, {"text": "two"}) as at:
        talk = [user("go")]
        for _ in range(2):
            talk += [await at.say(*talk), user("more")]
        off = {"chat_template_kwargs": {"enable_thinking": False}}
        await at.say(*talk, **off)
        await at.say(*talk)
        turns = at.turns
        assert [t.parent for t in turns] == [None, turns[0].turn_id, None, turns[1].turn_id]
        assert at.roots() == ["root_first", None, "root_head_changed", None]
        assert [len(trace.spans) for trace in (await at.rows()).traces] == [1, 3]


async def test_an_agent_and_its_helper_take_turns(tmp_path: Path) -> None:
    async with agent(tmp_path, REPEAT, {"text": "one", "calls": [CALL]}, {"text": "two"}, {"text": "three"}) as at:
        chief: list[dict[str, Any]] = [{"role": "system", "content": "chief"}, user("go")]
        helper: list[dict[str, Any]] = [{"role": "system", "content": "helper"}, user("do this")]
        for n in range(3):
            for talk in (chief, helper):
                said = await at.say(*talk)
                talk.append(said)
                answers = [
                    {"role": "tool", "tool_call_id": c["id"], "content": f"{n}"} for c in said.get("tool_calls") or ()
                ]
                talk += answers or [user(f"more {n}")]
        made = await at.rows()
        assert [len(trace.spans) for trace in made.traces] == [3, 3]
        assert at.roots() == ["root_first", "root_unknown", None, None, None, None]
        assert sum(trained(made)) == sum(count(t.sampled) for t in at.turns)


async def test_after_a_compaction_the_summary_begins_a_row_of_its_own(tmp_path: Path) -> None:
    async with agent(tmp_path, REPEAT, {"text": "one"}, {"text": "two"}, {"text": "summary"}, {"text": "four"}) as at:
        talk = [user("go")]
        for _ in range(2):
            talk += [await at.say(*talk), user("more")]
        summary = await at.say(*talk[:-1], user("sum up"))
        short = [user(f"so far: {summary['content']}")]
        said = await at.say(*short)
        await at.say(*short, said, user("on"))
        turns = at.turns
        assert [t.parent for t in turns] == [None, turns[0].turn_id, turns[1].turn_id, None, turns[3].turn_id]
        made = await at.rows()
        assert [len(trace.spans) for trace in made.traces] == [3, 2]
        assert turns[3].keep == 0


async def test_no_limit_asked_means_no_limit_but_the_operators(tmp_path: Path) -> None:
    text = " ".join(f"w{n}" for n in range(220))
    async with agent(tmp_path, {"text": text}) as at:
        said = await at.say(user("go"))
        assert count(at.turns[0].sampled) > 600
        assert said["content"] == text and at.turns[0].finish == "stop"


async def test_a_streamed_call_records_the_ids_of_a_whole_one(tmp_path: Path) -> None:
    script = [{"reasoning": "why", "text": " hi\n", "calls": [CALL]}, {"text": "two"}]
    seen = []
    for stream in (False, True):
        async with agent(tmp_path / str(stream), NONCANONICAL, *script) as at:
            for n in range(2):
                await at.say(user("go"), *[user("more")] * n, stream=stream)
            turns = at.turns
            seen.append([(t.bridge, t.sampled, t.logprobs, t.finish, t.untrainable) for t in turns])
            assert_exact_rows(await at.rows(), turns)
    assert seen[0] == seen[1]


def assert_exact_rows(made: Trajectory, turns: list[Turn]) -> None:
    assert sum(trained(made)) == sum(count(t.sampled) for t in turns)
    for trace in made.traces:
        (turn,) = [t for t in turns if t.turn_id == trace.spans[-1].turn_id]
        assert trace.token_ids == concat([turn.bridge, turn.sampled])


async def test_a_samples_ids_are_never_written_again(tmp_path: Path) -> None:
    """Ids that no encoder gives stay, turn after turn, in records, prompts and rows."""
    rough = {"settings": {"noncanonical": 1.0, "seed": 3}}
    async with agent(tmp_path, rough, *[{"text": f"something to say {n}"} for n in range(4)]) as at:
        talk = [user("go")]
        for _ in range(4):
            talk += [await at.say(*talk), user("more")]
        model = chat_model(PILOT)
        assert any(model.encode(model.decode(t.sampled)) != t.sampled for t in at.turns)
        assert_exact(await at.run.prove(), calls=4)


async def test_32_requests_extend_one_turn_at_once(tmp_path: Path) -> None:
    """All are read before any is sampled, and they end in the reverse order of their arrival."""
    async with agent(tmp_path, REPEAT, {"text": "one"}, {"reasoning": "hm", "text": "two"}, {"text": "3"}) as at:
        first = await at.say(user("go"))
        honest, waiting = at.run.engine.generate, list[asyncio.Event]()

        async def held(request: Any) -> Any:
            waiting.append(asyncio.Event())
            await waiting[-1].wait()
            return await honest(request)

        at.run.engine.generate = held  # type: ignore[method-assign]
        asked = [asyncio.ensure_future(at.say(user("go"), first, user(f"part {n}"))) for n in range(32)]
        async with asyncio.timeout(30):
            while len(waiting) < 32:
                await asyncio.sleep(0.01)
        for n, event in enumerate(reversed(waiting)):
            event.set()
            async with asyncio.timeout(30):
                while len(at.turns) < n + 2:
                    await asyncio.sleep(0.002)
        at.run.engine.generate = honest  # type: ignore[method-assign]
        replies = await asyncio.gather(*asked)
        root, *siblings = at.turns
        assert [t.parent for t in siblings] == [root.turn_id] * 32
        await asyncio.gather(*(at.say(user("go"), first, user(f"part {n}"), replies[n], user("on")) for n in range(32)))
        assert {t.parent for t in at.turns[33:]} == {t.turn_id for t in siblings}
        made = await at.rows()
        assert [len(trace.spans) for trace in made.traces] == [3] * 32
        assert sum(trained(made)) == sum(count(t.sampled) for t in at.turns)
