"""What must hold of a session, found out without hashes: conversations are compared item by item, prompts with what the
engine got, replies with replies."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from property.harness import DIALECT, NAMES, Rig, Sent, digest
from property.views_wire import WRITERS, Talk, User
from tugline.core.columns import Ids, concat, count, ids_list, last, take
from tugline.core.items import Assistant, Head, Item, Request, System, ToolResult, UserText
from tugline.core.trace import Trajectory
from tugline.core.turn import Turn
from tugline.forest import keys
from tugline.rollout.proof import Proof

Meaning = tuple[Any, ...]
RESPELLED = {"json_respell", "key_order", "number_respell", "unicode_respell", "args_empty"}
NEXT = Talk((), (), (User(("what follows",)),))


@dataclass(frozen=True)
class Node:
    """A turn as the oracle knows it."""

    turn_id: str
    head: Head
    sent: tuple[Item, ...]
    """The request's items, as sent, and the turn as clients echo it."""
    path: Meaning


@dataclass(frozen=True)
class Expected:
    """What a request should meet: `fresh`, `replay` (of `turn`) or `join`; possible parents of a fresh turn, and those
    of them that must win because they were echoed verbatim."""

    kind: str
    turn: str | None
    parents: frozenset[str]
    verbatim: frozenset[str]


