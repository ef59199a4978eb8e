"""Sessions of agents that people run themselves, over a real store and a gate in memory."""

from __future__ import annotations

import asyncio
import math
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tugline.cli.wiring import make_trajectory
from tugline.core.contracts import Access, EditPolicy, ModelRoute, Policy, SessionCalls
from tugline.core.errors import BadRequest, Conflict, NotFound, Overloaded, StoreError
from tugline.core.ident import new_secret
from tugline.core.session import Ended, Outcome, Running, SessionKey, SessionState
from tugline.core.turn import Sampling
from tugline.rollout.manual import ManualSessions
from tugline.rollout.options import Ending, SessionOptions
from tugline.store import RunStore
from unit.store.samples import Builder, call_for


class Gate:
    """A gate whose agents commit `turns` turns the moment their session opens."""

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.turns = 2
        self.elsewhere = 0  # calls that another engine answered
        self.policies: dict[str, Policy] = {}
        self.secrets: dict[str, str] = {}
        self.closed: Counter[str] = Counter()
        self.engine_failures = 0
        self.hold: asyncio.Event | None = None
        self.fail: Exception | None = None

    async def open(self, session_id: str, policy: Policy) -> Access:
        if self.fail:
            raise self.fail
        self.policies[session_id] = policy
        self.secrets[session_id] = secret = new_secret()
        for turn in Builder(session_id).chain(self.turns):
            await self.store.commit(call_for(turn), turn)
        return Access(session_id, secret, "http://127.0.0.1:9", f"http://127.0.0.1:9/s/{secret}")

    async def serve(self, session_id: str, listener: socket.socket) -> Callable[[], Awaitable[None]]:
        raise NotImplementedError

    async def close(self, session_id: str) -> SessionCalls:
        self.closed[session_id] += 1
        if self.hold:
            await self.hold.wait()
        await self.store.seal(session_id)
        error = "EngineError: gone" if self.engine_failures else None
        calls = {"answered": self.turns + self.elsewhere}
        return SessionCalls(calls, self.turns, 4 * self.turns, self.engine_failures, error)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RunStore]:
    async with RunStore.create(tmp_path / "run", "") as made:
        yield made


@pytest.fixture
def gate(store: RunStore) -> Gate:
    return Gate(store)


def sessions(gate: Gate, **more: Any) -> ManualSessions:
    build = lambda state, turns, calls: make_trajectory(state, list(turns), list(calls))  # noqa: E731
    return ManualSessions(gate, gate.store, build, Policy(Sampling(1.0, 1.0, 0, 100), max_turns=50), **more)


# -------------------------------------------------------------------------------------------------------- opening


async def test_an_opened_session_tells_everything_an_agent_needs_and_its_secret_once(gate: Gate) -> None:
    manual = sessions(gate)
    made = await manual.open(SessionOptions(name="try 1", group="g", task="t", metadata={"seed": [1, None]}))
    assert made.key == gate.secrets[made.session] and made.key not in made.session
    assert (made.group, made.task, made.index) == ("g", "t", 0)
    assert made.openai == "http://127.0.0.1:9/v1" and made.anthropic == made.gemini == "http://127.0.0.1:9"
    assert made.env["OPENAI_API_KEY"] == made.env["ANTHROPIC_API_KEY"] == made.env["GEMINI_API_KEY"] == made.key
    report = await manual.show(made.session)
    assert report.view.state == "running" and report.view.metadata == {"seed": [1, None]}
    assert report.usage.turns == 2 and report.usage.calls == {"answered": 2}
    await manual.end(made.session, Ending(1.0))
    for file in gate.store.path.rglob("*"):
        assert not file.is_file() or made.key.encode() not in file.read_bytes(), file


async def test_indices_of_a_group_go_on_over_restarts_and_its_task_is_one(gate: Gate) -> None:
    manual = sessions(gate)
    made = await asyncio.gather(*(manual.open(SessionOptions(group="g", task="t")) for _ in range(8)))
    assert sorted(m.index for m in made) == list(range(8))
    assert len({m.session for m in made}) == len({m.key for m in made}) == 8
    alone = [await manual.open() for _ in range(2)]
    assert alone[0].group != alone[1].group and {m.index for m in alone} == {0} and alone[0].task == "manual"
    with pytest.raises(Conflict, match="of task 't'"):
        await manual.open(SessionOptions(group="g", task="other"))
    again = await sessions(gate).open(SessionOptions(group="g"))
    assert (again.index, again.task) == (8, "t")


