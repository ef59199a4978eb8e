"""Functions of the operator's: what they see, and that nothing they do harms anybody else."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tugline.core.clock import Deadline
from tugline.core.errors import VerifierError
from tugline.core.task import Environment, Task
from tugline.testing.fakes import FakeSandbox
from tugline.verifiers import FunctionVerifier


async def judge(tmp_path, body: str, limit: float = 20.0, prepare=lambda app: None, **task):
    (tmp_path / "own_judge.py").write_text(f"import os\ndef score(work):\n    {body}\n")
    box = FakeSandbox(tmp_path / "box")
    prepare(tmp_path / "box" / "app")
    made = Task("t", "t", "Do it.", Environment(image=""), tmp_path, None, **task)
    return await FunctionVerifier("own_judge:score").judge(
        made, box, Deadline.after(limit), tmp_path / "s" / "verifier"
    )


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s").mkdir()


async def test_it_sees_files_instruction_options_and_the_session(tmp_path):
    def prepare(app):
        (app / "d").mkdir()
        (app / "d" / "answer.txt").write_text("42")
        (app / "secret").symlink_to("/etc/passwd")
        os.mkfifo(app / "pipe")

    (tmp_path / "s" / "agent.log").write_text("hello")
    verdict = await judge(
        tmp_path,
        "assert sorted(p.name for p in work.files.rglob('*')) == ['answer.txt', 'd'], list(work.files.rglob('*'))\n"
        "    assert work.instruction == 'Do it.' and work.options == {'bar': 2}\n"
        "    assert (work.session / 'agent.log').read_text() == 'hello'\n"
        "    return {'reward': float((work.files / 'd' / 'answer.txt').read_text()), 'style': 0.5}",
        prepare=prepare,
        verifier_options={"bar": 2},
    )
    assert (verdict.reward, verdict.parts) == (42.0, {"reward": 42.0, "style": 0.5})


@pytest.mark.parametrize(
    "body",
    [
        "return float('nan')", "return None", "return 'good'", "return {'reward': True}", "return {}", "os._exit(0)",
        "raise SystemExit(3)", "os.kill(os.getpid(), 9)", "return [1]", "x = bytearray(64 << 30)",
        "import no_such_module_at_all",
    ],
)  # fmt: skip
async def test_anything_but_finite_numbers_is_an_error(tmp_path, body):
    with pytest.raises(VerifierError):
        await judge(tmp_path, body)


async def test_a_blocking_function_blocks_nobody_and_ends_in_time(tmp_path):
    judging = asyncio.create_task(judge(tmp_path, "import time; time.sleep(60)", limit=2.0))
    worst, began = 0.0, time.monotonic()
    while not judging.done():
        tick = time.monotonic()
        await asyncio.sleep(0.01)
        worst = max(worst, time.monotonic() - tick)
    assert time.monotonic() - began < 20
    assert worst < 1.0
    with pytest.raises(VerifierError, match="time limit"):
        judging.result()
