"""Wire ids: legal everywhere, unique, and the model's own word for a call can be had back from them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core.ident import new_id
from tugline.tokens.callids import sampled_id, short_id, wire_id

LEGAL = re.compile(r"[a-zA-Z0-9_-]{1,128}")


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20), st.integers(0, 40))
def test_what_was_sampled_comes_back(sampled: str, place: int) -> None:
    stem = new_id("turn").removeprefix("turn_")
    wire = wire_id(stem, place, sampled)
    assert LEGAL.fullmatch(wire)
    kept = len(sampled.encode()) * 3 <= 96 and sampled != ""
    if kept:
        assert sampled_id(wire) == sampled
    elif sampled == "":
        assert wire == f"call_{stem}_{place}" == sampled_id(wire)


def test_what_is_no_id_of_ours_stays_as_it_is() -> None:
    for wire in ("toolu_01Ab", "call_abc", "call_1_0", "functions.run:3", "call_x_0_m-_zz", "call_x_0_m-a_2", ""):
        assert sampled_id(wire) == wire


def test_an_endless_id_is_not_kept() -> None:
    assert wire_id("abc", 1, "x" * 97) == "call_abc_1"
    assert sampled_id(wire_id("abc", 1, "x" * 96)) == "x" * 96


@pytest.mark.parametrize("wire", ["call_abc_0", "", "a" * 500, "\u65e5"])
def test_nine_letters(wire: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9]{9}", short_id(wire)) and short_id(wire) == short_id(wire)
    assert short_id(short_id(wire)) == short_id(wire)
    assert short_id(wire) != short_id(wire + "1")
