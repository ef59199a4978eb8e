"""Commit, ids, restore, audit."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace

import pytest

from tugline.core.columns import Ids, concat, count, ids, take
from tugline.core.errors import VerifyError
from tugline.core.items import Item
from tugline.forest import keys
from tugline.forest.attach import Attachment
from tugline.forest.audit import root_overlap
from tugline.forest.forest import Forest
from tugline.forest.tree import HOT_LEAVES
from unit.forest.driver import DIGEST, Session, Shape, joined, results, say, user

START: tuple[Item, ...] = (user("task"),)


def chain_of(session: Session, turns: int, shape: Shape = Shape()) -> list[Item]:
    items: list[Item] = list(START)
    for i in range(turns):
        answer = say(f"step {i}", f'{{"n": {i}}}', stem=f"c{i}")
        session.call(items, answer, shape)
        items += [answer, *results(answer)]
    return items


def test_full_is_prompt_and_sample_and_prompts_extend() -> None:
    session = Session()
    chain_of(session, 4)
    forest = session.forest
    before = Ids(b"")
    for turn in forest.turns.values():
        assert forest.prompt(turn.turn_id) == concat([before, turn.bridge])
        assert forest.full(turn.turn_id) == concat([before, turn.bridge, turn.sampled])
        before = forest.full(turn.turn_id)


def test_a_trimmed_stop_is_the_only_thing_that_goes() -> None:
    session = Session()
    chain_of(session, 6, Shape(trim=True))
    forest = Forest.restore("ses_1", DIGEST, list(session.forest.turns.values()))
    for turn in list(forest.turns.values())[1:]:
        assert turn.parent is not None
        parent = session.forest.full(turn.parent)
        assert turn.keep == count(parent) - 1
        assert forest.prompt(turn.turn_id) == concat([take(parent, 0, turn.keep), turn.bridge])


@pytest.mark.parametrize(
    "broken",
    [
        {"keep": 0},
        {"keep": -1},
        {"prompt_len": 3},
        {"parent": "turn_9"},
        {"turn_id": "turn_0"},
        {"bridge": ids([1])},
    ],
)
def test_a_turn_that_does_not_extend_its_parent_is_refused_and_leaves_no_trace(broken: dict[str, object]) -> None:
    session = Session()
    items = chain_of(session, 1)
    good = session.make(session.forest.attach(session.request(items)), say("next"))
    attached = session.forest.attach(session.request([*items, say("next"), user("on")]))
    with pytest.raises(VerifyError):
        session.forest.commit(replace(good, **broken))  # type: ignore[arg-type]
    assert list(session.forest.turns) == ["turn_0"]
    assert session.forest.children("turn_0") == ()
    assert session.forest.attach(session.request([*items, say("next"), user("on")])) == attached
    session.forest.commit(good)


@pytest.mark.parametrize("keep", [1, 10_000])
def test_only_one_token_may_be_dropped(keep: int) -> None:
    session = Session()
    items = chain_of(session, 1)
    good = session.make(session.forest.attach(session.request(items)), say("next"))
    length = count(session.forest.full("turn_0"))
    wrong = length - 2 if keep == 1 else length + 1
    with pytest.raises(VerifyError):
        session.forest.commit(replace(good, keep=wrong, prompt_len=wrong + count(good.bridge)))


def test_a_parent_that_sampled_nothing_has_no_stop_to_trim() -> None:
    session = Session()
    empty = session.make(session.forest.attach(session.request(START)), say("x"))
    session.forest.commit(replace(empty, sampled=Ids(b""), logprobs=type(empty.logprobs)(b"")))
    child = session.make(session.forest.attach(session.request([*START, say("x"), user("on")])), say("y"))
    with pytest.raises(VerifyError):
        session.forest.commit(replace(child, keep=child.keep - 1, prompt_len=child.prompt_len - 1))


def test_a_second_root_keeps_nothing() -> None:
    session = Session()
    chain_of(session, 1)
    root = session.make(session.forest.attach(session.request([user("else")])), say("y"))
    assert (root.parent, root.keep) == (None, 0)
    with pytest.raises(VerifyError):
        session.forest.commit(replace(root, keep=1, prompt_len=root.prompt_len + 1))


def test_children_leaves_and_history() -> None:
    session = Session()
    items = chain_of(session, 2)
    session.call([*items, user("left")], say("l", stem="l"))
    session.call([*items, user("right")], say("r", stem="r"))
    forest = session.forest
    assert forest.children(None) == ("turn_0",)
    assert forest.children("turn_1") == ("turn_2", "turn_3")
    assert forest.leaves() == ("turn_2", "turn_3")
    assert forest.history("turn_3") == (*items, user("right"), say("r", stem="r"))


def test_turns_cannot_be_changed_from_outside() -> None:
    session = Session()
    chain_of(session, 1)
    with pytest.raises(TypeError):
        session.forest.turns["turn_0"] = session.forest.turns["turn_0"]  # type: ignore[index]


def test_restore_gives_the_same_forest() -> None:
    session = Session()
    items = chain_of(session, 3)
    session.call([*items[:-2], user("branch")], say("b", stem="b"))
    session.call([user("other root")], say("o", stem="o"))
    again = Forest.restore("ses_1", DIGEST, list(session.forest.turns.values()))
    assert dict(again.turns) == dict(session.forest.turns)
    assert again.leaves() == session.forest.leaves()
    for turn_id in again.turns:
        assert again.full(turn_id) == session.forest.full(turn_id)
        assert again.children(turn_id) == session.forest.children(turn_id)
        assert again.history(turn_id) == session.forest.history(turn_id)
    for request in (session.request(items), session.request([*items, user("x")]), session.request([user("new")])):
        assert again.attach(request) == session.forest.attach(request)


def test_another_template_attaches_nothing() -> None:
    session = Session()
    items = chain_of(session, 2)
    other = Forest.restore("ses_1", b"another template", list(session.forest.turns.values()))
    assert other.attach(session.request(items)).parent is None


def test_many_cold_leaves_are_put_together_from_their_paths() -> None:
    session = Session()
    items = chain_of(session, 3)
    for i in range(3 * HOT_LEAVES):
        session.call([*items, user(f"part {i}")], say(f"answer {i}", stem=f"p{i}"), Shape(trim=bool(i % 2)))
    forest = session.forest
    for leaf in forest.leaves():
        turn = forest.turns[leaf]
        assert turn.parent == "turn_2"
        parent = forest.full("turn_2")
        assert forest.full(leaf) == joined([take(parent, 0, turn.keep), turn.bridge, turn.sampled])
    assert len(forest._hot) <= HOT_LEAVES


def test_reads_from_workers_while_turns_are_committed() -> None:
    session = Session()
    items = chain_of(session, 2)
    expected = {t: session.forest.full(t) for t in session.forest.turns}
    request = session.request([*items, user("x")])
    stop, failed = threading.Event(), list[BaseException]()

    def read() -> None:
        try:
            while not stop.is_set():
                assert session.forest.full("turn_1") == expected["turn_1"]
                assert session.forest.full("turn_0") == expected["turn_0"]
                assert session.forest.attach(request).parent is not None
        except BaseException as err:  # noqa: BLE001  (a thread's failure must reach the test)
            failed.append(err)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for i in range(200):
        session.call([*items, user(f"p{i}")], say(f"a{i}", stem=f"p{i}"))
    stop.set()
    for reader in readers:
        reader.join()
    assert not failed


def test_a_session_of_two_thousand_turns_costs_memory_in_proportion_to_its_tokens() -> None:
    turns, session = 2_000, Session()
    forest, at = session.forest, session.forest.attach(session.request(START))
    items: list[Item] = list(START)
    streams: list[Ids] = []
    for i in range(turns):
        answer = say(f"step {i}")
        turn = session.make(at, answer)
        forest.commit(turn)
        streams += [turn.bridge, turn.sampled]
        tail = (user(f"observation {i}"),)
        chain = keys.walk(keys.step(at.chain, answer), tail)[-1]
        at = Attachment(turn, tail, "exact", None, (), chain, b"")
        items += [answer, *tail]
    assert forest.full(f"turn_{turns - 1}") == joined(streams)
    sampled = sum(len(s) for s in streams)
    held = sum(sys.getsizeof(x) for t in forest.turns.values() for x in (t.bridge, t.sampled))
    hot = sum(len(full) for full in forest._hot.values())
    assert held < sampled + turns * 2 * 64
    assert hot <= sampled  # one conversation: one materialised stream, not one per turn
    found = forest.attach(session.request(items))
    assert found.parent is not None
    assert (found.parent.turn_id, found.match) == (f"turn_{turns - 1}", "exact")
    again = Forest.restore("ses_1", DIGEST, list(forest.turns.values()))
    assert again.full(f"turn_{turns - 1}") == forest.full(f"turn_{turns - 1}")
    assert sum(len(full) for full in again._hot.values()) <= sampled


def test_audit_shows_a_false_fork() -> None:
    session = Session()
    items = chain_of(session, 3)
    assert root_overlap(session.forest, "turn_0") is None
    lost = session.forest.attach(session.request(items)).as_root(session.request(items), "no_bridge")
    session.forest.commit(session.make(lost, say("again", stem="z")))
    false_fork = root_overlap(session.forest, "turn_3")
    assert false_fork is not None
    assert false_fork.turn_id == "turn_2"
    session.call([user("something else")], say("o", stem="o"))
    true_root = root_overlap(session.forest, "turn_4")
    assert true_root is not None
    assert true_root.tokens < false_fork.tokens
