"""Lists of work directories: what they say, how they differ, what is carried."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tugline.core.task import PYTHON_RESTORE, Carry
from tugline.rollout.manifest import (
    EMPTY,
    LIST,
    MAX_APPARENT,
    MAX_DEPTH,
    MAX_LINKS,
    TOO_LARGE,
    UNREAD,
    Change,
    Manifest,
    carried,
    compare,
    deep,
    fits,
    parse,
    stays_inside,
)


def listed(top):
    return parse(subprocess.run(["/bin/sh", "-c", LIST], cwd=top, capture_output=True, check=True).stdout)


def status(top):
    return subprocess.run(["/bin/sh", "-c", LIST], cwd=top, check=False, capture_output=True).returncode


@pytest.fixture
def tree(tmp_path):
    top = tmp_path / "work"
    (top / "a dir" / "empty").mkdir(parents=True)
    (top / "a dir" / "x.py").write_text("1")
    (top / "run.sh").write_text("2")
    (top / "run.sh").chmod(0o755)
    (top / "odd\nname\\ \xe9").write_text("3")
    (top / "link").symlink_to("a dir/x.py")
    return top


def test_a_tree_is_listed_whole(tree):
    os.mkfifo(tree / "pipe")
    found = listed(tree)
    assert {p: run for p, (_, run) in found.files.items()} == {
        "a dir/x.py": False, "run.sh": True, "odd\nname\\ \xe9": False,
    }  # fmt: skip
    assert (found.links, found.dirs, found.others) == ({"link": "a dir/x.py"}, {"a dir", "a dir/empty"}, {"pipe"})


@pytest.mark.parametrize("name", ["cut\rhere", "\r\n", "back\\slash", "tail\n", "*", "-rf", "\xff"])
def test_any_name_is_listed(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / name).write_text("1")
    found = listed(tmp_path)
    assert (set(found.files), found.dirs) == ({f"{name}/{name}"}, {name})
    assert (found.files[f"{name}/{name}"][0] == UNREAD) == bool(set("\r\n\\") & set(name))


def test_what_takes_too_long_to_list_says_so(tmp_path):
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", MAX_APPARENT - 5)
    (tmp_path / "six").write_text("123456")
    assert (
        subprocess.run(["/bin/sh", "-c", LIST], cwd=tmp_path, check=False, capture_output=True).returncode == TOO_LARGE
    )
    os.truncate(tmp_path / "hole", 8 << 40)
    assert (
        subprocess.run(["/bin/sh", "-c", LIST], cwd=tmp_path, check=False, capture_output=True).returncode == TOO_LARGE
    )
    (tmp_path / "hole").unlink()
    for n in range(MAX_LINKS):
        (tmp_path / f"l{n}").symlink_to("six")
    (tmp_path / "one").symlink_to("six")
    assert (
        subprocess.run(["/bin/sh", "-c", LIST], cwd=tmp_path, check=False, capture_output=True).returncode == TOO_LARGE
    )


def test_a_long_list_costs_no_more_than_its_length():
    """Whoever fills a tree with names must not stop everybody else's work."""
    names = [f"./{n}{'x' * 200}" for n in range(30_000)]
    data = "".join(f"{n}\0" for n in names) + "//\0" * 5 + "".join(f"{'0' * 64}  {n}/f\n" for n in names)
    began = time.process_time()
    found = parse(data.encode())
    changes = compare(EMPTY, found, "/app")
    taken, _ = carried(changes, Carry(restore=PYTHON_RESTORE))
    assert len(taken) == 60_000
    long = [Change("/".join([*("d" * MAX_DEPTH), str(n)]), "added") for n in range(2000)]
    carried([Change("d", "escape"), *long], Carry(restore=PYTHON_RESTORE))
    carried(long, Carry(restore=PYTHON_RESTORE))
    assert time.process_time() - began < 10
    assert deep(Manifest({}, {}, frozenset({"/".join("d" * (MAX_DEPTH + 1))}), frozenset()))
    assert not deep(found)


def test_nothing_lists_as_nothing(tmp_path):
    found = listed(tmp_path)
    assert not (found.files or found.links or found.dirs or found.others)


def test_every_kind_of_difference_is_named(tree):
    before = listed(tree)
    assert compare(before, before, "/app") == []
    (tree / "a dir" / "x.py").write_text("other")
    (tree / "run.sh").chmod(0o644)
    (tree / "new").mkdir()
    (tree / "new" / "file").write_text("")
    (tree / "link").unlink()
    (tree / "link").symlink_to("/tests/expected")
    (tree / "fine").symlink_to("../app/run.sh"[3:])
    (tree / "odd\nname\\ \xe9").unlink()
    os.mkfifo(tree / "pipe")
    assert {(c.path, c.kind) for c in compare(before, listed(tree), "/app")} == {
        ("a dir/x.py", "modified"), ("run.sh", "mode"), ("new", "dir"), ("new/file", "added"), ("link", "escape"),
        ("fine", "link"), ("odd\nname\\ \xe9", "deleted"), ("pipe", "special"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        ("x", "y", True), ("d/x", "../y", True), ("x", "../y", False), ("d/x", "../../y", False), ("x", "/app/y", True),
        ("x", "/app", True), ("x", "/application/y", False), ("x", "/tests/y", False), ("x", "/usr/bin/python3", True),
        ("x", "d/../../y", False), ("x", "/app/../tests", False), ("x", "/proc/self/fd", False), ("x", "/", False),
        ("d/e/x", "../../y", True), ("x", "./y/./z", True), ("x", "/home/agent/.ssh", False),
    ],
)  # fmt: skip
def test_links_that_lead_out(path, target, inside):
    assert stays_inside(path, target, "/app") is inside


@given(st.binary(max_size=200))
def test_any_bytes_parse_or_are_refused(data):
    with contextlib.suppress(ValueError):
        parse(data)


def test_what_is_carried():
    changes = [
        Change(p, k) for p, k in (
            ("src/a.py", "modified"), ("conftest.py", "added"), ("tests/conftest.py", "added"), ("src/x.pyc", "added"),
            ("evil.egg-info/entry_points.txt", "added"), (".git/config", "modified"), ("out", "escape"),
            ("tests/test_a.py", "modified"), ("docs/new\nline", "added"), ("src/gone.py", "deleted"),
        )
    ]  # fmt: skip
    taken, left = carried(changes, Carry(restore=(*PYTHON_RESTORE, "./tests/test_a.py")))
    assert [c.path for c in taken] == ["src/a.py", "src/gone.py"]
    assert len(left) == 8
    assert [c.path for c in carried(changes, None)[0]][:2] == [".git/config", "conftest.py"]
    assert [c.path for c in carried(changes, Carry(accept=("./src/*",)))[0]] == ["src/a.py", "src/gone.py", "src/x.pyc"]
    inner = [Change("src", "dir"), Change("src/d", "dir"), Change("src/d/x", "added"), Change("a.py", "dir"),
             Change("a.py/x", "added")]  # fmt: skip
    assert [c.path for c in carried(inner, Carry(("./src/*",)))[0]] == ["src/d", "src/d/x"]
    assert [c.path for c in carried(inner, Carry(restore=("./a.py",)))[0]] == ["src", "src/d", "src/d/x"]
    assert [c.path for c in carried([Change("bad\udcff", "added")], None)[1]] == ["bad\udcff"]
    assert fits("a/b/conftest.py", ("conftest.py",))
    assert not fits("a/conftest.py.txt", ("conftest.py",))
