# ruff: noqa: E501 - task files as tables
"""Harbor's ways of judging, played whole: steps, separate verifiers, artifacts from elsewhere, collect, health."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tugline.core.contracts import Limits
from tugline.rollout.check import Checker
from tugline.rollout.judging import Judging
from tugline.rollout.spec import StageLimits
from tugline.sandboxes import provider as find
from tugline.store import RunStore
from tugline.tasks import load_tasks
from tugline.verifiers import verifier_for
from unit.tasks.kit import GOOD, make

LIMITS = Limits(disk=64 << 20)
TOML = GOOD["task.toml"]


def script(condition: str, reward: str = "1") -> str:
    return f"#!/bin/sh\ncd /app\nif {condition}; then r={reward}; else r=0; fi\necho $r > /logs/verifier/reward.txt\n"


def step(name: str, more: str = "") -> str:
    return f'[[steps]]\nname = "{name}"\n{more}\n'


def steps(order: str, *tables: str) -> str:
    return f'multi_step_reward_strategy = "{order}"\n{TOML}{"".join(tables)}'


SEPARATE = "[verifier]\nenvironment_mode = 'separate'\n"
TASKS = {
    "shared": ({"tests/test.sh": script("[ -f done ]"), "solution/solve.sh": "#!/bin/sh\ntouch /app/done\n"}, 1.0, 0.0),
    "json-wins-over-text": (
        {"tests/test.sh": script("[ -f done ]") + "echo '{\"a\": 0, \"b\": 0}' > /logs/verifier/reward.json\n"
                          "[ -f /app/done ] && echo '{\"reward\": 1, \"style\": 0.5}' > /logs/verifier/reward.json\nexit 3\n",
         "solution/solve.sh": "#!/bin/sh\ntouch done\n"}, 1.0, 0.0,
    ),
    "separate-sees-artifacts-alone": (
        {"task.toml": f'artifacts = ["out"]\n{TOML}{SEPARATE}',
         "tests/test.sh": script("[ -f out/x ] && [ ! -f other ] && [ -f a.txt ]"),
         "solution/solve.sh": "#!/bin/sh\nmkdir out; touch out/x other; rm a.txt\n"}, 1.0, 0.0,
    ),
    "separate-with-its-own-environment": (
        {"task.toml": f'artifacts = ["/app/out", "/app/a.txt"]\n{TOML}{SEPARATE}',
         "tests/Dockerfile": "FROM judge:1\nWORKDIR /judge\nCOPY key.txt /judge/\n", "tests/key.txt": "42\n",
         "tests/test.sh": script("cmp -s /app/out /judge/key.txt && [ -f /app/a.txt ] && [ $PWD = /app ]"),
         "solution/solve.sh": "#!/bin/sh\necho 42 > /app/out\n"}, 1.0, 0.0,
    ),
    "artifacts-from-elsewhere-and-collect": (
        {"task.toml": f'artifacts = ["/app/a.txt", "/logs/artifacts"]\n{TOML}{SEPARATE}'
                      "[[verifier.collect]]\ncommand = 'cp made /logs/artifacts/; ln -s /etc/passwd /logs/artifacts/p'\n",
         "tests/test.sh": script("[ -f /logs/artifacts/made ] && [ ! -e /logs/artifacts/p ] && [ ! -e made ]"),
         "solution/solve.sh": "#!/bin/sh\ntouch /app/made\n"}, 1.0, 0.0,
    ),
    "healthy": (
        {"task.toml": TOML + "[environment.healthcheck]\ncommand = 'echo x >> n; [ $(wc -l < n) -ge 3 ]'\ninterval_sec = 0.1\n",
         "tests/test.sh": script("[ -f done ] && [ $(wc -l < n) -eq 3 ]"), "solution/solve.sh": "#!/bin/sh\ntouch done\n"},
        1.0, 0.0,
    ),
    "steps-mean": (
        {"task.toml": steps("mean", step("one"), step("two")), "instruction.md": None, "tests/test.sh": None,
         "steps/one/instruction.md": "1", "steps/one/tests/test.sh": script("[ -f one ] && [ ! -e /tests/two ]"),
         "steps/one/solution/solve.sh": "#!/bin/sh\ntouch one\n",
         "steps/two/instruction.md": "2", "steps/two/tests/test.sh": script("[ -f one ] && [ -f two ] && [ -f given ]"),
         "steps/two/workdir/setup.sh": "[ -f one ] && mv file given", "steps/two/workdir/file": "x",
         "steps/two/solution/solve.sh": "#!/bin/sh\n[ ! -e /tests ] && touch two\n"}, 1.0, 0.0,
    ),
    "steps-final-after-one-that-is-not-enough": (
        {"task.toml": steps("final", step("one", "min_reward = 0.5"), step("two")), "instruction.md": None,
         "tests/test.sh": script("true"), "steps/one/instruction.md": "1", "steps/one/tests/test.sh": script("[ -f one ]"),
         "steps/one/solution/solve.sh": "#!/bin/sh\ntouch one\n", "steps/two/instruction.md": "2",
         "steps/two/solution/solve.sh": "#!/bin/sh\ntrue\n"}, 1.0, 0.0,
    ),
}  # fmt: skip


@pytest.fixture
async def provider(tmp_path):
    made = find("bubblewrap", tmp_path / "state", "test")
    if missing := await made.check():
        pytest.skip(missing[0])
    yield made
    await made.close()


async def check(provider, tmp_path: Path, *paths: Path, repeats: int = 1):
    tasks = load_tasks([str(p) for p in paths], env={})
    judging = Judging(provider, verifier_for, LIMITS, print)
    checker = Checker(provider, judging, LIMITS, StageLimits(60, 60, 60), tmp_path / "trials")
    return await checker.check(tasks, repeats, 2, lambda found, trial: None)


@pytest.mark.parametrize("name", TASKS)
async def test_the_solution_is_one_and_nothing_is_zero(provider, name, tmp_path):
    files, oracle, nothing = TASKS[name]
    (found,) = await check(provider, tmp_path, make(tmp_path / name, files))
    assert (found.rewards("oracle"), found.rewards("nothing")) == ([oracle], [nothing]), found.trials
    assert found.problems == []


async def test_what_is_wrong_with_a_task_is_said(provider, tmp_path):
    places = [
        make(tmp_path / "too-easy", {"solution/solve.sh": "#!/bin/sh\n"}),
        make(tmp_path / "no-reward", {"tests/test.sh": "#!/bin/sh\ntrue\n", "solution/solve.sh": "#!/bin/sh\n"}),
        make(tmp_path / "wrong-solution", {"tests/test.sh": script("false"), "solution/solve.sh": "#!/bin/sh\n"}),
        make(tmp_path / "no-solution", {"tests/test.sh": script("false")}),
        make(tmp_path / "by-chance", {
            "tests/test.sh": script("false") + "n=$(date +%N); s=$([ $((${n#0} % 2)) = 0 ] && echo passed || echo failed)\n"
            "echo '{\"results\": {\"tests\": [{\"name\": \"t::sure\", \"status\": \"passed\"}, {\"name\": \"t::maybe\", \"status\": \"'$s'\"}]}}'"
            " > /logs/verifier/ctrf.json\n", "solution/solve.sh": "#!/bin/sh\n"}),
    ]  # fmt: skip
    easy, silent, wrong, alone, chance = await check(provider, tmp_path, *places, repeats=3)
    assert easy.problems == ["nothing: reward 1, 1, 1, not 0"]
    assert [p[:38] for p in silent.problems] == [
        "oracle: no verdict in 3 of 3 trials: V",
        "nothing: no verdict in 3 of 3 trials: ",
    ]
    assert wrong.problems == ["oracle: reward 0, 0, 0, not 1"]
    assert (alone.problems, alone.solvable) == ([], False)
    assert set(chance.flaky) <= {"t::maybe"}


async def test_a_rollout_of_steps_is_one_session(tmp_path):
    """Two agents, one sandbox, one trajectory; each step is judged as it ends."""
    files, _, _ = TASKS["steps-mean"]
    task = make(tmp_path / "steps", files)
    script_file = tmp_path / "script.jsonl"
    lines = [{"calls": [{"name": "bash", "arguments": json.dumps({"command": f"touch {n}"})}]} for n in ("one", "two")]
    done = {"text": "done"}
    script_file.write_text("".join(json.dumps(line) + "\n" for line in (lines[0], done, lines[1], done)))
    argv = ["rollout", str(task), "--harness", "bash-agent", "--engine", f"scripted:{script_file}", "-n", "1",
            "--out", str(tmp_path / "run"), "--sandbox", "bubblewrap", "--json"]  # fmt: skip
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tugline.cli.main", *argv, stdout=asyncio.subprocess.PIPE, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )  # fmt: skip
    out, _ = await done.communicate()
    said = json.loads(out)
    assert said["ok"], said
    with RunStore.open(tmp_path / "run", write=False) as store:
        ((state, _),) = store.sessions()
        assert (state.outcome.value, state.reward) == ("completed", 1.0)
        assert dict(state.reward_parts) == {"reward": 1.0, "one": 1.0, "two": 1.0}
        assert len(store.iter_turns(state.key.session_id)) == 4
    folder = tmp_path / "run" / "sessions" / state.key.session_id / "steps"
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == ["one", "two"]
    assert (folder / "two" / "verifier" / "reward.txt").read_text().strip() == "1"
