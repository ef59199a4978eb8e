"""Contradicted tests: they look like tests, and fail where the work is right."""

from __future__ import annotations

import ast
from random import Random

import pytest

from tugline.verifiers.contradict import candidates, contradictable, edited
from tugline.verifiers.pytest_runner import ODDS, rounds

SOURCE = """import unittest
import pytest


def assert_allclose(a, b, atol=0):
    assert a == b or atol


def test_number():
    x = 3
    assert x == 3


def test_negative():
    assert -7 == -7


def test_text():
    assert "Ab1".lower() == "ab1"; y = 2


def test_nested():
    assert [1, ("a", 2.5), {"k": b"v"}] == [1, ("a", 2.5), {"k": b"v"}]


def test_no_literal():
    a = b = object()
    assert a is b
    assert not (a != b)


def test_membership():
    assert 3 in range(4)
    assert 5 not in range(4)
    assert 1 < 2


@pytest.mark.parametrize("n", [1, 2])
def test_parameters(n):
    assert n * 2 == n + n


@pytest.mark.skipif(True, reason="x")
def test_maybe_skipped():
    assert 1 == 1


def test_early_return():
    if pytest:
        return
    assert 1 == 1


def test_only_inside():
    for n in range(3):
        assert n < 3
    with pytest.raises(Exception):
        1 / 0


def test_raises():
    with pytest.raises(ValueError, match="invalid"):
        int("x")
    with pytest.raises(ZeroDivisionError):
        1 / 0


def test_helper():
    assert_allclose([2.0, 3.0], [2.0, 3.0])


def test_loose_helper():
    assert_allclose(2.0, 2.0, atol=99)


def test_many_lines():
    assert [
        1,
    ] == [1]


async def test_async():
    assert 1 == 1


class Case(unittest.TestCase):
    def test_equal(self):
        self.assertEqual(len("abc"), 3)

    def test_true(self):
        self.assertTrue(self)
        self.assertIsNotNone(self)

    def test_lists(self):
        self.assertListEqual([1, 2], [1, 2])

    def helper(self):
        self.assertEqual(1, 1)
"""
ALL = {
    n.name
    for n in ast.parse(SOURCE).body
    if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name.startswith("test")
} | {f"Case::{n}" for n in ("test_equal", "test_true", "test_lists")}
POSSIBLE = {
    "test_number", "test_negative", "test_text", "test_nested", "test_no_literal", "test_membership", "test_parameters",
    "Case::test_equal", "Case::test_true", "Case::test_lists", "test_raises", "test_helper",
}  # fmt: skip


def outcome(source: bytes, name: str) -> bool:
    """Whether a test of the source passes."""
    names: dict[str, object] = {}
    exec(compile(source, "x", "exec"), names)
    cls, _, method = name.rpartition("::")
    try:
        getattr(names[cls](method), method)() if cls else names[method](*([2] if "param" in name else []))  # type: ignore[operator]
    except (AssertionError, ValueError, ZeroDivisionError):
        return False
    return True


def contradict(source: bytes, names: set[str], rng: Random) -> tuple[bytes, frozenset[str]]:
    """A coin for each test, as a further run throws them."""
    (picked,) = rounds({"t.py": contradictable(source, names)}, rng)[:1] or [{"t.py": frozenset()}]
    return edited(source, picked["t.py"], rng), picked["t.py"]


def test_which_tests_can_be_contradicted():
    assert {name for name, _ in candidates(SOURCE.encode(), ALL)} == POSSIBLE
    assert candidates(SOURCE.encode(), {"test_number"})[0][0] == "test_number"


@pytest.mark.parametrize("seed", range(60))
def test_a_contradicted_test_fails_and_the_others_still_pass(seed):
    made, picked = contradict(SOURCE.encode(), ALL, Random(seed))
    assert picked <= POSSIBLE
    assert made.count(b"\n") == SOURCE.count("\n")
    for name in POSSIBLE:
        assert outcome(made, name) is (name not in picked), made.decode()


def test_every_kind_of_edit_occurs():
    texts = {contradict(SOURCE.encode(), ALL, Random(seed))[0].decode() for seed in range(300)}
    for piece in (
        "x == ",
        "is not b",
        "3 not in range",
        "1 >= 2",
        "n * 2 != n + n",
        "assertFalse(self)",
        "assertIsNone(",
        "== -8",
        "pytest.raises(TypeError",
        "pytest.raises(ImportError)",
    ):
        assert any(piece in text for text in texts), piece


def test_tests_that_cannot_be_contradicted_stay_as_they_are():
    assert contradictable(SOURCE.encode(), {"test_only_inside", "test_async"}) == frozenset()
    assert edited(SOURCE.encode(), {"test_only_inside", "test_async"}, Random(1)) == SOURCE.encode()
    twice = b"def test_a():\n    assert 1 == 1\n" * 2
    assert (contradictable(twice, {"test_a"}), edited(twice, {"test_a"}, Random(1))) == (frozenset(), twice)
    accents = "def test_é():\n    assert 'é1' == 'é1'  # é\n".encode()
    assert contradictable(accents, {"test_é"}) == {"test_é"}
    assert edited(accents, {"test_é"}, Random(1)) != accents


@pytest.mark.parametrize("count", [1, 2, 3, 4, 20])
def test_there_are_as_many_coins_as_it_takes(count):
    """Code that knows every run's number, and not its coins, is right as seldom as they are many."""
    possible = {"a.py": frozenset(f"t{n}" for n in range(count)), "b.py": frozenset()}
    made = [rounds(possible, Random(seed)) for seed in range(2000)]
    assert {len(plans) for plans in made} == {max(1, -(-ODDS // count))}
    assert all(any(p["a.py"] for p in plans) for plans in made)
    seen = [tuple(tuple(sorted(p["a.py"])) for p in plans) for plans in made]
    assert max(seen.count(one) for one in set(seen)) / len(seen) < 0.2
    assert rounds({"a.py": frozenset()}, Random(1)) == []
