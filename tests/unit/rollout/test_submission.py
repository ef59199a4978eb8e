"""Stored submissions as somebody else may have left them: read as far as they are what they should be."""

from __future__ import annotations

import msgspec
import pytest
import zstandard

from tugline.core.errors import RunError
from tugline.rollout import submission
from tugline.rollout.manifest import Change
from tugline.rollout.submission import CHANGES, FILES, OUTSIDE, Submission


def test_what_is_kept_is_read_again(tmp_path):
    work = Submission((Change("a/b..c", "added"), Change("...", "deleted")), b"t" * 3_000_000, b"o")
    submission.keep(work, tmp_path / "s")
    assert submission.stored(tmp_path / "s") == work


@pytest.mark.parametrize("name", [FILES, OUTSIDE])
@pytest.mark.parametrize("sized", [True, False], ids=["its head says its size", "no size"])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, name, sized):
    monkeypatch.setattr(submission, "MAX_FILES", 1 << 20)
    submission.keep(Submission((), b"t", b"o"), tmp_path)
    packer = zstandard.ZstdCompressor(write_content_size=sized)
    (tmp_path / name).write_bytes(packer.compress(bytes(64 << 20)))
    with pytest.raises(RunError):
        submission.stored(tmp_path)


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/etc/passwd", "a/..", "", "a\0b"])
def test_paths_that_leave_the_work_directory_are_refused(tmp_path, path):
    submission.keep(Submission((Change("fine", "added"),), b"t"), tmp_path)
    (tmp_path / CHANGES).write_bytes(msgspec.json.encode([Change(path, "deleted")]))
    with pytest.raises(RunError):
        submission.stored(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\0", b"[{}]", b"not zstd"])
@pytest.mark.parametrize("name", [CHANGES, FILES])
def test_damage_is_said(tmp_path, name, damage):
    submission.keep(Submission((Change("fine", "added"),), b"t" * 100_000), tmp_path)
    (tmp_path / name).write_bytes(damage)
    with pytest.raises(RunError):
        submission.stored(tmp_path)
