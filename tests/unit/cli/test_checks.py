"""`tugline config check` refuses what a start would refuse, and says where it was set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tugline.cli.main import app


def check(file: Path, code: int) -> str:
    done = CliRunner().invoke(app, ["config", "check", str(file), "--json"])
    assert done.exit_code == code, done.output
    said = json.loads(done.stdout)
    return "ok" if code == 0 else str(said["error"]["message"])


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ('[models.routes]\n"small-*" = "teacher"\n', "", "models.routes.small-*: no engine 'teacher'"),
        ('[engine]\nspec = "vlm"\n', ":2", "engine.spec: 'vlm' is no engine"),
        ('[engine]\nspec = "scripted:/nope"\n', ":2", "engine.spec: /nope: cannot be read"),
        ('[engine]\nmodel = "/nope"\n', ":2", "engine.model: /nope is not a model directory"),
        ('[engines.teacher]\nspec = "scripted"\n', ":2", "engines.teacher.spec: name the script"),
        ('[engines.teacher]\nmodel = "/nope"\n', ":2", "engines.teacher.model: /nope is not"),
        ('[harness]\nname = "nope"\n', ":2", "harness.name: unknown harness 'nope'"),
    ],
)
def test_what_a_start_would_refuse(tmp_path: Path, text: str, place: str, words: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    said = check(file, 2)
    assert words in said and f"{file}{place}" in said, said


def test_a_good_file_is_ok_and_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "s.jsonl"
    script.write_text('{"text": "hi"}\n')
    file = tmp_path / "run.toml"
    file.write_text(f'[engine]\nspec = "scripted:{script}"\n[engines.t]\nslots = 2\n[models.routes]\nx = "t"\n')
    assert check(file, 0) == "ok"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.toml", "s.jsonl"]
