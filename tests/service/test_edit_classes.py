"""Each way in which an agent sends our turns back changed, over HTTP: what the engine is asked, which rows train."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from service.gateway_kit import user
from service.test_failure_modes import Agent, trained
from service.wire_kit import wire
from tugline.cli.edits import BILLING_HEADER, TOTAL_TOKENS
from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import concat, count, take
from tugline.core.contracts import EditPolicy

ROUGH = {"settings": {"noncanonical": 0.3, "seed": 8, "repeat": True}}
Message = dict[str, Any]


def bash(arguments: str) -> dict[str, str]:
    return {"name": "bash", "arguments": arguments}


def with_args(arguments: str) -> Callable[[Message], Message]:
    def edit(said: Message) -> Message:
        (call,) = said["tool_calls"]
        return said | {"tool_calls": [call | {"function": call["function"] | {"arguments": arguments}}]}

    return edit


def with_fields(**fields: Any) -> Callable[[Message], Message]:
    return lambda said: {k: v for k, v in (said | fields).items() if v is not None or k == "content"}


def with_name(name: str) -> Callable[[Message], Message]:
    def edit(said: Message) -> Message:
        (call,) = said["tool_calls"]
        return said | {"tool_calls": [call | {"function": call["function"] | {"name": name}}]}

    return edit


def renumbered(said: Message) -> Message:
    (call,) = said["tool_calls"]
    return said | {"tool_calls": [call | {"id": "mine_0"}]}


def with_call(said: Message) -> Message:
    more = {"id": "mine_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    return said | {"tool_calls": [*said.get("tool_calls", []), more]}


@dataclass(frozen=True)
class Case:
    """One class. `kept`: by default the sampled ids stay. `other`: the policy under which it is the other way round."""

    name: str
    says: dict[str, Any]
    edit: Callable[[Message], Message]
    kept: bool
    other: dict[str, Any] | None = None
    needle: str = ""
    """What the prompt of a branch says in the agent's own words."""


def edits(**fields: str) -> dict[str, Any]:
    return {"edits": EditPolicy(**fields)}  # type: ignore[arg-type]


THINKS = {"reasoning": " think of it ", "text": " Hello there \n", "calls": [bash('{"command" :  "ls"}')]}
OPAQUE = {"calls": [bash('"ls -l"')]}
CASES = [
    Case("json_respell", {"calls": [bash('{"command" :  "ls"}')]}, with_args('{"command":"ls"}'), True),
    Case("number_respell", {"calls": [bash('{"n": 1.0, "m": 1e3}')]}, with_args('{"n":1,"m":1000}'), True),
    Case("unicode_respell", {"calls": [bash('{"s": "\\u00e9"}')]}, with_args('{"s": "é"}'), True),
    Case("key_order", {"calls": [bash('{"b": 1, "a": 2}')]}, with_args('{"a": 2, "b": 1}'), True),
    Case("args_empty", {"calls": [bash("{}")]}, with_args(""), True),
    Case("ids_renamed", {"calls": [bash("{}")]}, renumbered, True),
    Case("ws_trim", THINKS, with_fields(content="Hello there"), True, edits(ws_trim="honour")),
    Case("reasoning_trimmed", THINKS, with_fields(reasoning_content="think of it"), True, edits(ws_trim="honour")),
    Case("reasoning_dropped", THINKS, with_fields(reasoning_content=None), True, {"history_reasoning": "template"}),
    Case(
        "reasoning_changed", THINKS, with_fields(reasoning_content="other"), True,
        edits(reasoning_changed="honour"), "other",
    ),
    Case(
        "reasoning_added", {"text": "Hello", "calls": [bash("{}")]}, with_fields(reasoning_content="mine"), True,
        edits(reasoning_changed="honour"), "mine",
    ),
    Case("args_lossy_known", OPAQUE, with_args("{}"), True, edits(args_lossy_known="honour"), '"arguments": {}'),
    Case(
        "args_repaired", OPAQUE, with_args('{"command": "ls -l"}'), False, edits(args_repaired="retain"),
        '{"command": "ls -l"}',
    ),
    Case("args_changed", THINKS, with_args('{"command": "pwd"}'), False, edits(args_changed="retain"), "pwd"),
    Case("text_changed", THINKS, with_fields(content="Hello Ann"), False, edits(text_changed="retain"), "Hello Ann"),
    Case("call_renamed", {"calls": [bash('{"a": 1}')]}, with_name("invalid"), False, None, '"name": "invalid"'),
    Case("call_removed", THINKS, with_fields(tool_calls=None), False, None, "Hello there"),
    Case("call_added", THINKS, with_call, False, None, "Hello there"),
]  # fmt: skip


