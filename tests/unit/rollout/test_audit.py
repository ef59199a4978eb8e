"""A run's prompts beside the template's whole render: what was bridged well, what was not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tugline.core.columns import Ids, concat, count, ids, last, take
from tugline.core.items import Assistant, Item, System, ToolCall, ToolResult, UserText
from tugline.core.session import Queued, SessionKey, SessionState
from tugline.core.turn import Turn
from tugline.forest.forest import Forest
from tugline.rollout.audit import audit_run
from tugline.tokens.model import ChatModel
from unit.tokens.chat_kit import CHATML, HEAD, STRIPPING, model
from unit.trajectory.world import Said, World, ask

START = (System("be brief"), UserText("task"))
CALLING = Assistant(None, "which?", (ToolCall("c_0", "run", '{"cmd": "ls"}'),))


@dataclass
class Run:
    turns: list[Turn]

    def sessions(self) -> list[tuple[SessionState, float]]:
        return [(Queued(SessionKey("ses", "grp", "task", 0)), 0.0)]

    def iter_turns(self, session_id: str) -> list[Turn]:
        return self.turns


def served(chat: ChatModel, *steps: tuple[tuple[Item, ...], Assistant]) -> list[Turn]:
    """Turns with real ids: bridged prompts, canonical samples."""
    world = World()
    items: tuple[Item, ...] = ()
    for tail, reply in steps:
        items = (*items, *tail)
        request = ask(items, HEAD)
        at = world.forest.attach(request)
        if at.parent is None:
            keep, bridge = 0, chat.render(HEAD, items).ids
        else:
            full, history = world.forest.full(at.parent.turn_id), world.forest.history(at.parent.turn_id)
            made = chat.bridge(HEAD, history, at.tail, last_id=last(full), finish="stop", sampled=at.parent.sampled)
            keep, bridge = count(full) - made.drop, made.ids
        prompt = chat.render(HEAD, items).ids
        whole = chat.render(HEAD, (*items, reply)).ids
        rest = take(whole, len(_common(prompt, whole)) // 4)
        stop = next(n for n in range(count(rest)) if take(rest, n, n + 1) == ids([chat.stop_ids[0]]))
        turn = world.sample(request, Said(reply), at)
        sampled = take(rest, 0, stop + 1)
        turn = replace(turn, keep=keep, bridge=bridge, sampled=sampled, prompt_len=keep + count(bridge))
        world.commit(request, turn)
        items = (*items, reply)
    return world.turns


def _common(a: Ids, b: Ids) -> Ids:
    n = next((n for n in range(count(a)) if take(a, n, n + 1) != take(b, n, n + 1)), count(a))
    return take(a, 0, n)


STEPS = (
    (START, CALLING),
    ((ToolResult("c_0", "a.txt"),), Assistant("one file")),
    ((UserText("thanks"),), Assistant("bye")),
)


def test_bridged_prompts_of_an_appending_template_are_the_same() -> None:
    chat = model(CHATML)
    audit = audit_run(Run(served(chat, *STEPS)), lambda _: chat)
    assert (audit.ok, audit.prompts, audit.same, audit.kinds.total()) == (True, 1, 1, 0)


def test_a_damaged_bridge_is_hard_and_named() -> None:
    chat = model(CHATML)
    turns = served(chat, *STEPS)
    doubled = concat([turns[2].bridge, turns[2].bridge])
    turns[2] = replace(turns[2], bridge=doubled, prompt_len=turns[2].keep + count(doubled))
    audit = audit_run(Run(turns), lambda _: chat)
    assert not audit.ok
    assert audit.examples["special"].turn_id == turns[2].turn_id
    assert audit.examples["special"].deviation.position >= turns[2].keep
    assert audit.as_json()["ok"] is False


def test_kept_reasoning_is_expected_where_the_template_strips_it() -> None:
    chat = model(STRIPPING)
    turns = served(chat, (START, Assistant("done", "because")), ((UserText("more"),), Assistant("fine", "hm")))
    assert Forest.restore("ses", b"", turns).leaves() == (turns[1].turn_id,)
    audit = audit_run(Run(turns), lambda _: chat)
    assert audit.ok
    assert set(audit.kinds) <= {"reasoning_stripped", "assistant_text"}
    assert audit.same == 0


@pytest.mark.parametrize(("most", "prompts"), [(200, 7), (3, 3), (1, 1)])
def test_large_runs_are_sampled(most: int, prompts: int) -> None:
    chat = model(CHATML)
    one = served(chat, STEPS[0])[0]
    turns = [replace(one, turn_id=f"turn_{n}", seq=n) for n in range(7)]
    assert audit_run(Run(turns), lambda _: chat, most).prompts == prompts