async def test_options_become_the_sessions_policy(gate: Gate) -> None:
    manual = sessions(gate, engines={"teacher"})
    options = SessionOptions(
        temperature=0, top_p=0.5, top_k=7, max_tokens=9, max_turns=3, max_tokens_per_session=40,
        engine="teacher", media="refuse", constraints="ignore", streaming="live", history_reasoning="template",
        edits={"text_changed": "retain", "train_partial": True},
    )  # fmt: skip
    made = await manual.open(options)
    assert gate.policies[made.session] == Policy(
        Sampling(0, 0.5, 7, 9), 3, 40, media="refuse", constraints="ignore", routes=(ModelRoute("*", "teacher"),),
        streaming="live", history_reasoning="template", edits=EditPolicy(text_changed="retain", train_partial=True),
    )  # fmt: skip
    routes = (ModelRoute("gpt-*", "teacher"),)
    routed = await manual.open(SessionOptions(routes=routes))
    assert gate.policies[routed.session].routes == routes
    plain = await manual.open()
    assert gate.policies[plain.session] == Policy(Sampling(1.0, 1.0, 0, 100), max_turns=50)
    shown = (await manual.show(made.session)).options
    assert (shown["engine"], shown["edits"]) == ("teacher", {"text_changed": "retain", "train_partial": True})
    assert "edits" not in (await manual.show(plain.session)).options


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"group": "a\nb"}, "group"),
        ({"task": "\ud800"}, "task"),
        ({"task": "   "}, "task"),
        ({"task": 7}, "task"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_turns": 0}, "max_turns"),
        ({"max_tokens_per_session": 0}, "max_tokens_per_session"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": math.inf}, "ttl"),
        ({"engine": "nobody"}, "engine"),
        ({"routes": (ModelRoute("x", "nobody"),)}, "routes[0].engine"),
        ({"routes": (ModelRoute("", "teacher"),)}, "routes[0].pattern"),
        ({"routes": (ModelRoute("x", "teacher"),), "engine": "teacher"}, "engine"),
        ({"media": "show"}, "media"),
        ({"constraints": "keep"}, "constraints"),
        ({"streaming": "never"}, "streaming"),
        ({"history_reasoning": "honour"}, "history_reasoning"),
        ({"edits": {"call_added": "retain"}}, "edits.call_added"),
        ({"edits": {"text_changed": "keep"}}, "edits.text_changed"),
        ({"edits": {"text_changed": True}}, "edits.text_changed"),
        ({"edits": {"train_partial": "retain"}}, "edits.train_partial"),
        ({"edits": ["text_changed"]}, "edits"),
        ({"metadata": {"x": "y" * 20_000}}, "metadata"),
        ({"metadata": {"x": object()}}, "metadata"),
        ({"metadata": [1]}, "metadata"),
    ],
)
async def test_a_wrong_option_is_named_and_opens_nothing(gate: Gate, options: dict[str, Any], path: str) -> None:
    manual = sessions(gate, engines={"teacher"})
    with pytest.raises(BadRequest) as refused:
        await manual.open(SessionOptions(**options))
    assert refused.value.path == path
    assert manual.open_count == 0 and gate.store.page(9) == [] and not gate.policies


async def test_a_gate_that_refuses_leaves_a_named_end(gate: Gate) -> None:
    gate.fail = StoreError("no room")
    manual = sessions(gate)
    with pytest.raises(StoreError):
        await manual.open()
    ((state, _),) = gate.store.page(9)
    assert isinstance(state, Ended) and state.outcome is Outcome.BOOT_FAILED and manual.open_count == 0


# --------------------------------------------------------------------------------------------------------- ending


async def test_rows_are_durable_before_the_end_and_carry_the_reward(gate: Gate) -> None:
    seen: list[tuple[str, bool]] = []

    def on_state(state: SessionState) -> None:
        rows = gate.store.trajectory(state.key.session_id)
        seen.append((type(state).__name__, rows is not None))

    manual = sessions(gate, on_state=on_state)
    made = await manual.open()
    with pytest.raises(Conflict) as refused:
        await manual.trajectory(made.session)
    assert refused.value.detail_code == "session_open"
    view = await manual.end(made.session, Ending(0.5, {"tests": 1, "style": 0.0}))
    assert (view.state, view.outcome, view.reward, view.parts) == ("ended", "completed", 0.5, {"tests": 1, "style": 0})
    rows = await manual.trajectory(made.session)
    assert rows.reward == 0.5 and rows.traces and sum(rows.traces[0].loss_mask) > 0
    assert seen == [("Running", False), ("Ended", True)]
    assert manual.open_count == 0


async def test_the_same_end_is_nothing_and_another_is_refused(gate: Gate) -> None:
    manual = sessions(gate)
    made = await manual.open()
    first = await manual.end(made.session, Ending(1.0, reason="done"))
    assert await manual.end(made.session, Ending(1, reason="in other words")) == first
    for other in (Ending(0.0), Ending(), Ending(1.0, {"x": 1.0}), Ending(1.0, outcome=Outcome.AGENT_FAILED)):
        with pytest.raises(Conflict, match="ended as completed with reward 1"):
            await manual.end(made.session, other)
    assert await sessions(gate).end(made.session, Ending(1.0)) == first  # another process, the same answer
    assert gate.closed[made.session] == 1


