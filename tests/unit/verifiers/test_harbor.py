"""Harbor's verifier contract, with real test scripts in a fake sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from tugline.core.clock import Deadline
from tugline.core.contracts import Exit
from tugline.core.errors import SandboxError, VerifierError
from tugline.core.task import Environment, Task
from tugline.testing.fakes import FakeSandbox
from tugline.verifiers import HarborVerifier, verifier_for


@pytest.fixture
def judge(tmp_path):
    """Run a test.sh over a fresh sandbox; the verdict and the output folder come back."""

    async def run(script: str, *, seconds: float = 30.0, env: dict[str, str] | None = None, before=None):
        tests = tmp_path / "tests"
        tests.mkdir()
        (tests / "test.sh").write_text(f"#!/bin/sh\n{script}\n")
        (tests / "hidden.txt").write_text("secret\n")
        box = FakeSandbox(tmp_path / "box")
        if before:
            before(tmp_path / "box")
        environment = Environment(image="x", env={"FROM_IMAGE": "i"})
        task = Task("t", "t", "do", environment, tmp_path, tests, verifier_env=env or {})
        verdict = await HarborVerifier().judge(task, box, Deadline.after(seconds), tmp_path / "out")
        return verdict, tmp_path / "out"

    return run


async def test_reward_txt(judge):
    verdict, out = await judge('echo 0.5 > "$LOGS_DIR/reward.txt"')
    assert (verdict.reward, dict(verdict.parts)) == (0.5, {"reward": 0.5})
    assert (out / "reward.txt").read_text() == "0.5\n"


async def test_reward_json_wins(judge):
    verdict, out = await judge(
        'echo 0 > "$LOGS_DIR/reward.txt"; echo \'{"reward": 1, "speed": 3}\' > "$LOGS_DIR/reward.json"'
    )
    assert (verdict.reward, dict(verdict.parts)) == (1.0, {"reward": 1.0, "speed": 3.0})
    assert (out / "reward.json").exists()


async def test_the_exit_status_is_ignored(judge):
    verdict, _ = await judge('echo 1 > "$LOGS_DIR/reward.txt"; exit 3')
    assert verdict.reward == 1.0


async def test_a_crash_without_a_reward_file_is_no_zero(judge):
    with pytest.raises(VerifierError, match="no reward file \\(exit status 3\\)"):
        await judge("exit 3")


async def test_a_reward_written_before_judging_does_not_count(judge):
    def cheat(top: Path) -> None:
        for name in ("reward.txt", "reward.json"):
            (top / "logs/verifier" / name).write_text("1")

    with pytest.raises(VerifierError, match="no reward file"):
        await judge("true", before=cheat)


async def test_a_log_folder_that_the_agent_made_a_link_is_replaced(judge, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "keep").write_text("x")

    def cheat(top: Path) -> None:
        (top / "logs/verifier").rmdir()
        (top / "logs/verifier").symlink_to(victim)

    verdict, _ = await judge('echo 1 > "$LOGS_DIR/reward.txt"', before=cheat)
    assert verdict.reward == 1.0
    assert [p.name for p in victim.iterdir()] == ["keep"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (': > "$LOGS_DIR/reward.txt"', "empty"),
        (': > "$LOGS_DIR/reward.json"; echo 1 > "$LOGS_DIR/reward.txt"', "reward.json is empty"),
        ('echo nan > "$LOGS_DIR/reward.txt"', "not finite"),
        ('echo 1e400 > "$LOGS_DIR/reward.txt"', "not finite"),
        ('echo \'{"reward": NaN}\' > "$LOGS_DIR/reward.json"', "not finite"),
        ('echo \'{"reward": "1"}\' > "$LOGS_DIR/reward.json"', "not a number"),
        ('mkdir "$LOGS_DIR/reward.json"; echo 1 > "$LOGS_DIR/reward.txt"', "not a regular file"),
        ('mkfifo "$LOGS_DIR/reward.txt"', "not a regular file"),
        ('ln -s /etc/hostname "$LOGS_DIR/reward.txt"', "no reward file"),
        ('ln -s reward.txt "$LOGS_DIR/reward.txt"', "reward.txt|no reward file"),
        ('truncate -s 100M "$LOGS_DIR/reward.json"; echo 1 > "$LOGS_DIR/reward.txt"', "larger than"),
        ('head -c 60000 /dev/zero | tr "\\0" "[" > "$LOGS_DIR/reward.json"', "not valid JSON"),
    ],
)
async def test_what_is_no_reward_is_an_error(judge, script, says):
    with pytest.raises(VerifierError, match=says):
        await judge(script)


async def test_time_is_limited(judge):
    with pytest.raises(VerifierError, match="time limit"):
        await judge('echo 1 > "$LOGS_DIR/reward.txt"; sleep 60', seconds=0.5)


async def test_the_script_finds_what_harbor_promises(judge):
    verdict, out = await judge(
        'echo out; echo err >&2; [ "$(cat "$TESTS_DIR/hidden.txt")" = secret ] && [ "$TOKEN" = abc ] &&\n'
        '[ "$FROM_IMAGE" = i ] && [ "$PWD" = "$APP_DIR" ] && [ -z "$PYTHONPATH" ] && echo 1 > "$LOGS_DIR/reward.txt"',
        env={"TOKEN": "abc"},
    )
    assert verdict.reward == 1.0
    assert (out / "test-stdout.txt").read_text() == "out\nerr\n"


async def test_reports_for_people_are_kept_and_cost_nothing(judge):
    verdict, out = await judge(
        'cd "$LOGS_DIR" && echo 1 > reward.txt && echo {} > ctrf.json && truncate -s 50M reward-details.json'
    )
    assert verdict.reward == 1.0
    assert (out / "ctrf.json").read_text() == "{}\n"
    assert not (out / "reward-details.json").exists()


async def test_running_out_of_memory_is_no_verdict(tmp_path):
    class Starved(FakeSandbox):
        async def run(self, command, deadline, gateway=None):
            return Exit(-9, 1.0, oom=True)

    (tmp_path / "tests").mkdir()
    task = Task("t", "t", "do", Environment(image="x"), tmp_path, tmp_path / "tests")
    with pytest.raises(VerifierError, match="out of memory"):
        await HarborVerifier().judge(task, Starved(tmp_path / "box"), Deadline.after(5), tmp_path / "out")


async def test_a_sandbox_that_cannot_run_is_the_sandboxes_fault(tmp_path):
    class Broken(FakeSandbox):
        async def run(self, command, deadline, gateway=None):
            raise SandboxError("gone")

    (tmp_path / "tests").mkdir()
    task = Task("t", "t", "do", Environment(image="x"), tmp_path, tmp_path / "tests")
    with pytest.raises(SandboxError):
        await HarborVerifier().judge(task, Broken(tmp_path / "box"), Deadline.after(5), tmp_path / "out")


async def test_a_task_without_tests_has_no_verdict(tmp_path):
    task = Task("t", "t", "do", Environment(image="x"), tmp_path, None)
    assert verifier_for(task).name == "harbor"
    with pytest.raises(VerifierError, match="no tests/"):
        await verifier_for(task).judge(task, FakeSandbox(tmp_path / "box"), Deadline.after(5), tmp_path / "out")
