"""Roles and links of turns: sub-agents between their parents' calls, compaction, titles, resamples."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from service.gateway_kit import Kit, body, gateway, tools, user
from tugline.cli.show import show_summary
from tugline.cli.wiring import make_trajectory
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.turn import Turn
from tugline.rollout.summary import summarise

pytestmark = pytest.mark.usefixtures("no_blocking")

END = Ended(SessionKey("ses_a", "grp", "task", 0), Outcome.COMPLETED, 1.0)
LOOK = {"name": "bash", "arguments": '{"command": "ls"}'}


def agent(prompt: str) -> dict[str, Any]:
    return {"calls": [{"name": "agent", "arguments": f'{{"prompt": "{prompt}"}}'}]}


async def ask(kit: Kit, request: dict[str, Any], **headers: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, reply = await kit.post(request, key=kit.access["ses_a"].secret, **named)
    assert status == 200, reply
    return dict(reply["choices"][0]["message"])


def result(message: dict[str, Any], text: str = "ok") -> list[dict[str, Any]]:
    return [message, *({"role": "tool", "tool_call_id": c["id"], "content": text} for c in message["tool_calls"])]


async def ended(kit: Kit) -> list[Turn]:
    await kit.gateway.close("ses_a")
    return list(kit.store.iter_turns("ses_a"))


def seen(turns: list[Turn]) -> list[tuple[str, dict[str, int]]]:
    """Role and links of each turn, turns by their place."""
    at = {turn.turn_id: n for n, turn in enumerate(turns)}
    return [(turn.role, {name: at[turn_id] for name, turn_id in turn.links}) for turn in turns]


def reasons(kit: Kit) -> list[str]:
    return [c.root_reason for c in kit.store.iter_calls("ses_a") if c.root_reason]


async def test_sub_agents_between_their_parents_calls(tmp_path: Path) -> None:
    script: list[object] = [
        agent("Read every file."), {"calls": [LOOK]}, agent("Read the first file."), {"text": "it is empty"},
        {"text": "nothing in them"}, {"text": "all done"},
    ]  # fmt: skip
    main = {"x_session_id": "m", "user_agent": "opencode/1"}
    first = main | {"x_session_id": "a", "x_parent_session_id": "m"}
    below = main | {"x_session_id": "b", "x_parent_session_id": "a"}
    async with gateway(tmp_path, script) as kit:
        await kit.session()
        task = [user("Find out what is here.")]
        task += result(await ask(kit, body(*task), **main), "started")
        task += result(await ask(kit, body(*task), **main))
        one = [user("Read every file.")]
        one += result(await ask(kit, body(*one), **first), "started")
        await ask(kit, body(user("Read the first file.")), **below)
        await ask(kit, body(*one, user("It came to nothing.")), **first)
        await ask(kit, body(*task), **main)
        turns = await ended(kit)
        assert seen(turns) == [
            ("main", {}), ("main", {}), ("subagent", {"spawned_by": 0}), ("subagent", {"spawned_by": 2}),
            ("subagent", {}), ("main", {}),
        ]  # fmt: skip
        assert [t.thread for t in turns] == ["m", "m", "a", "b", "a", "m"]
        assert reasons(kit) == ["root_first", "root_subagent", "root_subagent"]
        rows = make_trajectory(
            END,
            turns,
            list(kit.store.iter_calls("ses_a")),
        ).traces
        by_kind = {(row.kind, len(row.spans)): row for row in rows}
        assert set(by_kind) == {("main", 3), ("subagent", 2), ("subagent", 1)}
        assert by_kind["subagent", 2].links == (("spawned_by", by_kind["main", 3].trace_id),)
        assert by_kind["subagent", 1].links == (("spawned_by", by_kind["subagent", 2].trace_id),)


async def test_nested_sub_agents_with_identical_bodies_and_no_headers(tmp_path: Path) -> None:
    again = agent("Read every file in here.")
    async with gateway(tmp_path, [again, again, again, {"text": "empty"}, {"text": "once more"}]) as kit:
        await kit.session()
        await ask(kit, body(user("Find out what is here.")))
        for _ in range(4):
            await ask(kit, body(user("Read every file in here."), tools=tools("agent")))
        turns = await ended(kit)
        spawned = [("subagent", {"spawned_by": n}) for n in range(3)]
        assert seen(turns)[:4] == [("main", {}), *spawned]
        assert seen(turns)[4][1]["resample_of"] == 3, "no call is left that it could answer: asked again"
        assert all(call.outcome == "answered" for call in kit.store.iter_calls("ses_a"))


async def test_a_title_a_compaction_and_what_follows(tmp_path: Path) -> None:
    summary = "Two files were read. The third is left."
    script: list[object] = [
        {"calls": [LOOK]},
        {"text": "Files"},
        {"text": summary},
        {"text": "read it"},
        {"text": "ok"},
    ]
    async with gateway(tmp_path, script) as kit:
        await kit.session()
        task = [user("Read the three files.")]
        task += result(await ask(kit, body(*task)))
        bare = {"model": "any"}
        await ask(kit, bare | {"messages": [user("A title for: Read the three files.")]})
        await ask(kit, bare | {"messages": [*task, user("Summarise the conversation.")]})
        short = [user(f"Before:\n{summary}\nGo on.")]
        message = await ask(kit, body(*short))
        await ask(kit, body(*short, message, user("Is it read?")))
        turns = await ended(kit)
        assert seen(turns) == [
            ("main", {}), ("auxiliary", {"aux_of": 0}), ("compaction", {"compaction_of": 0}),
            ("main", {"compaction_of": 2}), ("main", {}),
        ]  # fmt: skip
        assert reasons(kit) == ["root_first", "root_aux", "root_compaction", "root_compacted"]
        made = make_trajectory(
            END,
            turns,
            list(kit.store.iter_calls("ses_a")),
        )
        assert [row.kind for row in made.traces] == ["main", "compaction", "main"]
        assert made.untrained == {"auxiliary": len(turns[1].sampled) // 4}
        await kit.store.put_session(END)
        told = summarise(kit.store)
        assert told.as_json()["roles"] == {"auxiliary": 1, "compaction": 1, "main": 3}
        assert told.as_json()["links"] == {"aux_of": 1, "compaction_of": 2}
        assert told.as_json()["roots"] == {f"root_{r}": 1 for r in ("aux", "compacted", "compaction", "first")}
        console = Console(width=100, record=True, file=io.StringIO())
        show_summary(console, told)
        shown = console.export_text()
        assert "main 3" in shown and "compaction 1" in shown and "root_compacted" in shown


async def test_a_delivered_request_asked_again_is_a_resample(tmp_path: Path) -> None:
    async with gateway(tmp_path, [{"text": "one"}, {"text": "two"}, {"text": "three"}]) as kit:
        await kit.session()
        for _ in range(3):
            await ask(kit, body(user("Say a number.")))
        assert seen(await ended(kit)) == [("main", {}), ("main", {"resample_of": 0}), ("main", {"resample_of": 1})]


async def test_roles_threads_and_links_survive_a_gateway(tmp_path: Path) -> None:
    """A session goes on in a new process: its sub-agents still find their parent."""
    async with gateway(tmp_path, [agent("Read every file."), {"text": "empty"}]) as kit:
        await kit.session()
        main = {"x_session_id": "m", "user_agent": "opencode/1"}
        await ask(kit, body(user("Find out.")), **main)
        await kit.session()  # opened again: restored from the store
        await ask(kit, body(user("Other words.")), **main | {"x_session_id": "a", "x_parent_session_id": "m"})
        assert seen(await ended(kit)) == [("main", {}), ("subagent", {"spawned_by": 0})]
