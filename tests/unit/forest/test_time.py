"""What a hostile request costs: time in proportion to its length, never to the square of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tugline.cli.edits import BILLING_HEADER, TOTAL_TOKENS
from tugline.core.columns import Ids, ids
from tugline.core.contracts import TextFilter
from tugline.core.items import Assistant, Head, Item, Request, ToolCall, UserText
from tugline.forest import quotes
from tugline.forest.forest import Forest
from tugline.forest.rules import DEFAULT
from tugline.trajectory.audit import Words, compare
from unit.forest.driver import DIGEST, Session

TIMES = 8
"""Work that grows eightfold costs eight times as much, not 64 times."""
ALLOWED = 24


def growth(work: Callable[[int], object], n: int) -> float:
    """How much longer TIMES * n takes than n: the best of three each, for the machine does other things too."""

    def best(size: int) -> float:
        taken = []
        for _ in range(3):
            begun = time.thread_time()
            work(size)
            taken.append(time.thread_time() - begun)
        return min(taken)

    return best(TIMES * n) / best(n)


def talk(n: int) -> tuple[Item, ...]:
    return tuple(item for i in range(n) for item in (UserText(f"ask {i}"), Assistant(f"say {i}")))


def test_a_history_that_nobody_here_said() -> None:
    forest = Forest("ses", DIGEST)
    request = {n: Request("m", Head(), talk(n)) for n in (1000, 1000 * TIMES)}
    assert growth(lambda n: forest.attach(request[n]), 1000) < ALLOWED


def test_one_history_behind_each_of_many_retained_edits() -> None:
    forest = Forest("ses", DIGEST)
    rules = replace(DEFAULT, retained=frozenset({"text_changed"}))
    request = {n: Request("m", Head(), talk(n)) for n in (1000, 1000 * TIMES)}
    assert growth(lambda n: forest.attach(request[n], rules), 1000) < ALLOWED


@pytest.mark.parametrize("arguments", ["{} {", '{"a": 1'])
def test_a_history_whose_first_call_is_another_call_of_one_key(arguments: str) -> None:
    """Every turn of the conversation has the key of what comes in, and none is meant."""

    def conversation(n: int) -> tuple[Session, Request]:
        session = Session()
        items: tuple[Item, ...] = (UserText("go"),)
        said = Assistant("", None, (ToolCall("c", "bash", arguments),))
        for i in range(n):
            turn = session.call(items, said)
            items = (*items, turn.echo, UserText(f"more {i}"))
            said = Assistant(f"say {i}")
        other = replace(said, text="", calls=(ToolCall("c", "bash", "rm -rf ("),))
        return session, session.request((items[0], other, *items[2:]))

    made = {n: conversation(n) for n in (100, 100 * TIMES)}

    def attach(n: int) -> None:
        session, request = made[n]
        assert session.forest.attach(request).parent is None

    assert growth(attach, 100) < ALLOWED


@pytest.mark.parametrize("shipped", [TOTAL_TOKENS, BILLING_HEADER], ids=lambda f: f.name)
@pytest.mark.parametrize("text", [" ", "\n", "<total_tokens>", " <total_tokens>", "x-anthropic-billing-header:", "<"])
def test_a_shipped_filter_over_any_run_of_what_it_looks_for(shipped: TextFilter, text: str) -> None:
    pattern = re.compile(shipped.pattern)
    assert growth(lambda n: pattern.sub("", text * n), 4000) < ALLOWED


def test_the_filter_still_takes_the_blanks_in_front() -> None:
    pattern = re.compile(TOTAL_TOKENS.pattern)
    one = "<total_tokens>5 left</total_tokens>"
    assert pattern.sub("", f"text \n {one}\n\n{one} end{one}") == "text end"


def test_a_reply_of_many_lines_is_looked_for_by_its_longest_ones() -> None:
    text = "words that do not match, " * 4000
    lines = "\n".join(f"this is line {i} of a long reply" for i in range(8000))
    begun = time.thread_time()
    assert not quotes.quotes(text, lines)
    assert time.thread_time() - begun < 0.5
    assert quotes.quotes(
        text + "a line that is much longer than others", lines + "\na line that is much longer than others"
    )


def test_a_prompt_of_many_turns_beside_a_render_that_differs_everywhere() -> None:
    words = Words(frozenset({1, 2}), (None, None), lambda c: " ".join(map(str, np.frombuffer(c, "<i4"))))

    def sides(n: int) -> tuple[Ids, Ids]:
        ours = [x for i in range(n) for x in (1, 10, 1000 + i, 2, 1, 11, 200_000 + i % 50, 2)]
        theirs = [x for i in range(n) for x in (1, 10, 1000 + i, 2, 1, 11, 300_000 + i % 50, 2)]
        return ids(ours), ids(theirs)

    made = {n: sides(n) for n in (150, 150 * TIMES)}
    assert growth(lambda n: compare(*made[n], [], words), 150) < ALLOWED
    found = compare(*made[150], [], words)
    assert len(found) == 150
    assert {(d.kind, d.prompt.split()[0], d.rendered.split()[0]) for d in found} == {("context_text", "11", "11")}
