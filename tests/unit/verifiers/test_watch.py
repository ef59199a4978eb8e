"""What a worker watches, on modules made for it: who stands where a test's library stood."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from tugline.verifiers.inside.watch import Checkers, Files

LIBRARY = """def inner(a, b):
    return a == b


def assert_same(a, b):
    assert inner(a, b)


class Frame:
    pass
"""
TEST = b"""import helplib
import helplib as h
from helplib import assert_same as same
from helplib import Frame


def test_x():
    same(1, 1)
    h.assert_same(1, 1)
    helplib.assert_same(2, 2)
    helplib.inner(2, 2)
    Frame()
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    file = tmp_path / "site" / "helplib.py"
    file.parent.mkdir()
    file.write_text(LIBRARY)
    module = ModuleType("helplib")
    module.__file__ = str(file)
    exec(compile(LIBRARY, str(file), "exec", dont_inherit=True), vars(module))
    monkeypatch.setitem(sys.modules, "helplib", module)
    return module


def altered(library, tmp_path):
    files = Files(lambda name: name.startswith(f"{tmp_path}/site/"))
    return Checkers(TEST, lambda code: not files.genuine(code)).altered()


def put(library, tmp_path, where, name, source):
    """A function of the agent's in a library's place; `where`: the file that its code names."""
    names: dict[str, object] = {"__name__": "helplib"}
    exec(compile(source, where, "exec", dont_inherit=True), names)
    setattr(library, name, names[name])


def test_a_library_as_it_is(library, tmp_path):
    assert altered(library, tmp_path) == []


@pytest.mark.parametrize("where", ["own file", "no file", "the library's file"])
def test_a_checker_of_the_agents(library, tmp_path, where):
    (tmp_path / "agent.py").write_text("def assert_same(a, b):\n    pass\n")
    file = {"own file": str(tmp_path / "agent.py"), "no file": "<string>", "the library's file": library.__file__}[
        where
    ]
    put(library, tmp_path, file, "assert_same", "def assert_same(a, b):\n    pass\n")
    assert altered(library, tmp_path) == ["h.assert_same", "helplib.assert_same", "same"]


def test_a_function_that_a_checker_uses(library, tmp_path):
    put(library, tmp_path, library.__file__, "inner", "def inner(a, b):\n    return True\n")
    assert altered(library, tmp_path) == ["h.assert_same", "helplib.assert_same", "same"]


def test_code_put_into_a_function_and_a_wrapper_around_it(library, tmp_path):
    def loose(a, b):
        pass

    library.assert_same.__code__ = loose.__code__
    assert len(altered(library, tmp_path)) == 3


def test_what_wraps_is_looked_through(library, tmp_path):
    put(library, tmp_path, library.__file__, "inner", LIBRARY)
    real = library.assert_same
    put(library, tmp_path, "<string>", "assert_same", "def assert_same(a, b):\n    pass\n")
    library.assert_same.__wrapped__ = real
    assert len(altered(library, tmp_path)) == 3


def test_a_file_that_is_gone_or_no_python_holds_nothing(library, tmp_path):
    files = Files(lambda name: True)
    code = library.assert_same.__code__
    assert files.genuine(code)
    broken = tmp_path / "broken.py"
    broken.write_text("def (")
    assert not files.genuine(code.replace(co_filename=str(broken)))
    assert not files.genuine(code.replace(co_filename=str(tmp_path / "none.py")))
    assert not Files(lambda name: False).genuine(code)
