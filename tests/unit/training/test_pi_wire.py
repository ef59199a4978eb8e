"""Real Pi, real tools: its tool results are word for word what the format says. Needs Pi; see the skip reason."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tugline.training.pilot import capture
from tugline.training.pilot.actions import Action, Edit, Read, Run, Write
from tugline.training.pilot.desk import Bench
from tugline.training.pilot.formats import PiFormat

PI = os.environ.get("TUGLINE_TEST_PI", "")

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not PI, reason="set TUGLINE_TEST_PI to a directory whose node_modules holds Pi"),
]

FILES = {
    "router.cfg": "zone=ember\nsize=32\n",
    "empty.txt": "",
    "twice.txt": "otter\notter\n",
    "open.txt": "no newline",
}
ACTIONS: tuple[Action, ...] = (
    Read("router.cfg"),
    Read("/app/open.txt"),
    Read("empty.txt"),
    Read("missing.txt"),
    Read("."),
    Run("ls"),
    Run("cp 'router.cfg' 'notes.txt'"),
    Run("cp 'nothing.cfg' 'notes.txt'"),
    Run("mv 'nothing.cfg' 'notes.txt'"),
    Run("rm 'nothing.cfg'"),
    Run("echo 'tiger coral' >> 'notes.txt'"),
    Run("cat notes.txt"),
    Run("wc -l < 'notes.txt' > 'count.txt'"),
    Run("grep -l 'ember' *"),
    Run("grep -l 'velvet' *"),
    Run("pwd; nosuchcommand"),
    Run("printf open; exit 3"),
    Edit("router.cfg", "size=32", "size=33"),
    Edit("router.cfg", "size=34", "size=35"),
    Edit("router.cfg", "size=33", "size=33"),
    Edit("twice.txt", "otter", "raven"),
    Edit("missing.txt", "a", "b"),
    Write("deep/letter.md", "hello\n"),
    Write("/app/twice.txt", "once\n"),
    Run("ls; cat deep/letter.md twice.txt"),
)
REFUSED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("bash", {}),
    ("write", {"path": "x.txt"}),
    ("juggle", {"path": "x.txt"}),
)


def spread(work: Path) -> Path:
    work.mkdir()
    for name, text in FILES.items():
        (work / name).write_text(text)
    return work


def test_tool_results_word_for_word(tmp_path: Path) -> None:
    import json

    fmt = PiFormat(Path(PI))
    calls = [fmt.call(action) for action in ACTIONS]
    turns = [capture.ScriptedTurn(calls=((c.name, json.loads(c.arguments)),)) for c in calls]
    turns += [capture.ScriptedTurn(calls=((name, arguments),)) for name, arguments in REFUSED]
    pi = capture.find_pi(Path(PI))
    with capture.capture_server(turns) as server:
        capture.run_pi(pi, "Go.", server.url, spread(tmp_path / "pi"))
    real = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "tool"]

    assert pi.bwrap is not None
    bench = Bench(spread(tmp_path / "bench"), pi.bwrap)
    ours = [fmt.result(action, bench.do(action)) for action in ACTIONS]
    ours += [str(fmt.action(name, arguments)) for name, arguments in REFUSED]
    assert real == ours


def test_the_prompt_has_no_date_and_the_constant_paths() -> None:
    fmt = PiFormat(Path(PI))
    head = fmt.capture()
    assert fmt.capture() == head
    assert [tool["function"]["name"] for tool in head.tools] == ["read", "bash", "edit", "write"]
    other = fmt.variant(head, "/tmp/somewhere", "/usr/lib/pi")
    assert "\n/app\n" in head.system
    assert capture.INSTALL_DIR in head.system
    assert "\n/tmp/somewhere\n" in other.system
    assert capture.INSTALL_DIR not in other.system


@pytest.mark.timeout(180)
def test_the_recipe_runs_through_and_repeats(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from safetensors.torch import load_file
    from tokenizers import Tokenizer

    from tugline.training.pilot.recipe import Recipe, quick, train

    lines: list[str] = []
    for name in ("first", "again"):
        train(quick(Recipe()), PiFormat(Path(PI)), tmp_path / name, lines.append)
    first, again = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "again"))
    assert all((first[key] == again[key]).all() for key in first)
    assert (tmp_path / "first/tokenizer.json").read_bytes() == (tmp_path / "again/tokenizer.json").read_bytes()
    assert Tokenizer.from_file(str(tmp_path / "first/tokenizer.json")).get_vocab_size() == Recipe().shape.vocab
    assert lines
