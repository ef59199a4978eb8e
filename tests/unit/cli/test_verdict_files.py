"""Verdict files: whole or absent, shared by processes, dropped when the code changes, never an error."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tugline.cli import verdicts
from tugline.cli.verdicts import FileVerdicts


def test_what_is_put_is_got_by_another_reader(tmp_path: Path) -> None:
    FileVerdicts(tmp_path).put("a", b"one")
    FileVerdicts(tmp_path).put("a", b"two")
    assert FileVerdicts(tmp_path).get("a") == b"two"
    assert FileVerdicts(tmp_path).get("b") is None
    assert [p.suffix for p in (tmp_path / "templates").iterdir()] == [".json"]


def test_another_library_version_is_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FileVerdicts(tmp_path).put("a", b"one")
    monkeypatch.setattr(verdicts, "version", lambda name: "0.0")
    assert FileVerdicts(tmp_path).get("a") is None


def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    kept = FileVerdicts(tmp_path / "file" / "below")
    kept.put("a", b"one")
    assert kept.get("a") is None
    (tmp_path / "templates").mkdir()
    one = FileVerdicts(tmp_path)
    one._file("a").mkdir()
    one.put("a", b"x")
    assert one.get("a") is None
    assert [p.is_dir() for p in (tmp_path / "templates").iterdir()] == [True], "no part is left behind"


def _write(folder: str, letter: str) -> None:
    kept = FileVerdicts(Path(folder))
    for _ in range(50):
        kept.put("a", letter.encode() * 100_000)
        found = kept.get("a")
        assert found is not None and len(found) == 100_000 and len(set(found)) == 1


def test_two_processes_at_once(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    others = [spawn.Process(target=_write, args=(str(tmp_path), letter)) for letter in "xy"]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert [other.exitcode for other in others] == [0, 0]
