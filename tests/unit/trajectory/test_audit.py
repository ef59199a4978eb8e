"""Differences between a prompt and the template's whole render, and what each is called."""

from __future__ import annotations

import pytest

from tugline.core.columns import Ids, ids, ids_list
from tugline.trajectory.audit import Words, compare

START, END, THINK, UNTHINK, TOOL = 1, 2, 3, 4, 5
NAMES = {START: "<s>", END: "</s>", THINK: "<t>", UNTHINK: "</t>", TOOL: "<tool>"}
WORDS = Words(
    frozenset(NAMES), (THINK, UNTHINK), lambda column: "".join(NAMES.get(i) or chr(i) for i in ids_list(column))
)


def column(*parts: int | str) -> Ids:
    return ids(i for part in parts for i in ([part] if isinstance(part, int) else map(ord, part)))


ASKED = (START, "user hi", END, START, "model ")


def found(prompt: Ids, rendered: Ids, sampled: tuple[tuple[int, int], ...] = ()) -> list[tuple[str, int, str, str]]:
    return [(d.kind, d.position, d.prompt, d.rendered) for d in compare(prompt, rendered, sampled, WORDS)]


def test_the_same_and_the_same_text_in_other_ids() -> None:
    prompt = column(*ASKED, "yes", END)
    assert found(prompt, prompt) == []
    pair = Words(WORDS.controls, WORDS.reasoning, lambda c: WORDS.text(c).replace("Q", "ye"))
    assert compare(prompt, column(*ASKED, "Qs", END), (), pair) == ()


@pytest.mark.parametrize(
    ("rendered", "kind"),
    [
        (column(START, "user ho", END, START, "model ", "yes", END), "context_text"),
        (column(START, "user hi", END, END, START, "model ", "yes", END), "special"),
        (column(START, "user hi", START, "model ", "yes", END), "special"),
        (column(START, "user hi", END, START, "model ", "yes!", END), "assistant_text"),
        (column(START, "user hi", END, START, "model ", "ye", TOOL, "s", END), "assistant_text"),
    ],
)
def test_kinds(rendered: Ids, kind: str) -> None:
    prompt = column(*ASKED, "yes", END)
    sampled = (len(prompt) // 4 - 4, len(prompt) // 4)
    assert [k for k, *_ in found(prompt, rendered, (sampled,))] == [kind]


def test_positions_and_texts() -> None:
    prompt, rendered = column(START, "a", END, START, "b", END), column(START, "a", END, START, "c", END)
    assert found(prompt, rendered) == [("context_text", 4, "b", "c")]
    assert found(prompt, column(START, "a", END)) == [("special", 3, "<s>b</s>", "")]
    assert found(column(START, "a", END), prompt) == [("special", 3, "", "<s>b</s>")]


def test_reasoning_that_the_render_leaves_out() -> None:
    prompt = column(*ASKED, THINK, "why", UNTHINK, "\n\nyes", END, START, "user on", END)
    rendered = column(*ASKED, "yes", END, START, "user on", END)
    start = len(column(*ASKED)) // 4
    sampled = ((start, start + 11),)
    assert [kind for kind, *_ in found(prompt, rendered, sampled)] == ["reasoning_stripped"]
    other = column(*ASKED, "no", END, START, "user on", END)
    assert [kind for kind, *_ in found(prompt, other, sampled)] == ["assistant_text"]


def test_an_empty_reasoning_of_the_generation_prompt() -> None:
    prompt = column(*ASKED, THINK, "\n\n", UNTHINK, "\n\nyes", END)
    assert [kind for kind, *_ in found(prompt, column(*ASKED, "yes", END))] == ["reasoning_stripped"]


def test_lost_context_beside_stripped_reasoning_is_not_excused() -> None:
    prompt = column(START, "user hi", THINK, "why", UNTHINK, "there", END)
    assert [kind for kind, *_ in found(prompt, column(START, "user hi", END))] == ["special"]
