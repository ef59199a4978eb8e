"""Reading around damage: intact generations are found, hidden ones are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tugline.core.columns import floats, ids
from tugline.core.contracts import JournalEntry
from tugline.core.errors import VerifyError
from tugline.engines.journal import JournalIndex, JournalWriter, journal_path


def journal(tmp_path: Path) -> Path:
    path = journal_path(tmp_path, "0001-aaaaaa")
    writer = JournalWriter(path)
    for n in range(4):
        writer.append(
            JournalEntry(f"0001-aaaaaa.{n}", f"ses_{n}", ids([1, 2, n]), ids([5]), floats([-1.0]), "stop", ((0, 0),))
        )
    writer.flush()
    writer.close()
    return path


def test_one_damaged_record_hides_one_generation(tmp_path: Path) -> None:
    path = journal(tmp_path)
    data = bytearray(path.read_bytes())
    at = data.index(b"ses_1")
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(VerifyError, match="checksum"):
        JournalIndex(tmp_path)
    index = JournalIndex(tmp_path, strict=False)
    assert [index.get(f"0001-aaaaaa.{n}") is not None for n in (0, 2, 3)] == [True] * 3
    with pytest.raises(VerifyError, match=r"0001-aaaaaa\.1: not readable.*at byte"):
        index.get("0001-aaaaaa.1")


def test_an_unknown_generation_of_a_sound_journal_is_simply_absent(tmp_path: Path) -> None:
    journal(tmp_path)
    assert JournalIndex(tmp_path, strict=False).get("0001-aaaaaa.9") is None