class Oracle:
    """Follows one session."""

    def __init__(self, rig: Rig, policy: str) -> None:
        self._rig = rig
        self._policy = policy
        self._nodes: dict[str, Node] = {}
        self._sums: dict[str, bytes] = {}
        self._delivered: set[str] = set()
        self._lost: dict[str, Sent] = {}
        """Undelivered turn -> the request that it answers."""
        self._replies: dict[tuple[str, str, bool], object] = {}
        self._calls = 0
        self._seen = 0

    # ---------------------------------------------------------------------------------------------- requests

    def expect(self, sent: Sent, flying: list[Sent]) -> None:
        """Note what should become of a request that is about to be sent."""
        lost = next((turn for turn, other in self._lost.items() if same(sent, other)), None)
        kind = "replay" if lost else "join" if any(same(sent, other) for other in flying) else "fresh"
        parents, verbatim = self._parents(sent.request)
        sent.expected = Expected(kind, lost, parents, verbatim)

    def waits(self, sent: Sent) -> bool:
        """Whether a lost reply waits for this very request."""
        return any(same(sent, other) for other in self._lost.values())

    def waiting(self) -> list[Sent]:
        """Requests whose replies were lost."""
        return list(self._lost.values())

    def _parents(self, request: Request) -> tuple[frozenset[str], frozenset[str]]:
        meaning, head = meanings(request.items), head_of(request.head)
        for at in range(len(request.items) - 1, -1, -1):
            if not isinstance(request.items[at], Assistant):
                continue
            upto = meaning[: at + 1]
            found = {n.turn_id for n in self._nodes.values() if n.path == upto and head_of(n.head) == head}
            exact = {
                n.turn_id for n in self._nodes.values() if n.head == request.head and n.sent == request.items[: at + 1]
            }
            if found | exact:
                return frozenset(found | exact), frozenset(exact)
        return frozenset(), frozenset()

    # ----------------------------------------------------------------------------------------------- replies

    def answered(self, sent: Sent) -> None:
        """The client has the whole reply."""
        expected: Expected = sent.expected
        sent.says()
        self._calls += 1
        turn_id = self._turn_of(sent)
        assert turn_id is not None
        assert turn_id.removeprefix("turn_") in sent.reply.decode()
        if expected.kind == "fresh":
            assert turn_id not in self._nodes, "a fresh call gives a turn of its own"
            self._add(turn_id, sent)
            self._verbatim(turn_id, sent)
        else:
            assert turn_id in self._nodes
            assert expected.turn in (None, turn_id)
        self._delivered.add(turn_id)
        self._lost.pop(turn_id, None)
        form = (turn_id, sent.dialect, sent.stream)  # I5
        reply = sent.says() if sent.stream and self._rig.setting.live else sent.reply  # pieces as they were sampled
        assert self._replies.setdefault(form, reply) == reply, "one turn, one spelling"

    def abandoned(self, sent: Sent) -> None:
        """The client left, and the call has come to its end."""
        self._calls += 1
        turn_id = self._turn_of(sent)
        assert turn_id is not None and turn_id not in self._nodes
        self._add(turn_id, sent)
        self._lost[turn_id] = sent

    def refused(self) -> None:
        """A call that gave nothing."""
        self._calls += 1

    def _turn_of(self, sent: Sent) -> str | None:
        found = [r.turn_id for r in self._rig.log.records if r.seq == sent.seq and r.turn_id is not None]
        assert len(found) <= 1
        return found[0] if found else None

    def _add(self, turn_id: str, sent: Sent) -> None:
        turn, request = self._rig.forest.turns[turn_id], sent.request
        expected: Expected = sent.expected
        self._right_parent(turn, expected)
        if turn.parent is None:
            (reason,) = [r.root_reason for r in self._rig.log.records if r.turn_id == turn_id and r.root_reason]
            assert not reason.startswith("no_bridge"), reason
        tail = request.items[len(request.items) - len(turn.items) :]
        assert [type(i) for i in turn.items] == [type(i) for i in tail]
        assert [getattr(i, "text", None) for i in turn.items] == [getattr(i, "text", None) for i in tail], "in order"
        path = (*request.items, turn.said)
        self._nodes[turn_id] = Node(turn_id, request.head, path, meanings(path))
        self._one_key(sent)
        self._no_forgery(turn)

    def _right_parent(self, turn: Turn, expected: Expected) -> None:
        if self._policy == "default":
            assert (turn.parent is None) == (not expected.parents), (turn.parent, expected)
            assert turn.parent is None or turn.parent in (expected.verbatim or expected.parents)
        elif self._policy == "honour":
            assert turn.parent in expected.verbatim if expected.verbatim else turn.parent in {None, *self._nodes}
        elif self._policy == "retain":
            assert turn.parent is not None or not expected.parents, "goes on where it would, and further"
        else:
            assert turn.parent is None or turn.parent in {*expected.parents, *self._nodes}

    def _one_key(self, sent: Sent) -> None:  # I7
        found = set()
        turns = sent.talk.turns
        doubled = any(isinstance(a, User) and isinstance(b, User) for a, b in pairwise(turns))
        for name in NAMES:
            if name == "anthropic" and doubled:
                continue  # its writer joins messages of one role, as its clients do
            other = DIALECT[name].decode(WRITERS[name].write(sent.talk), {"model": "m"})
            found.add(keys.walk(keys.start(b"template", other.head), other.items)[-1].lenient)
        assert len(found) == 1, "four views, one key"

    def _verbatim(self, turn_id: str, sent: Sent) -> None:  # I6
        name, forest = sent.dialect, self._rig.forest
        writer = WRITERS[name]
        if sent.stream:
            wire = writer.wire(replace(sent.talk, turns=(*sent.talk.turns, sent.says(), *NEXT.turns)))
        else:
            wire = [*writer.wire(sent.talk), *writer.reply(sent.reply), *writer.wire(NEXT)]
        at = forest.attach(DIALECT[name].decode(writer.write(sent.talk, wire), {"model": "m"}))
        assert at.parent is not None and at.parent.key_exact == forest.turns[turn_id].key_exact
        assert at.tail == (UserText("what follows"),)
        if not sent.stream:
            assert (at.match, at.drift) == ("exact", ())
        assert set(at.drift) <= RESPELLED, "what reads a stream as JSON writes it in its own spelling"

    def _no_forgery(self, turn: Turn) -> None:  # I4
        """The control ids of a prompt are those of the same prompt with harmless words in it."""
        forest, model = self._rig.forest, self._rig.model
        tail = [harmless(item, tuple(model.codec.control)) for item in turn.items]
        if turn.parent is None:
            plain = model.render(turn.head, tail).ids
        else:
            parent, full = forest.turns[turn.parent], forest.full(turn.parent)
            history = forest.history(turn.parent)
            plain = model.bridge(
                turn.head, history, tail, last_id=last(full), finish=parent.finish, sampled=parent.sampled
            ).ids
        controls = set(model.codec.control.values())
        assert [i for i in ids_list(turn.bridge) if i in controls] == [i for i in ids_list(plain) if i in controls]

    # ------------------------------------------------------------------------------------------------ always

    def check(self, *, counted: bool) -> None:
        """After every step. `counted`: no call is under way."""
        forest = self._rig.forest
        for record in self._rig.log.records[self._seen :]:
            if record.turn_id is not None and record.engine_ref is not None:
                self._extends(forest.turns[record.turn_id], record.engine_ref)
        self._seen = len(self._rig.log.records)
        for turn in forest.turns.values():  # I3
            assert self._sums.setdefault(turn.turn_id, digest(turn.sampled + turn.logprobs)) == digest(
                turn.sampled + turn.logprobs
            )
        if counted:
            assert set(forest.turns) == set(self._nodes)
            assert sum(self._rig.session.calls.values()) == self._calls  # I9

    def _extends(self, turn: Turn, ref: str) -> None:  # I1
        forest = self._rig.forest
        prompt = self._rig.engine.prompts[ref]
        before = forest.full(turn.parent) if turn.parent else Ids(b"")
        assert count(before) - 1 <= turn.keep <= count(before)
        assert prompt.startswith(take(before, 0, turn.keep))
        assert forest.prompt(turn.turn_id) == prompt
        assert forest.full(turn.turn_id) == concat([prompt, turn.sampled])
        assert self._open(turn) == 1, "every turn is closed but the one to come"

    def _open(self, turn: Turn) -> int:
        """Turns that a prompt opens and does not close. What a model samples inside a turn opens and closes nothing,
        whatever it is: only its last id may be a close."""
        control, forest = self._rig.model.codec.control, self._rig.forest
        start, end = control["<|im_start|>"], control["<|im_end|>"]
        found, at = 0, turn
        while True:
            bridge = ids_list(at.bridge)
            found += bridge.count(start) - bridge.count(end)
            if at.parent is None:
                return found
            kept, at = at.keep, forest.turns[at.parent]
            found -= kept == at.prompt_len + count(at.sampled) and last(at.sampled) == end

    def snapshot(self) -> object:
        """What an error must not change. I8."""
        forest = self._rig.forest
        return self.keys(), forest.leaves(), [forest.delivered(t) for t in forest.turns]

    def keys(self) -> object:
        """Turns, their keys and their ids."""
        forest = self._rig.forest
        return [
            (t.turn_id, t.parent, t.key_exact, t.key_lenient, digest(forest.full(t.turn_id)))
            for t in forest.turns.values()
        ]

    def restarted(self) -> None:
        """A new gateway counts calls anew; of turns it knows all, also which replies were lost."""
        self._calls = self._seen = 0

    def after_all(self, proof: Proof, made: Trajectory) -> None:
        """The run re-proves itself, and every sampled token is trained once or accounted for. I2."""
        assert proof.findings == []
        assert proof.calls_exact == proof.calls_total == len(self._nodes)
        assert proof.traces_exact == proof.traces_total == proof.traces_continuous == len(made.traces)
        turns = self._rig.turns()
        extended = {t.parent for t in turns}
        unseen = [t for t in turns if t.turn_id not in self._delivered and t.turn_id not in extended]
        side = [t for t in turns if t.role == "auxiliary" and t not in unseen]
        assert set(made.untrained) <= {"undelivered", "stop_trim", "auxiliary"}
        assert made.untrained.get("undelivered", 0) == sum(count(t.sampled) for t in unseen)
        assert made.untrained.get("auxiliary", 0) == sum(count(t.sampled) for t in side)
        assert not any(t.head.tools for t in side), "only what came without tools is a side job here"
        trained = sum(sum(trace.loss_mask) for trace in made.traces)
        assert trained + sum(made.untrained.values()) == sum(count(t.sampled) for t in turns) == proof.sampled_tokens


