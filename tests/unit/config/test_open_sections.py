"""Sections whose keys are people's own: [engines.NAME] and [models.routes]."""

from __future__ import annotations

from pathlib import Path

import pytest

from tugline.config.load import dump_toml, load
from tugline.core.errors import ConfigError

TEXT = """
[engines.judge]
spec = "scripted:judge.jsonl"
slots = 4

[engines.teacher]
model = "m"

[models.routes]
"gemini-2.5-*lite" = "judge"
'odd "name"' = "teacher"
"""


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "f.toml"
    path.write_text(text, "utf-8")
    return path


def test_engines_and_routes_are_read_in_order(tmp_path: Path) -> None:
    loaded = load(file(tmp_path, TEXT), {}, {})
    settings = loaded.settings
    assert settings.engines["judge"].spec == "scripted:judge.jsonl" and settings.engines["judge"].slots == 4
    assert settings.engines["teacher"].model == "m" and settings.engines["teacher"].spec == "embedded"
    assert list(settings.models.routes.items()) == [("gemini-2.5-*lite", "judge"), ('odd "name"', "teacher")]
    assert loaded.flat()["engines.judge.slots"] == 4
    assert loaded.flat()["models.routes.gemini-2.5-*lite"] == "judge"


def test_they_survive_being_written(tmp_path: Path) -> None:
    settings = load(file(tmp_path, TEXT), {}, {}).settings
    assert load(file(tmp_path, dump_toml(settings)), {}, {}).settings == settings


def test_variables_and_flags_reach_them() -> None:
    settings = load(None, {"TUGLINE_ENGINES__JUDGE__SPEC": "embedded"}, {"models.routes.a.b*": "judge"}).settings
    assert list(settings.engines) == ["judge"] and settings.models.routes == {"a.b*": "judge"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[engines.judge]\nslot = 4", "unknown setting 'engines.judge.slot'"),
        ("[engines.judge]\nslots = 0", "outside"),
        ('[engines."a b"]\nslots = 1', "unknown setting"),
        ("[engines]\njudge = 1", "unknown setting 'engines.judge'"),
        ("[models.routes]\nx = 1", "is not text"),
        ('[models]\nroute = "x"', "unknown setting"),
        ('[gateway]\nmedia = "drop"', "none of: omit, refuse"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(file(tmp_path, text), {}, {})


def test_empty_sections_set_nothing(tmp_path: Path) -> None:
    assert load(file(tmp_path, "[engines]\n[models.routes]\n"), {}, {}).settings.engines == {}
