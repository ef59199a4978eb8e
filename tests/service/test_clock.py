"""Templates that print the date: one instant per session, whatever the machine's clock does meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from property.views_wire import Talk, User
from service.shaped_model import shaped
from service.test_hopping import TOOLS, call, kept
from service.wire_kit import assert_exact, wire
from tugline.cli.wiring import chat_model
from tugline.core.contracts import Policy
from tugline.core.turn import Sampling
from tugline.dialects import DIALECTS
from tugline.gateway import session as session_module
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.rollout.audit import audit_run

EVE = 1767225599.0
"""2025-12-31 23:59:59 UTC."""
DATE = "{{- '<|im_start|>system\\nToday is ' + strftime_now('%A, %d %B %Y') + '<|im_end|>\\n' -}}"
TODAY = "Today is Wednesday, 31 December 2025<|im_end|>"
SCRIPT: list[Any] = [{"text": f"answer {n}"} for n in range(4)]


async def test_a_session_keeps_its_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shaped(tmp_path, before=DATE)
    now = [EVE]
    monkeypatch.setattr(session_module.time, "time", lambda: now[0])
    async with wire(tmp_path, SCRIPT, model_files=folder) as run, aiohttp.ClientSession() as http:
        url = (await run.session()).secret_url
        talk = Talk((), TOOLS, (User(("go",)),))
        for _ in range(2):
            talk = replace(talk, turns=(*talk.turns, kept(await call(run, http, url, "chat", talk)), User(("more",))))
            now[0] += 86400
        again = LocalGateway(run.engine, chat_model(folder), run.store, DIALECTS, GatewayOptions())
        await again.start()
        try:
            url = (await again.open("ses_a", Policy(Sampling(max_tokens=400)))).secret_url
            talk = replace(talk, turns=(*talk.turns, kept(await call(run, http, url, "chat", talk)), User(("more",))))
            # A conversation of its own in the same session: a whole render, days later.
            await call(run, http, url, "anthropic", Talk((), TOOLS, (User(("other",)),)))
            forest, model = again._sessions["ses_a"].lanes[""].forest, chat_model(folder)
            prompts = [model.decode(forest.prompt(t.turn_id)) for t in run.turns()]
        finally:
            await again.stop()
        assert all(TODAY in p and p.count("Today is") == 1 for p in prompts)
        assert [t.head.clock for t in run.turns()] == [int(EVE)] * 4
        assert [t.parent for t in run.turns()] == [None, run.turns()[0].turn_id, run.turns()[1].turn_id, None]
        assert_exact(await run.prove(), 4, sessions=2)
        audit = audit_run(run.store, lambda name: model)
        assert (audit.prompts, audit.same) == (2, 2), audit.as_json()


async def test_a_template_without_a_date_stores_no_instant(tmp_path: Path) -> None:
    async with wire(tmp_path, SCRIPT) as run, aiohttp.ClientSession() as http:
        url = (await run.session()).secret_url
        await call(run, http, url, "gemini", Talk((), TOOLS, (User(("go",)),)))
        assert [t.head.clock for t in run.turns()] == [0]
