"""`tugline tasks check` as a command: exit codes, JSON, warnings."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tugline.cli.main import app
from tugline.cli.tasks_check import warnings
from tugline.tasks import load_tasks
from unit.tasks.kit import GOOD, make

SOLVED = {
    "tests/test.sh": "#!/bin/sh\n[ -f /app/done ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/sh\ntouch /app/done\n",
}


def check(*argv: str) -> tuple[int, dict]:
    done = CliRunner().invoke(app, ["tasks", "check", *argv, "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_a_good_task_and_a_bad_one(tmp_path):
    good, bad = make(tmp_path / "good", SOLVED), make(tmp_path / "bad", {"solution/solve.sh": "#!/bin/sh\n"})
    code, said = check(str(good), "-n", "2")
    if code == 2 and "sandbox" in str(said):
        pytest.skip(str(said))
    assert (code, said["ok"]) == (0, True)
    (task,) = said["tasks"]
    assert (task["oracle"], task["nothing"], task["flaky"], task["problems"]) == ([1.0, 1.0], [0.0, 0.0], [], [])
    code, said = check(str(good), str(bad), "-n", "1", "--keep", str(tmp_path / "kept"))
    assert (code, [t["ok"] for t in said["tasks"]]) == (1, [True, False])
    assert said["tasks"][1]["problems"] == ["nothing: reward 1, not 0"]
    assert (tmp_path / "kept" / "trials" / "good" / "oracle-0" / "verifier" / "reward.txt").read_text() == "1\n"


def test_reading_alone_and_what_cannot_be_read(tmp_path):
    good = make(tmp_path / "good")
    assert check(str(good), "--static") == (0, {"ok": True, "tasks": ["good"]})
    broken = make(tmp_path / "broken", {"instruction.md": None})
    code, said = check(str(broken))
    assert (code, said["error"]["type"]) == (2, "TaskError")


def test_warnings(tmp_path):
    def of(name, **changes):
        (task,) = load_tasks([str(make(tmp_path / name, changes))], env={})
        return " ".join(warnings(task))

    assert of("plain") == ""
    assert "conftest.py" in of("pytest", **{"tests/test.sh": "cd /app && pytest -q\n"})
    assert ".git" in of("history", **{"environment/data/.git/HEAD": "ref: x\n"})
    assert "network" in of("open", **{"task.toml": GOOD["task.toml"].replace("no-network", "public")})
    text = GOOD["task.toml"] + '[metadata.tugline]\nverifier = "pytest"\n'
    assert of("ours", **{"task.toml": text, "tests/test_x.py": "def test_x(): pass\n", "tests/test.sh": None}) == ""
