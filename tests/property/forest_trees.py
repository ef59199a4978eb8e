"""Random conversation trees for property tests, driven through a real forest."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from tugline.core.items import Assistant, Head, Item, System, Tool, ToolCall, ToolResult, UserText
from tugline.core.turn import Turn
from unit.trajectory.world import Said, World, ask

text = st.text(max_size=12)
NUMBERS = ("1.0", "1e3", "1000", "-0.0", "-0", "0", "9007199254740993", "123456789012345678901", "0.1", "1E-7", "2.50")
TRUTHS = ("true", "false", "null")
HEADS = (Head(), Head((Tool("bash", '{"name":"bash"}'),)), Head((Tool("bash", '{"name":"bash"}'),), '{"a":1}'))


@st.composite
def spelled(draw: st.DrawFn, depth: int = 2) -> str:
    """JSON text of some value, spelled as models do: blanks, escapes, odd numbers, integer-like keys."""
    gap = draw(st.sampled_from(["", " ", "\n  "]))
    kind = draw(st.sampled_from(["number", "string", "truth", "list", "object"] if depth else ["number", "string"]))
    if kind == "number":
        return draw(st.sampled_from(NUMBERS))
    if kind == "truth":
        return draw(st.sampled_from(TRUTHS))
    if kind == "string":
        return json.dumps(draw(text), ensure_ascii=draw(st.booleans()))
    if kind == "list":
        return f"[{gap}" + f"{gap},".join(draw(st.lists(spelled(depth - 1), max_size=3))) + "]"
    return draw(objects(depth - 1))


@st.composite
def objects(draw: st.DrawFn, depth: int = 2) -> str:
    gap = draw(st.sampled_from(["", " ", "\n  "]))
    keys = draw(st.lists(st.sampled_from(["k", "é", "10", "2", "a b", 'q"', ""]), max_size=4, unique=True))
    pairs = [f"{json.dumps(k, ensure_ascii=draw(st.booleans()))}{gap}: {draw(spelled(depth))}" for k in keys]
    return "{" + gap + f",{gap}".join(pairs) + gap + "}"


@st.composite
def replies(draw: st.DrawFn, serial: int) -> Assistant:
    """Call ids are unique in a session, texts and arguments are not."""
    arguments = draw(st.lists(objects() | st.just(""), max_size=2))
    calls = tuple(ToolCall(f"call_{serial}_{n}", "bash", a) for n, a in enumerate(arguments))
    said = draw(st.sampled_from([None, "ok", " ok\n", "é"]))
    return Assistant(said, draw(st.none() | st.sampled_from(["think", " think "])), calls)


@st.composite
def tails(draw: st.DrawFn, reply: Assistant | None) -> tuple[Item, ...]:
    """What a harness appends: results in any order, user text, now and then an assistant turn of its own."""
    results: list[Item] = [ToolResult(c.id, draw(text)) for c in reply.calls] if reply else []
    out: list[Item] = list(draw(st.permutations(results)))
    if draw(st.integers(0, 9)) == 0:
        out += [Assistant("[made by the harness]"), UserText("go on")]
    if not out or draw(st.booleans()):
        out.append(UserText(draw(text)))
    return tuple(out)


@st.composite
def said(draw: st.DrawFn, serial: int) -> Said:
    return Said(
        draw(replies(serial)),
        finish=draw(st.sampled_from(["stop", "stop", "length"])),
        trim=draw(st.booleans()),
        untrainable=draw(st.sampled_from([None, None, None, None, "engine_echo_mismatch"])),
        role=draw(st.sampled_from(["main", "main", "main", "subagent", "auxiliary"])),
        versions=draw(st.sampled_from([((0, 1),), ((0, 1), (1, 2)), ((0, 2),)])),
    )


@st.composite
def worlds(draw: st.DrawFn, most: int = 9) -> World:
    """A session: every step extends any earlier turn or starts anew; some steps are concurrent siblings."""
    world = World()
    while len(world.said) < draw(st.integers(1, most)):
        serial = len(world.said)
        turns = world.turns
        parent: Turn | None = draw(st.none() | st.sampled_from(turns)) if turns else None
        head = world.said[parent.turn_id][0] if parent else draw(st.sampled_from(HEADS))
        start = world.after(parent) if parent else (System("be brief"),)
        request = ask((*start, *draw(tails(parent.echo if parent else None))), head)
        several = draw(st.sampled_from([1, 1, 1, 2, 3]))
        made = [world.sample(request, draw(said(10 * serial + n)), seed=n) for n in range(several)]
        for turn in draw(st.permutations(made)):  # all attached before any was committed
            world.commit(request, turn)
    return world


def chain(world: World, turn: Turn) -> list[Turn]:
    """Root to turn."""
    out: list[Any] = [turn]
    while out[-1].parent is not None:
        out.append(world.forest.turns[out[-1].parent])
    return out[::-1]
