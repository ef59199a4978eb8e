"""The table of failure modes: its tests exist, its mutations fit our code. `tests/mutants/run.py` runs them."""

from __future__ import annotations

import re
from pathlib import Path

from mutants.page import page
from mutants.run import verdicts
from mutants.table import TABLE, load, problems

PAGE = Path(__file__).resolve().parents[2] / "docs" / "failure-modes.md"


def test_every_code_has_a_mutation_that_fits_or_a_reason() -> None:
    assert problems(load()) == []


def test_faults_of_a_table_are_named(tmp_path: Path) -> None:
    text = TABLE.read_text("utf-8")
    for old, new, says in (
        ("F76", "F77", "in order"),
        ('file = "src/tugline/forest/keys.py"', 'file = "src/tugline/forest/nothing.py"', "no source file"),
        ("test_attach.py::test_null_and_empty", "test_attach.py::test_nothing", "no test"),
        ('old = "        sampled=taken.ids,\\n"', 'old = "taken"', "times in"),
    ):
        assert old in text
        file = tmp_path / "table.toml"
        file.write_text(text.replace(old, new))
        assert any(says in problem for problem in problems(load(file))), says


def test_a_mutant_counts_as_killed_by_failed_tests_only() -> None:
    tests = ("a::x", "a::y")
    assert verdicts(tests, {"a::x": "call failed", "a::y[1]": "call passed", "a::y[2]": "call failed"}) == {
        "a::x": "red",
        "a::y": "red",
    }
    assert verdicts(tests, {"a::x": "call passed"}) == {"a::x": "green", "a::y": "did not run"}
    assert verdicts(tests, {"a": "collect failed"}) == {"a::x": "broken", "a::y": "broken"}
    assert verdicts(("a::x",), {"a::x": "setup failed"}) == {"a::x": "setup failed"}
    assert verdicts(("a::x",), {"a::x": "call skipped"}) == {"a::x": "did not run"}


def test_the_page_was_made_of_this_table() -> None:
    modes = list(load().values())
    fresh = page(modes, {}, {}, "x").replace(" **survived**", "")
    rows = [line for line in fresh.splitlines() if line.startswith("| ")]
    assert [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")] == rows
    assert re.search(r"at commit `[0-9a-f]{10}`", PAGE.read_text("utf-8"))
