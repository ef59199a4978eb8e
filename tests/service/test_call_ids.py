"""Ids that a model gives its calls: agents get legal ones, the model reads its own again, whatever happens between."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from property.views_wire import Result, Said, Talk, User
from service.shaped_model import KIMI, KIMI_TOKENS, shaped
from service.test_hopping import TOOLS, call, kept
from service.wire_kit import DIALECT_NAMES, Wire, assert_exact, wire
from tugline.cli.wiring import chat_model
from tugline.core.contracts import Policy
from tugline.core.turn import Sampling
from tugline.dialects import DIALECTS
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.rollout.audit import audit_run

BASH, LOOK = {"name": "bash", "arguments": '{"command": "ls"}'}, {"name": "look", "arguments": "{}"}
SCRIPT: list[Any] = [
    {"settings": {"noncanonical": 0.3, "seed": 3}},
    {"reasoning": "hm", "text": "First.", "calls": [BASH, LOOK]},
    {"calls": [BASH]},
    {"calls": [LOOK, BASH], "text": "again"},
    {"text": "Done."},
]
LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,128}")


async def _converse(run: Wire, url: str, names: list[str], talk: Talk, seen: set[str]) -> Talk:
    """Turns with their results until the script's words end."""
    async with aiohttp.ClientSession() as http:
        for name in names:
            turn = await call(run, http, url, name, talk)
            ids = [c.id for c in turn.calls]
            assert all(LEGAL.fullmatch(i) for i in ids), ids
            assert not seen.intersection(ids) and len(set(ids)) == len(ids), "unique in the session"
            seen.update(ids)
            said = kept(turn)
            results = tuple(Result(c, f"out of {c.name}", None) for c in said.calls)
            talk = replace(talk, turns=(*talk.turns, said, results or User(("more",))))
    return talk


def _prompt(run: Wire, gateway: LocalGateway, model: Path) -> str:
    forest = gateway._sessions["ses_a"].lanes[""].forest
    return chat_model(model).decode(forest.full(run.turns()[-1].turn_id))


@pytest.mark.parametrize("order", [*([n] * 4 for n in DIALECT_NAMES), list(DIALECT_NAMES), list(DIALECT_NAMES[::-1])])
async def test_the_model_reads_its_own_ids(tmp_path: Path, order: list[str]) -> None:
    folder = shaped(tmp_path, template=KIMI, parser="kimi-k2", tokens=KIMI_TOKENS)
    async with wire(tmp_path, SCRIPT, model_files=folder) as run:
        url = (await run.session()).secret_url
        await _converse(run, url, order, Talk((), TOOLS, (User(("go",)),)), set())
        text = _prompt(run, run.gateway, folder)
        assert text.count("## Return of functions.bash:0\n") == 2 and "## Return of functions.look:1\n" in text
        assert "_m-" not in text
        # Other APIs spell arguments otherwise; nothing else differs.
        assert {d for t in run.turns() for d in t.drift} <= {"json_respell", "shape"}
        assert_exact(await run.prove(), 4)
        assert audit_run(run.store, lambda name: chat_model(folder)).ok


@pytest.mark.parametrize("name", DIALECT_NAMES)
async def test_a_gateway_that_opens_the_session_again_knows_them(tmp_path: Path, name: str) -> None:
    folder = shaped(tmp_path, template=KIMI, parser="kimi-k2", tokens=KIMI_TOKENS)
    async with wire(tmp_path, SCRIPT, model_files=folder) as run:
        seen: set[str] = set()
        url = (await run.session()).secret_url
        talk = await _converse(run, url, [name] * 2, Talk((), TOOLS, (User(("go",)),)), seen)
        again = LocalGateway(run.engine, chat_model(folder), run.store, DIALECTS, GatewayOptions())
        await again.start()
        try:
            url = (await again.open("ses_a", Policy(Sampling(max_tokens=400)))).secret_url
            await _converse(run, url, [name] * 2, talk, seen)
            text = _prompt(run, again, folder)
        finally:
            await again.stop()
        assert text.count("## Return of functions.bash:0\n") == 2 and "_m-" not in text
        assert [t.drift for t in run.turns()] == [()] * 4
        assert_exact(await run.prove(), 4)


async def test_a_whole_render_shows_them_too(tmp_path: Path) -> None:
    """An agent that rewrites a turn gets a branch: its history is rendered, with the ids that were sampled."""
    folder = shaped(tmp_path, template=KIMI, parser="kimi-k2", tokens=KIMI_TOKENS)
    async with wire(tmp_path, SCRIPT, model_files=folder) as run:
        url = (await run.session()).secret_url
        talk = await _converse(run, url, ["anthropic"], Talk((), TOOLS, (User(("go",)),)), set())
        said = talk.turns[1]
        assert isinstance(said, Said)
        other = replace(said, text="Other words.")
        changed = replace(talk, turns=(talk.turns[0], other, *talk.turns[2:]))
        async with aiohttp.ClientSession() as http:
            await call(run, http, url, "anthropic", changed)
        assert "edit_honoured" in run.turns()[-1].drift
        text = _prompt(run, run.gateway, folder)
        assert "Other words." in text and "<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>" in text
        assert "_m-" not in text
