"""Whatever a session's tree looks like: a conversation that means the same attaches at full depth, another does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from property.forest_trees import chain, worlds
from tugline.core.columns import Ids, concat, count, take
from tugline.core.items import Assistant, Item, ToolCall, UserText
from tugline.core.turn import Turn
from tugline.forest.canon import arguments_view
from tugline.forest.forest import Forest
from unit.trajectory.world import (
    DIGEST,
    World,
    ask,
    javascript,
    python,
    renamed,
    trimmed_reasoning,
    with_arguments,
    without_reasoning,
)

some = settings(max_examples=60, deadline=None)
NEXT = UserText("what follows")


def same_place(world: World, found: Turn | None, turn: Turn) -> bool:
    """The turn itself, or a sibling that nobody can tell from it."""
    return found is not None and found.parent == turn.parent and found.key_lenient == turn.key_lenient


def picked(data: st.DataObject, world: World) -> Turn:
    return data.draw(st.sampled_from(world.turns))


@some
@given(st.data())
def test_a_verbatim_echo_attaches_exactly_at_full_depth(data: st.DataObject) -> None:
    world = data.draw(worlds())
    for turn in world.turns:
        found = world.forest.attach(ask(world.after(turn, NEXT), turn.head))
        assert found.match == "exact"
        assert found.parent is not None
        assert found.parent.key_exact == turn.key_exact
        assert found.tail == (NEXT,)
        assert (found.root_reason, found.drift) == (None, ())


SPELLINGS: dict[str, Callable[[Sequence[Item]], tuple[Item, ...]]] = {
    "javascript": lambda items: with_arguments(items, lambda a: javascript(a or "{}")),
    "python": lambda items: with_arguments(items, lambda a: python(a or "{}")),
    "python and back": lambda items: with_arguments(items, lambda a: javascript(python(a or "{}"))),
    "renamed": renamed,
    "dropped": without_reasoning,
    "trimmed": trimmed_reasoning,
    "all": lambda items: renamed(without_reasoning(with_arguments(items, lambda a: javascript(a or "{}")))),
}
CLASSES = {
    "javascript": {"number_respell", "key_order", "unicode_respell", "json_respell", "args_empty"},
    "python": {"number_respell", "key_order", "unicode_respell", "json_respell", "args_empty"},
    "renamed": {"ids_renamed"},
    "dropped": {"reasoning_dropped"},
    "trimmed": {"reasoning_trimmed"},
}
CLASSES["python and back"] = CLASSES["javascript"]
CLASSES["all"] = CLASSES["javascript"] | CLASSES["renamed"] | CLASSES["dropped"]


@some
@given(st.data(), st.sampled_from(sorted(SPELLINGS)))
def test_an_edit_that_means_the_same_attaches_at_full_depth_and_is_named(data: st.DataObject, how: str) -> None:
    world = data.draw(worlds())
    turn = picked(data, world)
    verbatim = world.after(turn)
    edited = SPELLINGS[how](verbatim)
    # foreign turns are the harness's own words: were they edited too, it would be another conversation
    assume(all(a == b for a, b in zip(verbatim, edited, strict=True) if a == Assistant("[made by the harness]")))
    found = world.forest.attach(ask((*edited, NEXT), turn.head))
    assert same_place(world, found.parent, turn)
    assert found.tail == (NEXT,)
    if edited == verbatim:
        assert (found.match, found.drift) == ("exact", ())
    elif found.match == "lenient":
        assert found.drift
        assert set(found.drift) <= CLASSES[how]
    else:  # the edit made it equal to a sibling
        assert found.parent is not None
        assert found.parent.key_exact != turn.key_exact


@some
@given(st.data())
def test_after_a_respelling_the_same_spelling_is_exact(data: st.DataObject) -> None:
    """An edit is named once: the turn behind it is registered behind the harness's own spelling."""
    world = data.draw(worlds())
    turn = picked(data, world)
    edited = (*SPELLINGS["all"](world.after(turn)), NEXT)
    reply = Assistant("a new turn")
    request = ask(edited, turn.head)
    made = world.call(edited, reply, turn.head)
    found = world.forest.attach(ask((*edited, reply, NEXT), request.head))
    assert (found.match, found.parent) == ("exact", world.forest.turns[made.turn_id])


