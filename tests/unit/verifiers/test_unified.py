"""Diffs applied outside say what git and patch say."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tugline.verifiers.unified import PatchError, apply, parse, touched

LINES = st.lists(st.sampled_from(["a", "b", "", "  c", "-d", "+e", "\\ f", "\f", "é"]), max_size=12)


@given(LINES, LINES, st.booleans(), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_same_as_git(tmp_path_factory, old, new, old_end, new_end):
    top = tmp_path_factory.mktemp("diff")
    before = ("\n".join(old) + "\n" * old_end).encode()
    after = ("\n".join(new) + "\n" * new_end).encode()
    (top / "a").mkdir()
    (top / "b").mkdir()
    (top / "a" / "x").write_bytes(before)
    (top / "b" / "x").write_bytes(after)
    diff = subprocess.run(
        ["git", "diff", "--no-index", "--no-color", "--no-prefix", "a/x", "b/x"], cwd=top, capture_output=True
    )
    assert apply(diff.stdout.decode(), {"x": before}) == ({} if before == after else {"x": after})


def test_new_removed_and_renamed_files():
    diff = (
        "diff --git a/new.py b/new.py\nnew file mode 100644\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+a\n+b\n"
        "diff --git a/old.py b/old.py\ndeleted file mode 100644\n--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/from.py b/to.py\nsimilarity index 100%\nrename from from.py\nrename to to.py\n"
        "diff --git a/empty.py b/empty.py\nnew file mode 100644\nindex 0000000..e69de29\n"
    )
    assert apply(diff, {"old.py": b"x\n", "from.py": b"f\n"}) == {
        "new.py": b"a\nb\n", "old.py": None, "from.py": None, "to.py": b"f\n", "empty.py": b"",
    }  # fmt: skip
    assert touched(diff) == ["new.py", "old.py", "from.py", "to.py", "empty.py"]


def test_a_hunk_whose_lines_moved_is_found_and_one_that_does_not_fit_is_refused():
    diff = "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    assert apply(diff, {"x": b"zero\none\ntwo\n"}) == {"x": b"zero\none\n2\n"}
    for content in (b"one\nthree\n", b"one\ntwo\nx\none\ntwo\n"[4:] + b"one\ntwo\n", b""):
        with pytest.raises(PatchError, match="does not fit"):
            apply(diff, {"x": content})
    with pytest.raises(PatchError, match="is not there"):
        apply(diff, {})
    with pytest.raises(PatchError, match="is cut"):
        parse("--- a/x\n+++ b/x\n@@ -1,5 +1,2 @@\n one\n")
