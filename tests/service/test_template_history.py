"""`history_reasoning = "template"` through the whole gateway: prompts as at deployment, and what they cost in rows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

from service.raw_client import PATHS, TOOL
from service.wire_kit import wire
from tugline.cli.wiring import PILOT, chat_model
from tugline.core.columns import count
from tugline.rollout.summary import summarise

BASH = {"name": "bash", "arguments": '{"command" :  "ls"}'}
SCRIPT: list[object] = [
    {"settings": {"noncanonical": 0.3, "seed": 2}},
    {"reasoning": "thought one", "calls": [BASH]},
    {"reasoning": "thought two", "text": "First answer."},
    {"reasoning": "thought three", "calls": [BASH]},
    {"reasoning": "thought four", "text": "Second answer."},
]


def stripping(tmp_path: Path) -> Path:
    """The shipped model with a template that drops reasoning once a user has spoken again, as many do."""
    made = tmp_path / "stripping"
    shutil.copytree(PILOT, made, ignore=shutil.ignore_patterns("*.safetensors"))
    file = made / "chat_template.jinja"
    text = file.read_text()
    assert text.count("{%- if thought -%}") == 1 and text.count("{%- for message in messages -%}") == 1
    text = text.replace("{%- if thought -%}", "{%- if thought and loop.index0 > ns.last -%}").replace(
        "{%- for message in messages -%}",
        "{%- set ns = namespace(last=-1) -%}{%- for message in messages -%}{%- if message.role == 'user' -%}"
        "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}{%- for message in messages -%}",
    )
    file.write_text(text)
    return made


class Chat:
    """Keeps a conversation as a client of the API does: replies go back as they came."""

    path = PATHS["chat"]

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def body(self) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": "bash", "parameters": TOOL}}]
        return {"model": "m", "messages": self.messages, "tools": tools}

    def user(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def heard(self, reply: Any) -> None:
        said = reply["choices"][0]["message"]
        self.messages.append(said)
        for call in said.get("tool_calls") or []:
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": "a.txt"})


class Anthropic(Chat):
    path = PATHS["anthropic"]

    def body(self) -> dict[str, Any]:
        tools = [{"name": "bash", "input_schema": TOOL}]
        return {"model": "m", "max_tokens": 900, "messages": self.messages, "tools": tools}

    def heard(self, reply: Any) -> None:
        self.messages.append({"role": "assistant", "content": reply["content"]})
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "a.txt"}
            for block in reply["content"]
            if block["type"] == "tool_use"
        ]
        if results:
            self.messages.append({"role": "user", "content": results})


@pytest.mark.parametrize("api", [Chat, Anthropic])
@pytest.mark.parametrize("mode", ["template", "keep"])
async def test_a_cycle_goes_on_and_a_user_turn_is_rendered_by_the_template(
    tmp_path: Path, api: type[Chat], mode: Literal["template", "keep"]
) -> None:
    folder = stripping(tmp_path)
    async with wire(tmp_path, SCRIPT, model_files=folder) as kit, aiohttp.ClientSession() as http:
        access = await kit.session(history_reasoning=mode)
        agent = api()
        for n in range(4):
            if n % 2 == 0:
                agent.user(f"task {n}")
            async with http.post(
                kit.gateway.url + agent.path, json=agent.body(), headers={"authorization": f"Bearer {access.secret}"}
            ) as response:
                text = await response.text()
                assert response.status == 200, text
                agent.heard(json.loads(text))
        turns = kit.turns()
        ids = [t.turn_id for t in turns]
        forest = kit.gateway._sessions["ses_a"].lanes[""].forest
        prompts = [forest.prompt(turn_id) for turn_id in ids]
        roots = [c.root_reason for c in kit.store.iter_calls("ses_a")]
        proof = await kit.prove()
        assert proof.findings == []
        assert proof.traces_exact == proof.traces_continuous == proof.traces_total
        assert proof.trained_tokens == proof.sampled_tokens == sum(count(t.sampled) for t in turns)
        model = chat_model(folder)
        shown = [[f"thought {w}" in model.decode(p) for w in ("one", "two", "three")] for p in prompts]
        report = summarise(kit.store).as_json()
        if mode == "keep":
            assert [t.parent for t in turns] == [None, *ids[:3]]
            assert shown == [[False] * 3, [True, False, False], [True, True, False], [True, True, True]]
            assert (report["rows_per_session"], roots) == (1.0, ["root_first", None, None, None])
            return
        assert [t.parent for t in turns] == [None, ids[0], None, ids[2]]
        assert roots == ["root_first", None, "root_reasoning_stripped", None]
        assert shown == [[False] * 3, [True, False, False], [False] * 3, [False, False, True]]
        assert (report["rows_per_session"], report["roots"]) == (
            2.0,
            {"root_first": 1, "root_reasoning_stripped": 1},
        )
        assert prompts[2] == model.render(turns[2].head, turns[2].items).ids
        assert turns[2].items[0] == turns[0].items[0]