@asynccontextmanager
async def agent(tmp_path: Path, *script: Any, **policy: Any) -> AsyncIterator[Agent]:
    async with wire(tmp_path, list(script)) as run, aiohttp.ClientSession() as http:
        yield Agent(run, http, await run.session(**policy))


BOTH = [(case, default) for case in CASES for default in (True, False) if default or case.other is not None]


@pytest.mark.parametrize(("case", "default"), BOTH, ids=lambda value: getattr(value, "name", str(value)))
async def test_an_edited_turn(tmp_path: Path, case: Case, default: bool) -> None:
    policy = {} if default or case.other is None else case.other
    async with agent(tmp_path, ROUGH, case.says, {"text": "Done."}, **policy) as at:
        said = await at.say(user("go"))
        echo = case.edit(said)
        answers = [{"role": "tool", "tool_call_id": c["id"], "content": "ok"} for c in echo.get("tool_calls", [])]
        await at.say(user("go"), echo, *(answers or [user("on")]))
        first, second = at.turns
        made = await at.rows()
        assert sum(trained(made)) == count(first.sampled) + count(second.sampled), "each token once"
        assert case.name in second.drift
        kept = case.kept is default
        meant = not case.kept
        assert ("edit_honoured" in second.drift, "edit_retained" in second.drift) == (not kept, kept and meant)
        if kept:
            (row,) = made.traces
            assert second.parent == first.turn_id
            at_first, at_second = row.spans
            assert take(row.token_ids, at_first.start, at_first.end) == first.sampled
            assert take(row.token_ids, at_second.start, at_second.end) == second.sampled
            assert sum(row.loss_mask[at_first.end : at_second.start]) == 0
            return
        assert second.parent is None
        one, two = made.traces
        assert (one.token_ids, two.token_ids) == tuple(concat([t.bridge, t.sampled]) for t in (first, second))
        assert case.needle in chat_model(PILOT).decode(second.bridge)
        assert not second.bridge.startswith(concat([first.bridge, take(first.sampled, 0, count(first.sampled) - 1)]))


# -------------------------------------------------------------------------------------- the conversation around turns


async def spans(at: Agent) -> list[int]:
    made = await at.rows()
    assert sum(trained(made)) == sum(count(t.sampled) for t in at.turns)
    return [len(trace.spans) for trace in made.traces]


async def test_a_turn_that_is_deleted(tmp_path: Path) -> None:
    async with agent(tmp_path, {"text": "first"}, {"text": "no call here"}, {"text": "third"}) as at:
        first = await at.say(user("go"))
        await at.say(user("go"), first, user("more"))
        await at.say(user("go"), first, user("more"), user("error: call a tool"))
        a, b, c = at.turns
        assert (b.parent, c.parent) == (a.turn_id, a.turn_id)
        assert c.drift == ("turn_deleted",)
        assert await spans(at) == [2, 2]


async def test_a_made_up_turn_and_its_removal(tmp_path: Path) -> None:
    async with agent(tmp_path, {"text": "first"}, {"text": "second"}, {"text": "third"}) as at:
        talk = [user("go"), await at.say(user("go")), user("more")]
        made_up = {"role": "assistant", "content": "[Tool execution completed.]"}
        await at.say(*talk, made_up, user("please go on"))
        await at.say(*talk)
        a, b, c = at.turns
        assert (b.parent, c.parent) == (a.turn_id, a.turn_id)
        assert ("foreign_assistant" in b.drift, c.drift) == (True, ())
        made = await at.rows()
        assert [len(trace.spans) for trace in made.traces] == [2, 2]
        assert sum(trained(made)) == sum(count(t.sampled) for t in (a, b, c)), "nobody's words train nowhere"


async def test_the_last_user_block_grows(tmp_path: Path) -> None:
    async with agent(tmp_path, {"text": "first"}, {"text": "second"}, {"text": "third"}) as at:
        said = await at.say(user("go"))
        parts = [{"type": "text", "text": "more"}, {"type": "text", "text": " <reminder>be quick</reminder>"}]
        await at.say(user("go"), said, {"role": "user", "content": parts[:1]})
        await at.say(user("go"), said, {"role": "user", "content": parts})
        a, b, c = at.turns
        assert (b.parent, c.parent) == (a.turn_id, a.turn_id)
        assert await spans(at) == [2, 2]


async def test_parallel_results_in_another_order(tmp_path: Path) -> None:
    calls = [bash('{"n": 0}'), {"name": "write", "arguments": '{"n": 1}'}, bash('{"n": 2}')]
    async with agent(tmp_path, {"calls": calls}, {"text": "done"}) as at:
        said = await at.say(user("go"))
        results = [
            {"role": "tool", "tool_call_id": c["id"], "content": f"result {n}"}
            for n, c in enumerate(said["tool_calls"])
        ]
        await at.say(user("go"), said, results[0], results[2], results[1])
        second = at.turns[1]
        text = chat_model(PILOT).decode(second.bridge)
        assert second.drift == () and text.index("result 2") < text.index("result 1")
        assert await spans(at) == [2]


