"""The examples as users run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from real.support import ROOT, tugline
from tugline.cli.wiring import PILOT
from tugline.store import RunStore

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


def run_example(name: str, cwd: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *args],
        cwd=cwd, capture_output=True, text=True, timeout=280, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_own_agent(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(
        '{"settings": {"noncanonical": 0.3}}\n'
        '{"text": "I write it.", "calls": [{"name": "write_file", "arguments": '
        '"{\\"name\\": \\"greeting.txt\\", \\"content\\": \\"hello\\"}"}]}\n'
        '{"text": "Done."}\n'
    )
    said = run_example("own_agent.py", tmp_path, f"scripted:{script}")
    assert said.count("reward 1.0") == 4 and said.count("row of") == 4 and said.count("L4") == 4
    run = Path(re.findall(r"tugline verify (\S+)", said)[0])
    tugline("verify", str(run))
    with RunStore.open(run, write=False) as store:
        keys = [state.key for state, _ in store.sessions()]
        assert [key.index for key in keys] == [0, 1, 2, 3] and {key.group_id for key in keys} == {"greeting"}
        assert [len(store.iter_turns(key.session_id)) for key in keys] == [2, 2, 2, 2]


def train_once(run: Path, cwd: Path) -> bool:
    """One step of the example, and everything that holds of it. False when chance gave all sessions one reward: then
    there is nothing to learn, and the weights stay as they are (one time in ten)."""
    said = run_example("openai_agents_sdk.py", cwd, "--steps", "1", "--sessions", "8", "--out", str(run))
    assert "step 0: " in said and "policy versions [0]\n" in said and "policy versions [1]\n" in said
    apart = float(re.findall(r"differ by (\S+) nats", said)[0])
    assert apart < 1e-3
    tugline("verify", str(run))
    groups: dict[str, set[int]] = {}
    rewards: set[float | None] = set()
    with RunStore.open(run, write=False) as store:
        for state, _ in store.sessions():
            if state.key.group_id == "step-0":
                rewards.add(getattr(state, "reward", None))
            for row in store.iter_traces(state.key.session_id):
                groups.setdefault(state.key.group_id, set()).update(version for _, version in row.version_runs)
    assert groups == {"step-0": {0}, "step-1": {1}}
    before, after = PILOT / "model.safetensors", run / "weights" / "1" / "model.safetensors"
    with safe_open(before, "pt") as old, safe_open(after, "pt") as new:
        names = set(old.keys()) & set(new.keys())
        changed = any(bool((old.get_tensor(n) != new.get_tensor(n)).any()) for n in names)
    assert names and changed == (len(rewards) > 1)
    return changed


def test_an_sdk_agent_is_trained_unmodified(tmp_path: Path) -> None:
    pytest.importorskip("agents", reason="needs openai-agents")
    assert any(train_once(tmp_path / f"run{n}", tmp_path) for n in range(4))
