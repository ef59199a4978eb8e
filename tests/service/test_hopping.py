"""One conversation whose every call comes through another API is still one row."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from property.views_wire import WRITERS, Call, Result, Said, Talk, Tool, User
from service.wire_kit import DIALECT_NAMES, NONCANONICAL, Wire, assert_exact, wire
from tugline.core.items import Assistant
from tugline.dialects import DIALECTS
from tugline.testing.replay_said import said

TOOLS = (
    Tool(
        "bash",
        "Run a command.",
        {"type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "number"}}},
    ),
    Tool("look", None, {"type": "object"}),
)
SCRIPT: list[Any] = [
    NONCANONICAL,
    {
        "reasoning": "Think, \u2028 then act. ", "text": "  Look.\n\n",
        "calls": [{"name": "bash", "arguments": '{"command" :  "ls \\u00e9"}'}],
    },
    {"calls": [{"name": "bash", "arguments": '{"n": 1.50, "command":"a"}'}, {"name": "look", "arguments": "{}"}]},
    {"text": " \U0001f469\u200d\U0001f4bb \u6f22 \n"},
    {"reasoning": "Hm.", "text": "More"},
    {"text": "cut in the mid", "finish": "length"},
    {"reasoning": "r", "calls": [{"name": "bash", "arguments": '{"command":"z", "n": 12345678901234567890}'}]},
    {"text": "Almost."},
    {"text": "Done."},
]  # fmt: skip


def kept(turn: Assistant) -> Said:
    return Said(turn.text, turn.reasoning, tuple(Call(c.id, c.name, c.arguments) for c in turn.calls))


async def call(run: Wire, http: aiohttp.ClientSession, secret_url: str, name: str, talk: Talk) -> Assistant:
    dialect = next(d for d in DIALECTS if d.name == name)
    route = next(r for r in dialect.routes if r.kind == "generate" and "stream" not in r.path)
    path = route.path.replace("{model}", "policy")
    headers = {"content-type": "application/json"}
    async with http.post(secret_url + path, data=WRITERS[name].write(talk), headers=headers) as response:
        body = await response.json()
        assert response.status == 200, (name, body)
        turn = said(name, body)
        assert turn is not None
        return turn


def answered(talk: Talk, turn: Said, rng: random.Random) -> Talk:
    results = [Result(c, f"result of {c.name}\n", 0 if c.name == "look" else None) for c in turn.calls]
    rng.shuffle(results)
    after: tuple[Any, ...] = (tuple(results),) if results else (User(("Go on. ", 1)),)
    return replace(talk, turns=(*talk.turns, turn, *after))


@pytest.mark.parametrize("seed", range(3))
async def test_every_call_through_another_api(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    order = rng.sample(DIALECT_NAMES, len(DIALECT_NAMES))
    async with wire(tmp_path, SCRIPT) as run, aiohttp.ClientSession() as http:
        access = await run.session()
        talk = Talk(("Be brief. ",), TOOLS, (User(("Begin ", 0, " here.")),))
        for name, _ in zip(itertools.cycle(order), SCRIPT[1:], strict=False):
            turn = await call(run, http, access.secret_url, name, talk)
            talk = answered(talk, kept(turn), rng)
        turns = run.turns()
        assert [t.parent for t in turns] == [None, *(t.turn_id for t in turns[:-1])]
        assert [c.dialect for c in run.store.iter_calls("ses_a")] == [order[i % len(order)] for i in range(len(turns))]
        assert not {"edit_honoured", "foreign_assistant"} & {d for t in turns for d in t.drift}
        assert_exact(await run.prove(), calls=len(SCRIPT) - 1)
