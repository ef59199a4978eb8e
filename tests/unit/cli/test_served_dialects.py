"""APIs of other packages are served beside ours."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tugline.cli.wiring import served_dialects
from tugline.core.errors import ConfigError
from tugline.dialects import DIALECTS

MODULE = """
from tugline.dialects import ChatDialect

class Own(ChatDialect):
    name = "own"

class Taken(ChatDialect):
    pass
"""


def install(folder: Path, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as pip leaves one."""
    info = folder / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tugline.dialects]\nown = {value}\n")
    (folder / "own_dialect_of_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


def test_an_installed_dialect_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served_dialects() == DIALECTS
    install(tmp_path, "own_dialect_of_a_test:Own", monkeypatch)
    assert [d.name for d in served_dialects()] == [*(d.name for d in DIALECTS), "own"]


@pytest.mark.parametrize(
    ("value", "words"), [("no_such:X", "cannot be loaded"), ("own_dialect_of_a_test:Taken", "there already")]
)
def test_a_broken_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, words: str) -> None:
    install(tmp_path, value, monkeypatch)
    with pytest.raises(ConfigError, match=words) as caught:
        served_dialects()
    assert "tugline.dialects: own" in caught.value.where
