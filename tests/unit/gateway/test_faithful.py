"""`history_reasoning = "template"`: a prompt keeps sampled reasoning only where the template would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tugline.core.contracts import Policy
from tugline.core.items import Assistant, Item, Request, System, ToolCall, ToolResult, UserText
from tugline.core.turn import Sampling, Turn
from tugline.forest.forest import Forest
from tugline.forest.rules import rules_of
from tugline.gateway.faithful import strips_reasoning
from tugline.gateway.prompt import Deps, Prompt, make_prompt
from tugline.tokens.model import ChatModel
from unit.tokens.chat_kit import CHATML, HEAD, STRIPPING, model
from unit.trajectory.world import Said, World, ask

START = (System("be brief"), UserText("task"))
TEMPLATE = rules_of(Policy(Sampling(), history_reasoning="template"))
CALLING = Assistant(None, "which?", (ToolCall("c_0", "run", '{"cmd": "ls"}'),))


def stripped(world: World, items: tuple[Item, ...], chat: ChatModel, *, keep: bool = False) -> bool:
    request = Request("policy", HEAD, items)
    attached = world.forest.attach(request, replace(TEMPLATE, template=not keep))
    assert attached.parent is not None
    return strips_reasoning(world.forest, request, attached, chat)


def prompted(world: World, items: tuple[Item, ...], chat: ChatModel) -> Prompt:
    request = Request("policy", HEAD, items)
    nothing: Any = None
    deps = Deps(nothing, chat, nothing, nothing, nothing, nothing)
    return make_prompt(world.forest, request, world.forest.attach(request, TEMPLATE), deps)


def test_the_prompt_is_the_templates_own_and_a_root() -> None:
    world, chat = World(), model(STRIPPING)
    turn = call(world, START, Assistant("done", "because"))
    items = world.after(turn, UserText("more"))
    made = prompted(world, items, chat)
    assert (made.keep, made.attached.parent, made.root_reason) == (0, None, "root_reasoning_stripped")
    assert made.ids == chat.render(HEAD, items).ids
    assert "because" not in chat.decode(made.ids)
    cycle = call(world, START, CALLING)
    kept = prompted(world, world.after(cycle, ToolResult("c_0", "ok")), chat)
    assert (kept.attached.parent, kept.root_reason) == (cycle, None)


def call(world: World, items: tuple[Item, ...], said: Assistant) -> Turn:
    return world.call(items, Said(said), HEAD)


@pytest.mark.parametrize(("template", "strips"), [(STRIPPING, True), (CHATML, False)])
def test_a_user_turn_behind_reasoning(template: str, strips: bool) -> None:
    world, chat = World(), model(template)
    turn = call(world, START, Assistant("done", "because"))
    items = world.after(turn, UserText("more"))
    assert stripped(world, items, chat) is strips
    assert not stripped(world, items, chat, keep=True)


def test_a_tool_cycle_keeps_its_reasoning_and_a_user_turn_ends_it() -> None:
    world, chat = World(), model(STRIPPING)
    turn = call(world, START, CALLING)
    assert not stripped(world, world.after(turn, ToolResult("c_0", "ok")), chat)
    assert stripped(world, world.after(turn, ToolResult("c_0", "ok"), UserText("hurry")), chat)


def test_without_reasoning_nothing_is_lost() -> None:
    world, chat = World(), model(STRIPPING)
    turn = call(world, START, Assistant("done"))
    assert not stripped(world, world.after(turn, UserText("more")), chat)


def test_a_root_rendered_by_the_template_is_not_rendered_again_for_what_it_left_out() -> None:
    world, chat = World(), model(STRIPPING)
    first = call(world, START, Assistant("done", "because"))
    items = world.after(first, UserText("more"))
    request = Request("policy", HEAD, items)
    rooted = world.forest.attach(request, TEMPLATE).as_root(request, "root_reasoning_stripped")
    second = world.commit(ask(items, HEAD), world.sample(request, Said(Assistant("fine")), rooted))
    assert (second.parent, len(world.forest.children(None))) == (None, 2)
    assert not stripped(world, world.after(second, UserText("again")), chat)
    third = world.call(world.after(second, UserText("again")), Said(Assistant("ok", "hm")), HEAD)
    assert third.parent == second.turn_id
    assert stripped(world, world.after(third, UserText("last")), chat)


def test_a_restored_session_decides_alike() -> None:
    world, chat = World(), model(STRIPPING)
    turn = call(world, START, Assistant("done", "because"))
    items = world.after(turn, UserText("more"))
    world.forest = Forest.restore("ses", b"template", world.turns)
    assert stripped(world, items, chat)