def same(one: Sent, other: Sent) -> bool:
    """Whether two requests ask for the same generation, however the reply is to be sent."""

    def asked(request: Request) -> object:
        options = replace(request.options, stream=False, include_usage=False, form="")
        return request.model, request.head, request.items, options

    return asked(one.request) == asked(other.request)


def head_of(head: Head) -> Meaning:
    """Tools by name, description and parameters."""
    out = []
    for tool in head.tools:
        function = json.loads(tool.spec)["function"]
        out.append(
            (tool.name, function.get("description") or "", value_of(json.dumps(function.get("parameters") or {})))
        )
    return tuple(out)


def meanings(items: tuple[Item, ...]) -> Meaning:
    """What each item means, results by the place of their call."""
    places: dict[str, tuple[int, int]] = {}
    out: list[Any] = []
    for n, item in enumerate(items):
        match item:
            case Assistant():
                places.update({c.id: (n, k) for k, c in enumerate(item.calls)})
                out.append(("said", (item.text or "").strip(), *((c.name, value_of(c.arguments)) for c in item.calls)))
            case ToolResult():
                out.append(("result", places.get(item.call_id, item.call_id), item.text))
            case System():
                out.append(("system", item.text))
            case UserText():
                out.append(("user", item.text, item.joined))
            case _:
                raise AssertionError(item)
    return tuple(out)


def value_of(arguments: str) -> str:
    """One spelling of a JSON value: numbers as doubles, keys sorted."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return None if value in (float("inf"), float("-inf")) else value + 0.0
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items()}
        return [plain(v) for v in value] if isinstance(value, list) else value

    return json.dumps(plain(json.loads(arguments, parse_int=float, parse_float=float)), sort_keys=True)


def harmless(item: Item, controls: tuple[str, ...]) -> Item:
    """The item with no control token spelled in its words."""

    def clean(text: str | None) -> str | None:
        for control in controls if text else ():
            text = (text or "").replace(control, "x")
        return text

    if isinstance(item, Assistant):
        return replace(item, text=clean(item.text), reasoning=clean(item.reasoning))
    return replace(item, text=clean(item.text) or "")  # type: ignore[union-attr]