async def test_two_ends_at_once_have_one_result(gate: Gate) -> None:
    gate.hold = asyncio.Event()
    manual = sessions(gate)
    made = await manual.open()
    ends = [asyncio.ensure_future(manual.end(made.session, Ending(reward))) for reward in (1.0, 1.0, 0.0)]
    while not gate.closed[made.session]:
        await asyncio.sleep(0)
    gate.hold.set()
    same, again, other = await asyncio.gather(*ends, return_exceptions=True)
    assert same == again and isinstance(other, Conflict)
    assert gate.closed[made.session] == 1
    assert (await manual.show(made.session)).view.reward == 1.0


async def test_a_cancelled_request_does_not_undo_an_end(gate: Gate) -> None:
    gate.hold = asyncio.Event()
    ended = asyncio.Event()
    manual = sessions(gate, on_state=lambda state: ended.set() if isinstance(state, Ended) else None)
    made = await manual.open()
    asking = asyncio.ensure_future(manual.end(made.session, Ending(1.0)))
    while not gate.closed[made.session]:
        await asyncio.sleep(0)
    asking.cancel()
    gate.hold.set()
    await ended.wait()
    assert (await manual.end(made.session, Ending(1.0))).reward == 1.0


async def test_an_end_that_cannot_be_stored_can_be_said_again(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    manual = sessions(gate)
    made = await manual.open()

    async def full(_trajectory: object) -> None:
        raise StoreError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(gate.store, "put_trajectory", full)
        with pytest.raises(StoreError):
            await manual.end(made.session, Ending(1.0))
    assert (await manual.show(made.session)).view.state == "running"
    view = await manual.end(made.session, Ending(0.25))
    assert view.reward == 0.25 and gate.closed[made.session] == 1


@pytest.mark.parametrize(
    ("ending", "path"),
    [
        (Ending(math.nan), "reward"),
        (Ending(math.inf), "reward"),
        (Ending(10**400), "reward"),
        (Ending(True), "reward"),
        (Ending("1"), "reward"),  # type: ignore[arg-type]
        (Ending(1.0, {"x": math.nan}), "parts.x"),
        (Ending(1.0, {"x": None}), "parts.x"),  # type: ignore[dict-item]
        (Ending(1.0, {"": 1.0}), "parts"),
        (Ending(1.0, dict.fromkeys(map(str, range(101)), 0.0)), "parts"),
        (Ending(1.0, outcome="won"), "outcome"),  # type: ignore[arg-type]
        (Ending(1.0, outcome=Outcome.CANCELLED), "reward"),
        (Ending(None, {"x": 1.0}, Outcome.NODE_LOST), "parts"),
        (Ending(reason="two\nlines"), "reason"),
    ],
)
async def test_a_wrong_ending_is_named_and_ends_nothing(gate: Gate, ending: Ending, path: str) -> None:
    manual = sessions(gate)
    made = await manual.open()
    with pytest.raises(BadRequest) as refused:
        await manual.end(made.session, ending)
    assert refused.value.path == path
    assert (await manual.show(made.session)).view.state == "running"


async def test_a_session_without_a_turn_is_the_engines_failure_whatever_its_reward(gate: Gate) -> None:
    gate.turns = 0
    manual = sessions(gate)
    made = await manual.open()
    view = await manual.end(made.session, Ending(1.0))
    assert (view.outcome, view.reward) == ("engine_failed", None) and "no model turn" in (view.reason or "")
    assert await manual.end(made.session, Ending(1.0)) == view
    with pytest.raises(Conflict):
        await manual.end(made.session, Ending(0.0))


async def test_a_session_of_another_engine_keeps_its_reward(gate: Gate) -> None:
    gate.turns, gate.elsewhere = 0, 2
    manual = sessions(gate, engines={"teacher"})
    made = await manual.open(SessionOptions(engine="teacher"))
    view = await manual.end(made.session, Ending(1.0))
    assert (view.outcome, view.reward) == ("completed", 1.0)


async def test_an_agent_that_failed_with_its_engine_does_not_train(gate: Gate) -> None:
    gate.engine_failures = 1
    manual = sessions(gate)
    made = await manual.open()
    view = await manual.end(made.session, Ending(0.0, outcome=Outcome.AGENT_FAILED))
    assert (view.outcome, view.reward, view.reason) == ("engine_failed", None, "EngineError: gone")


@pytest.mark.parametrize("outcome", list(Outcome))
async def test_every_outcome_can_be_told(gate: Gate, outcome: Outcome) -> None:
    manual = sessions(gate)
    made = await manual.open()
    assert (await manual.end(made.session, Ending(outcome=outcome, reason="so"))).outcome == outcome


async def test_time_to_live_ends_as_agent_timeout(gate: Gate) -> None:
    ended = asyncio.Event()
    manual = sessions(gate, on_state=lambda state: ended.set() if isinstance(state, Ended) else None)
    made = await manual.open(SessionOptions(ttl=0.02))
    await ended.wait()
    view = (await manual.show(made.session)).view
    assert (view.outcome, view.reason) == ("agent_timeout", "open for 0.02 s")
    with pytest.raises(Conflict, match="ended as agent_timeout"):
        await manual.end(made.session, Ending(1.0))
    short = await manual.open(SessionOptions(ttl=0.02))
    await manual.end(short.session, Ending(1.0))
    await asyncio.sleep(0.05)
    assert (await manual.show(short.session)).view.outcome == "completed"


# -------------------------------------------------------------------------------------------------- list, delete, life


async def test_lists_page_and_filter(gate: Gate) -> None:
    manual = sessions(gate)
    made = [await manual.open(SessionOptions(name=f"n{n}", group="g" if n % 2 else "h")) for n in range(5)]
    ids = sorted(m.session for m in made)
    await manual.end(ids[0], Ending(1.0))
    page = await manual.list(limit=2)
    assert [v.session for v in page.sessions] == ids[:2] and page.next == ids[1]
    rest = await manual.list(limit=3, after=page.next)
    assert [v.session for v in rest.sessions] == ids[2:] and rest.next is None
    assert [v.session for v in (await manual.list(state="ended")).sessions] == ids[:1]
    assert len((await manual.list(state="open")).sessions) == len((await manual.list(state="running")).sessions) == 4
    assert {v.name for v in (await manual.list(group="g")).sessions} == {"n1", "n3"}
    for wrong, path in (({"limit": 0}, "limit"), ({"limit": 1001}, "limit"), ({"state": "done"}, "state")):
        with pytest.raises(BadRequest) as refused:
            await manual.list(**wrong)  # type: ignore[arg-type]
        assert refused.value.path == path


async def test_delete_cancels_what_is_open_and_removes_what_has_ended(gate: Gate) -> None:
    manual = sessions(gate)
    made = await manual.open()
    assert await manual.delete(made.session) is False
    assert (await manual.show(made.session)).view.outcome == "cancelled"
    assert await manual.delete(made.session) is True
    for ask in (manual.delete, manual.show, manual.trajectory, manual.end):
        with pytest.raises(NotFound):
            await ask(made.session)


async def test_what_a_dead_process_left_open_is_lost_with_its_rows(gate: Gate) -> None:
    left = await sessions(gate).open(SessionOptions(name="left"))
    await gate.store.put_session(Running(SessionKey("ses_never_called", "g", "t", 0)))
    manual = sessions(gate)
    assert await manual.recover() == 2
    view = (await manual.show(left.session)).view
    assert (view.outcome, view.name) == ("node_lost", "left")
    assert (await manual.trajectory(left.session)).traces and gate.store.sealed(left.session)
    with pytest.raises(Conflict, match="ended as node_lost"):
        await manual.end(left.session, Ending(1.0))
    assert await manual.recover() == 0


async def test_closing_cancels_what_is_open_and_opens_no_more(gate: Gate) -> None:
    manual = sessions(gate)
    made = [await manual.open() for _ in range(3)]
    await manual.end(made[0].session, Ending(1.0))
    assert await manual.close() == 2
    outcomes = [(await manual.show(m.session)).view.outcome for m in made]
    assert outcomes == ["completed", "cancelled", "cancelled"]
    with pytest.raises(Overloaded):
        await manual.open()
    assert await manual.close() == 0


async def test_an_end_that_the_process_died_in_is_finished_by_the_next(gate: Gate, monkeypatch: Any) -> None:
    manual = sessions(gate)
    made = await manual.open(SessionOptions(name="a"))

    async def die(_: object) -> None:
        raise RuntimeError("killed here")

    monkeypatch.setattr(manual, "_finish", die)
    with pytest.raises(RuntimeError):
        await manual.end(made.session, Ending(0.5, {"tests": 3.0}, Outcome.AGENT_FAILED, "said so"))
    again = sessions(gate)
    assert await again.recover() == 0
    report = await again.show(made.session)
    assert (report.view.outcome, report.view.reward, report.view.parts) == ("agent_failed", 0.5, {"tests": 3.0})
    assert (await again.trajectory(made.session)).traces
    assert (await again.end(made.session, Ending(0.5, {"tests": 3.0}, Outcome.AGENT_FAILED))).reward == 0.5
