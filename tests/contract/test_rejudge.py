"""`tugline rejudge` over a real run: the same again, another verifier, and what is lost on the way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tugline.core.session import Ended, Judging, Outcome
from tugline.store import RunStore

SRC = str(Path(__file__).parents[2] / "src")
WORK = "echo right > answer.txt; rm -f seed; ln -s / out"
SCRIPT = [
    {"calls": [{"name": "bash", "arguments": json.dumps({"command": WORK})}]},
    {"text": "done"},
]  # fmt: skip


def tugline(*argv: str, cwd: Path) -> tuple[int, dict]:
    env = {**os.environ, "PYTHONPATH": SRC}
    done = subprocess.run(
        [sys.executable, "-m", "tugline.cli.main", *argv, "--json"], cwd=cwd, env=env, capture_output=True, text=True
    )
    return done.returncode, json.loads(done.stdout)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two sessions whose answer is right."""
    top = tmp_path_factory.mktemp("rejudge")
    task = top / "task"
    for name, text in {
        "task.toml": 'schema_version = "1.4"\n', "instruction.md": "Answer.\n",
        "environment/Dockerfile": "FROM x\nWORKDIR /app\nCOPY seed /app/\n", "environment/seed": "s\n",
        "tests/test.sh": 'grep -q right /app/answer.txt && [ ! -e /app/seed ] && [ ! -e /app/out ] && r=1 || r=0\n'
                         'echo $r > /logs/verifier/reward.txt\n',
    }.items():  # fmt: skip
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    (top / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
    code, said = tugline(
        "rollout", str(task), "--harness", "bash-agent", "--engine", f"scripted:{top / 'script.jsonl'}", "-n", "2",
        "--sandbox", "bubblewrap", "--out", str(top / "run"), cwd=top,
    )  # fmt: skip
    if code == 2 and "bubblewrap" in str(said):
        pytest.skip(str(said))
    assert code == 0, said
    assert said["report"]["reward"] == {"mean": 1.0, "n": 2}
    assert said["report"]["marks"]["link_out"]["sessions"] == 2
    return top


def test_the_same_verifier_says_the_same_again(run):
    code, said = tugline("rejudge", str(run / "run"), cwd=run)
    assert (code, said["judged"], said["applied"], said["reward"]) == (0, 2, 0, {"mean": 1.0, "n": 2})
    assert {s["before"] for s in said["sessions"]} == {s["after"] for s in said["sessions"]} == {1.0}


def test_another_verifier_may_differ_and_stands_only_when_applied(run):
    (run / "strict_judge.py").write_text(
        "def score(work):\n    names = sorted(p.name for p in work.files.iterdir())\n"
        "    assert names == ['answer.txt'], names\n    return {'reward': 0.25, 'files': 1.0}\n"
    )
    copy = run / "copy"
    shutil.copytree(run / "run", copy)
    name = ("--verifier", "function:strict_judge:score")
    code, said = tugline("rejudge", str(copy), *name, cwd=run)
    assert (code, said["reward"]["mean"]) == (0, 0.25)
    with RunStore.open(copy, write=False) as store:
        assert {s.reward for s, _ in store.sessions()} == {1.0}
    code, said = tugline("rejudge", str(copy), *name, "--apply", cwd=run)
    assert (code, said["applied"]) == (0, 2)
    with RunStore.open(copy, write=False) as store:
        for state, _ in store.sessions():
            trajectory = store.trajectory(state.key.session_id)
            assert (state.reward, trajectory.reward, trajectory.reward_parts["files"]) == (0.25, 0.25, 1.0)
            assert trajectory.traces
    assert tugline("verify", str(copy), cwd=run)[0] == 0


async def test_a_session_whose_verifier_had_failed_counts_again(run):
    copy = run / "failed"
    shutil.copytree(run / "run", copy)
    async with RunStore.open(copy, write=True) as store:
        (first, _), _ = store.sessions()
        await store.put_session(Judging(first.key, Outcome.AGENT_TIMEOUT))
        await store.put_session(Ended(first.key, Outcome.JUDGE_FAILED, reason="no verdict"))
    assert tugline("rejudge", str(copy), "--apply", cwd=run)[0] == 0
    with RunStore.open(copy, write=False) as store:
        again, _ = store.session(first.key.session_id)
    assert (again.outcome, again.reward) == (Outcome.AGENT_TIMEOUT, 1.0)


def test_what_cannot_be_judged_is_said(run):
    copy = run / "lost"
    shutil.copytree(run / "run", copy)
    lost, kept = sorted((copy / "sessions").iterdir())
    shutil.rmtree(lost / "submission")
    code, said = tugline("rejudge", str(copy), cwd=run)
    assert (code, said["judged"]) == (0, 1)
    assert {s["session"]: s["skipped"] for s in said["sessions"]} == {
        lost.name: "completed: nothing was kept of its work", kept.name: None,
    }  # fmt: skip
    (kept / "submission" / "files.tar.zst").write_bytes(b"damaged")
    code, said = tugline("rejudge", str(copy), cwd=run)
    assert (code, said["judged"]) == (1, 0)
    code, said = tugline("rejudge", str(copy), "--verifier", "no-such", cwd=run)
    assert (code, said["error"]["type"]) == (2, "ConfigError")
    code, said = tugline("rejudge", str(run), cwd=run)
    assert (code, said["error"]["type"]) == (1, "RunError")
