"""Contradicted tests: they look like tests, and fail where the work is right."""

from __future__ import annotations

import ast
from random import Random

import pytest

from tugline.verifiers.contradict import candidates, contradict

SOURCE = """import unittest
import pytest


def test_number():
    x = 3
    assert x == 3


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
    with pytest.raises(ZeroDivisionError):
        1 / 0


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
ALL = {n.name for n in ast.parse(SOURCE).body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)} | {
    f"Case::{n}" for n in ("test_equal", "test_true", "test_lists")
}
POSSIBLE = {
    "test_number", "test_text", "test_nested", "test_no_literal", "test_membership", "test_parameters",
    "Case::test_equal", "Case::test_true", "Case::test_lists",
}  # fmt: skip


def outcome(source: bytes, name: str) -> bool:
    """Whether a test of the source passes."""
    names: dict[str, object] = {}
    exec(compile(source, "x", "exec"), names)
    cls, _, method = name.rpartition("::")
    try:
        getattr(names[cls](method), method)() if cls else names[method](*([2] if "param" in name else []))  # type: ignore[operator]
    except AssertionError:
        return False
    return True


def test_which_tests_can_be_contradicted():
    assert {name for name, _ in candidates(SOURCE.encode(), ALL)} == POSSIBLE
    assert candidates(SOURCE.encode(), {"test_number"})[0][0] == "test_number"


@pytest.mark.parametrize("seed", range(60))
def test_a_contradicted_test_fails_and_the_others_still_pass(seed):
    made, picked = contradict(SOURCE.encode(), ALL, Random(seed))
    assert picked
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
    ):
        assert any(piece in text for text in texts), piece


def test_one_test_is_always_picked_and_none_where_there_is_none():
    for seed in range(20):
        assert contradict(SOURCE.encode(), {"test_number"}, Random(seed))[1] == {"test_number"}
    assert contradict(SOURCE.encode(), {"test_only_inside", "test_async"}, Random(1)) == (SOURCE.encode(), frozenset())
    twice = b"def test_a():\n    assert 1 == 1\n" * 2
    assert contradict(twice, {"test_a"}, Random(1)) == (twice, frozenset())
    assert contradict("def test_é():\n    assert 'é1' == 'é1'  # é\n".encode(), {"test_é"}, Random(1))[1] == {"test_é"}
