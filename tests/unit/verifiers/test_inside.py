# ruff: noqa: E501 - sources as text
"""The programs that run inside: old Pythons read them, and their parts do what they say."""

from __future__ import annotations

import ast

import pytest

from tugline.core.errors import VerifierError
from tugline.verifiers import results
from tugline.verifiers.canaries import plant
from tugline.verifiers.pytest_runner import _programs
from tugline.verifiers.pytest_tests import static_ids


def test_what_is_sent_is_python_3_6(tmp_path):
    _programs(tmp_path / "judge")
    for file in (tmp_path / "judge").iterdir():
        tree = ast.parse(file.read_text(), feature_version=(3, 6))
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.AnnAssign | ast.NamedExpr | ast.Match)]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                assert node.returns is None
                assert not [a for a in (*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs) if a.annotation]
            assert not (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def test_canaries_stand_behind_the_text_and_all_fail():
    import random

    text = b"import math\n\n\ndef test_one():\n    pass"
    made = plant(text, random.Random(1))
    assert made.data.startswith(text + b"\n")
    assert made.case in made.names
    assert len(made.names) == 3
    names: dict[str, object] = {}
    exec(compile(made.data, "x", "exec"), names)
    for name in made.names - {made.case}:
        with pytest.raises(AssertionError):
            names[name]()
    (cls,) = [v for k, v in names.items() if k.startswith("Test")]
    with pytest.raises(AssertionError):
        getattr(cls(made.case), made.case)()
    assert plant(text, random.Random(2)).names != made.names
    with pytest.raises(SyntaxError):
        plant(b"def x(:", random.Random(1))


def test_ids_that_a_file_must_have():
    text = (
        b"import unittest\nclass Base(unittest.TestCase):\n    def test_a(self): pass\nclass TestB:\n    def test_b(self): pass\n"
        b"    def helper(self): pass\nasync def test_c(): pass\ndef other(): pass\nclass C:\n    def test_d(self): pass\n"
    )
    assert static_ids("t.py", text) == ["t.py::Base::test_a", "t.py::TestB::test_b", "t.py::test_c"]


def message(kind: str, **more: object) -> dict[str, object]:
    return {"t": kind, **more}


def run(*messages: dict[str, object], **more: object) -> results.Run:
    facts = {"forged": False, "code": 0, "late": False, "strays": 0, "changed": []} | more
    return results.Run("t.py", list(messages), **facts)


GOOD = [message("test", id="t.py::test_a", outcome="passed"), message("test", id="t.py::test_canary", outcome="failed")]
END = message("end", code=1)


@pytest.mark.parametrize(
    ("one", "passed", "flags", "marks"),
    [
        (run(*GOOD, END), True, set(), set()),
        (run(*GOOD), False, set(), {"early_exit"}),
        (run(GOOD[0], END), True, {"canary_passed"}, set()),
        (run(GOOD[0], message("test", id="t.py::test_canary", outcome="passed"), END), True, {"canary_passed"}, set()),
        (run(GOOD[0], message("test", id="t.py::test_canary", outcome="error"), END), True, {"canary_passed"}, set()),
        (run(*GOOD, GOOD[0], END), True, {"forged_results"}, set()),
        (run(*GOOD, END, forged=True), True, {"forged_results"}, set()),
        (run(*GOOD, END, changed=["t.py"]), True, {"tests_changed"}, set()),
        (run(*GOOD, late=True), False, set(), {"tests_timeout"}),
        (run(*GOOD, END, strays=2), True, set(), {"processes_left"}),
        (run(END), False, set(), set()),
        (run(message("tamper", what="always_equal", detail="X"), *GOOD, END), True, {"always_equal"}, set()),
    ],
)
def test_what_a_report_proves(one, passed, flags, marks):
    found = results.judge(results.Report([one], 1.0, "3"), {"t.py": {"test_canary"}})
    assert (found.passed("t.py::test_a"), found.flags, found.marks) == (passed, flags, marks)
    assert "t.py::test_canary" not in found.outcomes


def test_cut_ids_and_broken_reports():
    found = results.Results({"t.py::x[a b]": "passed", "t.py::x[a c]": "failed", "t.py::y[d e]": "passed"})
    assert not found.passed("t.py::x[a")
    assert found.passed("t.py::y[d")
    assert not found.passed("t.py::z[")
    for data in (b"", b"{}", b'{"runs": 1}', b'{"runs": []'):
        with pytest.raises(VerifierError):
            results.decode(data)
