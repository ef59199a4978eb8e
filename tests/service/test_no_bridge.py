"""A template that cannot be bridged: every call is exact, is rendered whole, and says so on its trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from property.views_wire import Said, Talk, User
from service.shaped_model import shaped
from service.test_hopping import TOOLS, call, kept
from service.wire_kit import wire
from tugline.cli.wiring import chat_model
from tugline.core.columns import count
from tugline.rollout.audit import audit_run
from tugline.rollout.drift_report import drift_report
from tugline.rollout.explain import explain

BARE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""No control token anywhere: where a turn ends cannot be told."""
SCRIPT: list[Any] = [{"settings": {"noncanonical": 0.5, "seed": 2}}, *({"text": f"answer {n}"} for n in range(3))]


async def test_each_call_is_rendered_whole_and_counted(tmp_path: Path) -> None:
    folder = shaped(tmp_path, template=BARE, parser="plain")
    async with wire(tmp_path, SCRIPT, model_files=folder) as run, aiohttp.ClientSession() as http:
        url = (await run.session()).secret_url
        talk = Talk((), TOOLS, (User(("go",)),))
        said: list[Said] = []
        for name in ("chat", "anthropic", "gemini"):
            said.append(kept(await call(run, http, url, name, talk)))
            talk = replace(talk, turns=(*talk.turns, said[-1], User(("more",))))
        turns = run.turns()
        assert [t.text for t in said] == ["answer 0", "answer 1", "answer 2"]
        assert [(t.parent, t.keep) for t in turns] == [(None, 0)] * 3
        assert [t.level for t in turns] == ["L4", "L2", "L2"]
        assert ["no_bridge:probe_P1" in t.drift for t in turns] == [False, True, True]
        assert all("tools_unseen" in t.drift for t in turns)
        proof = await run.prove()
        assert (proof.findings, proof.calls_exact) == ([], 3)
        assert proof.sampled_tokens == sum(count(t.sampled) for t in turns)
        seen = drift_report(run.store)
        assert seen.roots["no_bridge:probe_P1"].times == 2
        told = explain(run.store, turns[2].turn_id, lambda name: chat_model(folder))
        assert told.prompt is not None and told.prompt.template is True
        audit = audit_run(run.store, lambda name: chat_model(folder))
        assert audit.ok and audit.same == audit.prompts