@pytest.mark.parametrize("filtered", [True, False])
async def test_a_volatile_header_and_a_counter(tmp_path: Path, filtered: bool) -> None:
    def system(n: int) -> Message:
        return {"role": "system", "content": f"x-anthropic-billing-header: cc_version=1; h={n};\nBe brief."}

    def result(said: Message, n: int) -> Message:
        text = f"ok\n<total_tokens>{n} tokens left</total_tokens>"
        return {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": text}

    filters = (BILLING_HEADER, TOTAL_TOKENS) if filtered else ()
    script = [{"calls": [bash("{}")]}, {"text": "second"}, {"text": "third"}]
    async with agent(tmp_path, *script, filters=filters) as at:
        said = await at.say(system(1), user("go"))
        second = await at.say(system(2), user("go"), said, result(said, 900))
        await at.say(system(3), user("go"), said, result(said, 800), second, user("on"))
        drift = [t.drift for t in at.turns]
        if filtered:
            both = ("filtered:billing_header", "filtered:total_tokens")
            assert drift == [(), both[:1], both]
            assert await spans(at) == [3]
        else:
            assert at.roots() == ["root_first", "root_history_changed", "root_history_changed"]
            assert len(await spans(at)) == 3


async def test_a_retry_with_another_header_is_a_retry(tmp_path: Path) -> None:
    """The reply that nobody has read is sent again, not sampled again."""
    script = [{"text": "slow", "delay_s": 0.5}, {"text": "again"}]
    async with agent(tmp_path, *script, filters=(BILLING_HEADER,)) as at:

        def system(n: int) -> Message:
            return {"role": "system", "content": f"x-anthropic-billing-header: h={n};\nBe brief."}

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await at.say(system(1), user("go"))
        said = await at.say(system(2), user("go"))
        assert (said["content"], len(at.turns)) == ("slow", 1)
        again = await at.say(system(3), user("go"))
        assert again["content"] == "again"
        assert at.turns[1].link("resample_of") == at.turns[0].turn_id


@pytest.mark.parametrize("sticky", [True, False])
async def test_other_tools(tmp_path: Path, sticky: bool) -> None:
    policy = edits(head_changed="retain") if sticky else {}
    async with agent(tmp_path, {"text": "first"}, {"text": "second"}, **policy) as at:
        said = await at.say(user("go"))
        await at.say(user("go"), said, user("sum up"), tools=[])
        second = at.turns[1]
        assert second.drift == (("head_stale",) if sticky else ())
        assert at.roots()[1] == (
            None if sticky else "root_head_changed" if second.role == "main" else "root_compaction"
        )
        assert await spans(at) == ([2] if sticky else [1, 1])


async def test_system_text_in_the_middle_of_the_list(tmp_path: Path) -> None:
    async with agent(tmp_path, {"text": "first"}, {"text": "second"}, {"text": "third"}) as at:
        talk: list[Message] = [{"role": "system", "content": "Be brief."}, user("go")]
        talk += [await at.say(*talk), user("more"), {"role": "system", "content": "tools have changed"}]
        talk += [await at.say(*talk), user("on")]
        await at.say(*talk)
        assert "tools have changed" in chat_model(PILOT).decode(at.turns[1].bridge)
        assert await spans(at) == [3]


async def test_a_fragment_to_continue(tmp_path: Path) -> None:
    """Anthropic's prefill: the fragment is context, the continuation trains, both come back as one turn."""
    async with agent(tmp_path, {"text": " answer."}, {"text": "second"}) as at:

        async def ask(*messages: Message) -> str:
            body = {"model": "m", "max_tokens": 200, "messages": messages}
            headers = {"x-api-key": at.access.secret, "anthropic-version": "2023-06-01"}
            async with at.http.post(at.run.gateway.url + "/v1/messages", json=body, headers=headers) as response:
                reply = json.loads(await response.text())
                assert response.status == 200, reply
                return str(reply["content"][0]["text"])

        said = await ask(user("go"), {"role": "assistant", "content": "My"})
        await ask(user("go"), {"role": "assistant", "content": f"My{said}"}, user("more"))
        first, second = at.turns
        assert second.parent == first.turn_id
        made = await at.rows()
        (row,) = made.traces
        text = chat_model(PILOT).decode(take(row.token_ids, 0, row.spans[0].start))
        assert text.endswith("My") and not any(row.loss_mask[: row.spans[0].start])
