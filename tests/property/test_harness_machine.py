"""A harness that does everything harnesses do, against the real gateway, in any order. What must hold is looked at
after every step, by an oracle that knows no hashes: it compares conversations item by item.

A few dozen sessions in every run; TUGLINE_TEST_MACHINE=2000 for the long form.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from property.harness import NAMES, Rig, Sent, Setting, answered, changed, spoken
from property.machine_talks import OPENINGS, POLICIES, TOOLS, WORDS, edited, rewritten, steps
from property.oracle import Oracle
from property.views_wire import Said, Talk, Tool, User

RUNS = int(os.environ.get("TUGLINE_TEST_MACHINE", "25"))
words = st.sampled_from(WORDS)
dialects = st.sampled_from(NAMES)


class Harness(RuleBasedStateMachine):
    """Conversations of one session, each as the harness has it, and the oracle of what the gateway made of them."""

    @initialize(
        script=st.lists(steps(), min_size=4, max_size=9),
        seed=st.integers(0, 99),
        grace=st.sampled_from([0.0, 600.0]),
        policy=st.sampled_from(["default", *POLICIES]),
        live=st.booleans(),
        hints=st.booleans(),
    )
    def begin(
        self, script: list[dict[str, Any]], seed: int, grace: float, policy: str, live: bool, hints: bool
    ) -> None:
        self.loop = asyncio.new_event_loop()
        head = {"settings": {"noncanonical": 0.3, "seed": seed, "repeat": True}}
        self.grace = grace
        self.rig = Rig([head, *script], Setting(grace, POLICIES[policy], live, hints))
        self.do(self.rig.start())
        self.oracle = Oracle(self.rig, policy)
        self.talks = [Talk(("Be brief. ",), TOOLS[0], (User((OPENINGS[0],)),))]
        self.flying: list[Sent] = []
        """Abandoned requests whose generation stands at its gate."""

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        try:
            if sys.exc_info()[0] is None:  # else a step has failed, and that is what is to be shown
                self.land()
                self.oracle.after_all(*self.do(self.rig.finish()))
        finally:
            self.do(self.rig.stop())
            self.do(self.loop.shutdown_default_executor())
            self.loop.close()

    def talk(self, data: st.DataObject) -> tuple[int, Talk]:
        at = data.draw(st.integers(0, len(self.talks) - 1), label="talk")
        return at, self.talks[at]

    # -------------------------------------------------------------------------------------------------- calls

    @rule(data=st.data(), name=dialects, stream=st.booleans(), reply=words, reverse=st.booleans())
    def call(self, data: st.DataObject, name: str, stream: bool, reply: str, reverse: bool) -> None:
        """An ordinary call, and the conversation goes on."""
        self.ask(self.talk(data)[0], name, stream, reply, reverse)

    def ask(self, at: int, name: str, stream: bool, reply: str, reverse: bool = False) -> None:
        """Send talk `at`; it goes on with what came and the harness's answer to that."""
        sent = self.rig.prepare(self.talks[at], name, stream)
        self.oracle.expect(sent, self.flying)
        self.do(self.served(sent))
        self.oracle.answered(sent)
        self.talks[at] = answered(self.talks[at], sent.says(), reply, reverse)

    @rule(data=st.data(), names=st.lists(dialects, min_size=2, max_size=4), reply=words)
    def converse(self, data: st.DataObject, names: list[str], reply: str) -> None:
        """Several calls in a row, each through an API of its own."""
        at, _ = self.talk(data)
        for name in names:
            self.ask(at, name, data.draw(st.booleans()), reply, data.draw(st.booleans()))

    async def served(self, *sent: Sent) -> None:
        """Send, and let everything that waits for the engine go on."""
        for one in sent:
            self.rig.post(one)
        tasks = [one.task for one in sent]
        while any(t is not None and not t.done() for t in tasks):
            self.rig.engine.open_gates()
            await asyncio.wait(tasks, timeout=0.002)  # type: ignore[type-var]
        await asyncio.gather(*tasks)  # type: ignore[arg-type]
        await self.settled()

    async def settled(self) -> None:
        """Abandoned requests whose generation has ended have been accounted for."""
        for one in [s for s in self.flying if not self.rig.engine.gates]:
            await asyncio.wait([one.task])  # type: ignore[type-var]
            self.flying.remove(one)
            self.oracle.abandoned(one)

    @precondition(lambda self: not self.flying)
    @rule(data=st.data(), name=dialects)
    def resample(self, data: st.DataObject, name: str) -> None:
        """The same body again after its reply was delivered: another sample."""
        _, talk = self.talk(data)
        for n in range(2):
            sent = self.rig.prepare(talk, name, False)
            self.oracle.expect(sent, self.flying)
            assert n == 0 or sent.expected.kind == "fresh"
            self.do(self.served(sent))
            self.oracle.answered(sent)

    @precondition(lambda self: not self.flying)
    @rule(data=st.data(), name=dialects, n=st.integers(2, 4), reply=words)
    def at_once(self, data: st.DataObject, name: str, n: int, reply: str) -> None:
        """Several calls at the same time, some of the same conversation, ending in any order."""
        drawn = [self.talk(data) for _ in range(n)]
        sent = [self.rig.prepare(talk, data.draw(dialects), False) for _, talk in drawn]
        if any(self.oracle.waits(s) for s in sent):
            return  # replies that wait for a retry are another rule's
        for one in sent:
            self.oracle.expect(one, [])
        order = data.draw(st.permutations(range(n)))
        self.do(self._at_once(sent, order))
        for one in sent:
            self.oracle.answered(one)
        at, talk = drawn[0]
        self.talks[at] = answered(talk, sent[0].says(), reply, False)

    async def _at_once(self, sent: list[Sent], order: list[int]) -> None:
        self.rig.engine.hold = True
        for one in sent:
            self.rig.post(one)
        await self.rig.until_waiting(len(sent))
        self.rig.engine.hold = False
        self.rig.engine.open_gates(order)
        await asyncio.gather(*(one.task for one in sent))  # type: ignore[misc]

    # ---------------------------------------------------------------------------------- leaving, coming again

    @precondition(lambda self: len(self.flying) < 3)
    @rule(data=st.data(), name=dialects, stream=st.booleans(), back=st.booleans())
    def leave(self, data: st.DataObject, name: str, stream: bool, back: bool) -> None:
        """The client leaves while the engine works, and now and then comes back at once."""
        _, talk = self.talk(data)
        sent = self.rig.prepare(talk, name, stream)
        self.oracle.expect(sent, self.flying)
        if sent.expected.kind != "fresh":
            return
        before = self.oracle.snapshot()
        self.do(self._leave(sent))
        if self.grace:
            self.flying.append(sent)
            if back:
                self.rejoin(sent)
        else:
            self.oracle.refused()
            assert self.oracle.snapshot() == before, "an aborted call leaves no trace"

    async def _leave(self, sent: Sent) -> None:
        self.rig.engine.hold = True
        waiting = len(self.rig.engine.gates)
        self.rig.post(sent)
        await self.rig.until_waiting(waiting + 1)
        self.rig.engine.hold = False
        sent.left.set()
        if self.grace:
            await self.rig.until_left(len(self.flying) + 1)
        else:
            await asyncio.wait([sent.task])  # type: ignore[type-var]
            self.rig.engine.gates.pop()

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A retry while the first generation is still under way joins it."""
        self.rejoin(data.draw(st.sampled_from(self.flying)))

    def rejoin(self, first: Sent) -> None:
        """The same request again, its first generation still under way."""
        again = self.rig.prepare(first.talk, first.dialect, first.stream)
        self.oracle.expect(again, self.flying)
        assert again.expected.kind == "join"
        turns, flying = len(self.rig.forest.turns), len(self.flying)
        self.do(self.served(again))
        assert len(self.rig.forest.turns) == turns + flying, "nothing was sampled beside what flew"
        self.oracle.answered(again)

    @precondition(lambda self: self.flying)
    @rule()
    def land(self) -> None:
        """Generations whose clients have left come to their end."""
        if self.flying:
            self.do(self.served())

    @precondition(lambda self: not self.flying)
    @rule(data=st.data(), name=dialects, stream=st.booleans())
    def lose(self, data: st.DataObject, name: str, stream: bool) -> None:
        """The connection breaks under the reply. The same request then gets the same reply."""
        if self.rig.setting.live and not self.grace:
            stream = False  # a stream that began early is aborted with its client, before or behind the commit
        _, talk = self.talk(data)
        sent = self.rig.prepare(talk, name, stream)
        self.oracle.expect(sent, [])
        if sent.expected.kind != "fresh":
            return
        sent.leave_at_headers = True
        self.do(self.served(sent))
        assert not sent.whole
        self.oracle.abandoned(sent)

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        """What was lost is asked for again."""
        waiting = self.oracle.waiting()
        if not waiting or self.flying:
            return
        lost = data.draw(st.sampled_from(waiting))
        again = self.rig.prepare(lost.talk, lost.dialect, lost.stream)
        self.oracle.expect(again, [])
        assert again.expected.kind == "replay"
        turns = set(self.rig.forest.turns)
        self.do(self.served(again))
        assert set(self.rig.forest.turns) == turns, "a replay samples nothing"
        self.oracle.answered(again)
        once_more = self.rig.prepare(lost.talk, lost.dialect, lost.stream)
        self.oracle.expect(once_more, [])
        assert once_more.expected.kind == "fresh", "what was delivered is not sent again"
        self.do(self.served(once_more))
        self.oracle.answered(once_more)

    # ------------------------------------------------------------------------------------- what goes wrong

    @rule(name=dialects, body=st.sampled_from([b"", b"{", b"[]", b'{"model": "m"}', b'{"messages": 3}']))
    def nonsense(self, name: str, body: bytes) -> None:
        """Errors leave the forest as it was."""
        before = self.oracle.snapshot()
        sent = replace(self.rig.prepare(self.talks[0], name, False), body=body)
        self.rig_post_and_wait(sent)
        assert 400 <= sent.status < 500
        self.oracle.refused()
        assert self.oracle.snapshot() == before

    @precondition(lambda self: not self.flying)
    @rule(data=st.data(), name=dialects)
    def breakdown(self, data: st.DataObject, name: str) -> None:
        """The engine fails."""
        _, talk = self.talk(data)
        sent = self.rig.prepare(talk, name, False)
        if self.oracle.waits(sent):
            return
        before = self.oracle.snapshot()
        self.rig.engine.broken = True
        self.rig_post_and_wait(sent)
        self.rig.engine.broken = False
        assert sent.status >= 500
        self.oracle.refused()
        assert self.oracle.snapshot() == before

    def rig_post_and_wait(self, sent: Sent) -> None:
        async def run() -> None:
            self.rig.post(sent)
            assert sent.task is not None
            await sent.task

        self.do(run())

    @precondition(lambda self: not self.flying)
    @rule()
    def restart(self) -> None:
        """A new gateway on the same store knows the same turns."""
        before = self.oracle.keys()
        self.do(self.rig.boot())
        self.oracle.restarted()
        assert self.oracle.keys() == before

    # ------------------------------------------------------------------------------- edits of a conversation

    @precondition(lambda self: any(spoken(t) for t in self.talks))
    @rule(
        data=st.data(),
        how=st.sampled_from(["javascript", "python", "trim", "drop", "reason", "rename"]),
        name=dialects,
    )
    def edit(self, data: st.DataObject, how: str, name: str) -> None:
        """An edit that keeps the meaning, and a call with it."""
        at, talk = data.draw(st.sampled_from([(i, t) for i, t in enumerate(self.talks) if spoken(t)]))
        where = data.draw(st.sampled_from(spoken(talk)))
        turn = talk.turns[where]
        assert isinstance(turn, Said)
        turn = edited(turn, how, where)
        self.talks[at] = changed(talk, where, turn)
        self.ask(at, name, False, "ok")

    @precondition(lambda self: any(spoken(t) for t in self.talks))
    @rule(
        data=st.data(),
        how=st.sampled_from(["text", "cut", "call gone", "call new", "argument", "delete", "foreign", "result"]),
        name=dialects,
    )
    def rewrite(self, data: st.DataObject, how: str, name: str) -> None:
        """An edit that changes it, and a call with it."""
        talk = data.draw(st.sampled_from([t for t in self.talks if spoken(t)]))
        self.talks.append(rewritten(talk, data.draw(st.sampled_from(spoken(talk))), how))
        self.ask(len(self.talks) - 1, name, False, "ok")

    @rule(data=st.data(), text=st.sampled_from(["stop that", "<|im_end|>", "more"]))
    def branch(self, data: st.DataObject, text: str) -> None:
        """Another way from some point of a conversation on, back to its first words."""
        _, talk = self.talk(data)
        cut = data.draw(st.integers(0, len(talk.turns)))
        while cut > 0 and isinstance(talk.turns[cut - 1], Said):
            cut -= 1
        self.talks.append(replace(talk, turns=(*talk.turns[:cut], User((text,)))))

    @rule(
        system=st.sampled_from(["Be brief. ", "helper"]), tools=st.sampled_from(TOOLS), text=st.sampled_from(OPENINGS)
    )
    def anew(self, system: str, tools: tuple[Tool, ...], text: str) -> None:
        """A compaction, a helper, a title: a conversation of its own."""
        self.talks.append(Talk((system,), tools, (User((text,)),)))

    @rule(data=st.data(), tools=st.sampled_from(TOOLS), name=dialects)
    def retool(self, data: st.DataObject, tools: tuple[Tool, ...], name: str) -> None:
        """Other tools from here on."""
        at, talk = self.talk(data)
        self.talks[at] = replace(talk, tools=tools)
        self.ask(at, name, False, "ok")

    # ------------------------------------------------------------------------------------------- what holds

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "oracle"):
            self.oracle.check(counted=not self.flying)


Harness.TestCase.settings = settings(
    max_examples=RUNS,
    stateful_step_count=14,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
TestHarness = pytest.mark.timeout(120 + 4 * RUNS)(Harness.TestCase)
