"""docs/security.md says what the attacks say."""

from __future__ import annotations

from pathlib import Path

from redteam.__main__ import PAGE, page
from redteam.attacks import BOUNDARY, PYTEST
from redteam.failing import STOPS, TREES

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "verifiers.md"


def test_the_page_is_the_tables():
    assert PAGE.read_text("utf-8") == page(), "run PYTHONPATH=src:tests python -m redteam"


def test_every_mark_is_in_the_reference():
    text = REFERENCE.read_text("utf-8")
    for attack in (*BOUNDARY, *PYTEST, *STOPS, *TREES):
        for name in (attack.mark, f"!{attack.flag}" if attack.flag else None):
            assert name is None or f"| `{name}` |" in text, name
