"""`tugline doctor template TARGET`: verdicts for people and programs, exit codes, and templates that mean harm."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from tugline.cli import doctor_template
from tugline.cli.judge import Request, judge
from tugline.cli.main import app
from tugline.core.errors import ConfigError
from unit.tokens.chat_kit import CHATML, DROPS_CALLS, REORDERS, STRIPPING, tokenizer_json

FIRST_ONLY = CHATML.replace("{%- for c in m.tool_calls or [] %}", "{%- for c in (m.tool_calls or [])[:1] %}")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUGLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def doctor(*words: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr)."""
    done = CliRunner().invoke(app, ["doctor", "template", *words], env={"COLUMNS": "200"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output
    return done.exit_code, done.stdout, done.stderr


def as_json(*words: str) -> tuple[int, dict[str, Any]]:
    status, out, _ = doctor(*words, "--json")
    return status, msgspec.json.decode(out)


def model_dir(folder: Path, template: str = STRIPPING) -> Path:
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    (folder / "chat_template.jinja").write_text(template)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (folder / "config.json").write_text('{"max_position_embeddings": 4096}')
    return folder


def jinja(folder: Path, text: str | bytes) -> str:
    file = folder / "chat.jinja"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(file)


def test_a_model_directory_in_words(tmp_path: Path, cache: Path) -> None:
    status, out, shown = doctor(str(model_dir(tmp_path / "m")))
    assert (status, out) == (0, "")
    promises = ("E always", "C always", "F counted", "S counted", "no template argument makes C = F")
    for word in ("bridge", "splice", *promises, "behind a turn may stand", "<|im_end|>", "P13", "e.g.", "do:"):
        assert word in shown, word
    assert len(list((cache / "templates").glob("*.json"))) == 1
    (kept,) = (cache / "templates").glob("*.json")
    kept.write_bytes(b"damaged")
    assert doctor(str(tmp_path / "m"))[0] == 0
    assert kept.read_bytes() != b"damaged"


def test_the_whole_verdict_for_programs(tmp_path: Path) -> None:
    status, found = as_json(str(model_dir(tmp_path / "m")), "--fuzz", "5")
    assert status == 0 and found["ok"]
    assert (found["parser"], found["structure_only"]) == ("qwen3", False)
    verdict = found["verdict"]
    assert (verdict["schema"], verdict["bridge"]) == (1, "splice")
    assert {p["code"] for p in verdict["promises"]} == set("ECFS")
    assert {r["status"] for r in verdict["results"]} <= {"pass", "fail", "note", "na"}
    assert found["fuzz"]["conversations"] == 5 and found["fuzz"]["compared"] > 10 and found["fuzz"]["silent"] == 0


@pytest.mark.parametrize(
    ("template", "sentence"),
    [(DROPS_CALLS, "drops calls"), (REORDERS, "moves text")],
    ids=["drops", "moves"],
)
def test_templates_that_cannot_show_tools_end_with_1(tmp_path: Path, template: str, sentence: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json())
    status, out, shown = doctor(jinja(tmp_path, template), "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert (status, out) == (1, "")
    assert "cannot show tools" in shown and sentence in shown


def test_a_template_of_one_call_per_turn_can_be_used_and_says_how(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json())
    status, out, shown = doctor(jinja(tmp_path, FIRST_ONLY), "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert (status, out) == (0, "")
    assert "only the first" in shown and "one by one" in shown


def test_a_template_alone_is_judged_by_its_structure(tmp_path: Path) -> None:
    status, found = as_json(jinja(tmp_path, CHATML))
    assert status == 0 and found["structure_only"]
    assert any("stand-in" in note for note in found["notes"])
    assert (found["verdict"]["close"], found["verdict"]["bridge"]) == ("<|im_end|>", "splice")
    assert "structure only" in doctor(jinja(tmp_path, CHATML))[2]


def test_a_template_with_another_models_tokenizer(tmp_path: Path) -> None:
    status, found = as_json(jinja(tmp_path, CHATML), "--tokenizer", str(model_dir(tmp_path / "m", "{{ 1 }}")))
    assert (status, found["structure_only"], found["verdict"]["append_only"]) == (0, False, True)


def test_a_directory_without_a_template_is_judged_with_another(tmp_path: Path) -> None:
    base = model_dir(tmp_path / "m")
    (base / "chat_template.jinja").unlink()
    status, _, shown = doctor(str(base))
    assert status == 2 and "--template FILE" in shown
    status, found = as_json(str(base), "--template", jinja(tmp_path, CHATML))
    assert (status, found["parser"], found["verdict"]["append_only"]) == (0, "qwen3", True)
    assert doctor(jinja(tmp_path, CHATML), "--template", "x.jinja")[0] == 2


def test_a_directory_that_a_start_refuses_is_not_ok(tmp_path: Path) -> None:
    strange = CHATML.replace("<tool_call>", "<call>").replace("</tool_call>", "</call>")
    folder = str(model_dir(tmp_path / "m", strange))
    status, found = as_json(folder)
    assert (status, found["ok"], found["format_known"]) == (1, False, False)
    assert found["verdict"]["tools"]["representable"] and found["sources"]["parser"].startswith("nothing")
    assert "a start refuses this" in doctor(folder)[2]
    assert as_json(folder, "--parser", "plain")[0] == 0


def test_the_same_advice_stands_once(tmp_path: Path) -> None:
    shown = doctor(jinja(tmp_path, DROPS_CALLS))[2]
    assert shown.count("use a template of this family that shows tool calls") == 1
    assert "also P3_noargs_1" in shown


def test_a_tokenizer_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    status, _, shown = doctor(jinja(tmp_path, CHATML), "--tokenizer", str(tmp_path / "config.json"))
    assert status == 2 and "config.json: is no tokenizer.json" in shown


def test_a_shipped_model_by_name() -> None:
    status, found = as_json("pilot")
    assert (status, found["verdict"]["append_only"]) == (0, True)


def test_a_format_that_nobody_knows_is_no_reason_to_say_nothing(tmp_path: Path) -> None:
    strange = "{% for m in messages %}{{ '<|user|>' + m.content + '<|end|>' }}{% endfor %}"
    status, found = as_json(jinja(tmp_path, strange))
    assert (status, found["parser"]) == (1, "plain")
    assert any("the template itself writes" in note for note in found["notes"])


@pytest.mark.parametrize(
    "words",
    [
        ("nowhere",),
        ("pilot", "--tokenizer", "nowhere"),
        ("pilot", "--fuzz", "-1"),
        ("pilot", "--parser", "klingon"),
        ("pilot", "--stop", "<|nothing|>"),
    ],
)
def test_usage_ends_with_2(words: tuple[str, ...]) -> None:
    status, _, shown = doctor(*words)
    assert status == 2 and shown


def test_flags_of_a_template_need_a_template() -> None:
    done = CliRunner().invoke(app, ["doctor", "system", "--fuzz", "3"])
    assert done.exit_code == 2
    assert "template TARGET" in done.stderr


# --------------------------------------------------------------------------------------------------------------- harm


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x89PNG\r\n\x1a\n\xff\xfe" * 9, "not UTF-8"),
        (b"{{ a }}\0\0", "zero bytes"),
        (b"just words", "no Jinja template"),
        (b"", "no Jinja template"),
    ],
    ids=["binary", "zeros", "words", "empty"],
)
def test_what_is_no_template_is_said_so(tmp_path: Path, content: bytes, told: str) -> None:
    status, _, shown = doctor(jinja(tmp_path, content))
    assert status == 2 and told in shown


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "huge.jinja"
    with file.open("wb") as out:
        out.truncate(100 * 1024 * 1024)
    status, _, shown = doctor(str(file))
    assert status == 2 and "104,857,600 bytes" in shown
    (tmp_path / "m").mkdir()
    file.rename(tmp_path / "m" / "chat_template.jinja")
    (tmp_path / "m" / "tokenizer.json").write_bytes(tokenizer_json())
    assert "are not read" in doctor(str(tmp_path / "m"))[2]


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**12) %}x{% endfor %}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{{ raise_exception('not like this') }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ 'a' * 10**11 }}",
        "{% for m in messages %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% include '/etc/passwd' %}",
    ],
    ids=["range", "recursion", "raises", "class", "globals", "memory", "unclosed", "nested", "include"],
)
def test_a_template_that_means_harm_gets_a_verdict_or_an_error(tmp_path: Path, template: str) -> None:
    begun = time.monotonic()
    status, _, shown = doctor(jinja(tmp_path, template))
    assert status in (1, 2) and shown
    assert "root:" not in shown and "<class" not in shown
    assert time.monotonic() - begun < 45


def test_a_template_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_template, "_LIMIT", 4)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    status, _, shown = doctor(jinja(tmp_path, loop))
    assert status == 2 and "longer than 4 s" in shown


def test_a_judge_that_dies_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killer = tmp_path / "python"
    killer.write_text("#!/bin/sh\nkill -9 $$\n")
    killer.chmod(0o755)
    monkeypatch.setattr(doctor_template.sys, "executable", str(killer))
    status, _, shown = doctor("pilot")
    assert status == 2 and "signal 9" in shown


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jinja")
    with pytest.raises(ConfigError, match="is no regular file"):
        judge(Request(str(tmp_path / "pipe.jinja")))


def test_a_cache_of_a_user_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUGLINE_CACHE", "~nosuchuser/cache")
    (tmp_path / "a.jinja").write_text(CHATML)
    status, _, said = doctor(str(tmp_path / "a.jinja"))
    assert status == 2
    assert "nosuchuser" in said