@some
@given(st.data(), st.sampled_from(["text", "call removed", "call added", "name", "argument"]))
def test_a_changed_turn_branches_at_the_deepest_unchanged_ancestor(data: st.DataObject, how: str) -> None:
    world = data.draw(worlds())
    turn = picked(data, world)
    items = list(world.after(turn, NEXT))
    path = chain(world, turn)
    ends = ends_of(items, path)
    which = data.draw(st.integers(0, len(path) - 1))
    at = ends[which]
    old = items[at]
    assert isinstance(old, Assistant)
    if how == "text":
        items[at] = replace(old, text="something else")
    elif how == "call added":
        items[at] = replace(old, calls=(*old.calls, ToolCall("x", "bash", "{}")))
    else:
        assume(old.calls)
        first = old.calls[0]
        new = {
            "call removed": (),
            "name": (replace(first, name="read"),),
            "argument": (replace(first, arguments='{"unlike": "all others"}'),),
        }[how]
        items[at] = replace(old, calls=(*new, *old.calls[1:]))
    siblings = [world.forest.turns[t] for t in world.forest.children(path[which].parent)]
    assume(meaning(items[at]) not in [meaning(t.echo) for t in siblings])
    found = world.forest.attach(ask(items, turn.head))
    if which == 0:
        assert found.parent is None
        assert found.root_reason == "root_history_changed"
        assert found.tail == tuple(items)
    else:
        assert same_place(world, found.parent, path[which - 1])
        assert found.tail == tuple(items[ends[which - 1] + 1 :])
    assert {"foreign_assistant", "edit_honoured"} & set(found.drift)


def meaning(item: Item) -> object:
    """What an assistant turn says, however it is spelled."""
    assert isinstance(item, Assistant)
    return (item.text or "").strip(), [(c.name, arguments_view(c.arguments)) for c in item.calls]


def ends_of(items: Sequence[Item], path: Sequence[Turn]) -> list[int]:
    """Index of each turn's own assistant item."""
    out, at = [], -1
    for turn in path:
        at += len(turn.items) + 1
        assert items[at] == turn.echo
        out.append(at)
    return out


@some
@given(st.data())
def test_full_is_the_path_whether_hot_or_cold(data: st.DataObject) -> None:
    world = data.draw(worlds())
    cold = Forest.restore("ses", DIGEST, world.turns)
    for turn in data.draw(st.permutations(world.turns)):
        expected = Ids(b"")
        for step in chain(world, turn):
            expected = concat([take(expected, 0, step.keep), step.bridge, step.sampled])
        assert cold.full(turn.turn_id) == world.forest.full(turn.turn_id) == expected
        assert cold.prompt(turn.turn_id) == take(expected, 0, turn.prompt_len)
        assert count(expected) == turn.prompt_len + count(turn.sampled)


@some
@given(st.data())
def test_a_restored_forest_is_the_original(data: st.DataObject) -> None:
    world = data.draw(worlds())
    again = Forest.restore("ses", DIGEST, world.turns)
    assert dict(again.turns) == dict(world.forest.turns)
    assert list(again.turns) == list(world.forest.turns)
    assert again.leaves() == world.forest.leaves()
    assert again.children(None) == world.forest.children(None)
    for turn in world.turns:
        assert again.children(turn.turn_id) == world.forest.children(turn.turn_id)
        assert again.history(turn.turn_id) == world.said[turn.turn_id][1]
        for spell in SPELLINGS.values():
            request = ask((*spell(world.after(turn)), NEXT), turn.head)
            assert again.attach(request) == world.forest.attach(request)


@some
@given(st.data())
def test_another_head_never_attaches(data: st.DataObject) -> None:
    world = data.draw(worlds())
    turn = picked(data, world)
    head = replace(turn.head, template_kwargs='{"unlike":"all"}')
    found = world.forest.attach(ask(world.after(turn, NEXT), head))
    assert (found.parent, found.root_reason) == (None, "root_head_changed")
