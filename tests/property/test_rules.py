"""Whatever the operator chooses: a verbatim echo attaches exactly, and a choice only moves where an edit attaches."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from property.forest_trees import chain, worlds
from property.test_forest import SPELLINGS
from tugline.core.contracts import EditPolicy, Policy, TextFilter
from tugline.core.items import Assistant, UserText
from tugline.core.turn import Sampling, Turn
from tugline.forest.rules import Rules, rules_of
from unit.trajectory.world import World, ask

NEXT = UserText("and now?")
FIELDS = tuple(EditPolicy.__dataclass_fields__)
some = settings(max_examples=80, deadline=None)


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    edits = EditPolicy(**{name: draw(st.sampled_from(["retain", "honour"])) for name in FIELDS})
    filters = draw(st.sampled_from([(), (TextFilter("brief", "brief", "first_system"),), (TextFilter("o", "o+"),)]))
    reasoning = draw(st.sampled_from(["keep", "template"]))
    return rules_of(Policy(Sampling(), edits=edits, history_reasoning=reasoning, filters=filters))


def picked(data: st.DataObject, world: World) -> Turn:
    return data.draw(st.sampled_from(world.turns))


@some
@given(st.data(), rules())
def test_a_verbatim_echo_attaches_exactly_whatever_the_rules(data: st.DataObject, asked: Rules) -> None:
    world = data.draw(worlds())
    turn = picked(data, world)
    found = world.forest.attach(ask(world.after(turn, NEXT), turn.head), asked)
    assert found.parent is not None
    assert (found.match, found.parent.key_exact, found.tail) == ("exact", turn.key_exact, (NEXT,))
    assert found.drift == ()


@some
@given(st.data(), rules(), st.sampled_from(sorted(SPELLINGS)))
def test_what_is_honoured_is_never_in_the_kept_prompt(data: st.DataObject, asked: Rules, how: str) -> None:
    """The turns that the prompt goes on from hold no edit of a class that is to be obeyed."""
    world = data.draw(worlds())
    turn = picked(data, world)
    edited = SPELLINGS[how](world.after(turn))
    found = world.forest.attach(ask((*edited, NEXT), turn.head), asked)
    assume(found.match != "exact")
    kept = world.forest.history(found.parent.turn_id) if found.parent else ()
    assert len(kept) + len(found.tail) == len(edited) + 1  # nothing is lost between history and tail
    if "edit_honoured" not in found.drift:
        assert not asked.honoured.intersection(found.drift)
    for ours, theirs in zip(kept, edited, strict=False):
        if isinstance(ours, Assistant) and isinstance(theirs, Assistant) and "reasoning_dropped" in asked.honoured:
            assert bool(ours.reasoning) <= bool(theirs.reasoning)


@settings(some, suppress_health_check=[HealthCheck.filter_too_much])  # not every world has such a call
@given(st.data(), rules())
def test_a_retained_change_attaches_at_full_depth_by_its_call_id(data: st.DataObject, asked: Rules) -> None:
    world = data.draw(worlds())
    turn = picked(data, world)
    assume(turn.echo.calls and turn.echo.calls[0].arguments.startswith("{"))
    assume(sum(t.echo == turn.echo for t in world.turns) == 1)
    asked = replace(asked, retained=frozenset({"args_changed", "args_repaired"}))
    items = list(world.after(turn))
    first = turn.echo.calls[0]
    calls = (replace(first, arguments='{"unlike": "all others"}'), *turn.echo.calls[1:])
    items[-1] = replace(turn.echo, calls=calls)
    path = chain(world, turn)
    copies = [t for t in world.turns if any(t.key_exact == p.key_exact for p in path)]
    assume(len(copies) == len(path))  # else an equal sibling may be meant
    found = world.forest.attach(ask((*items, NEXT), turn.head), asked)
    assert found.parent == turn
    assert found.tail == (NEXT,)
    assert set(found.drift) == {"edit_retained", "args_changed"}
