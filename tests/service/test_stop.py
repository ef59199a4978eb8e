"""A run that is asked to stop leaves nothing behind, and goes on later."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from real.support import processes, start_rollout, tugline, tugline_json

pytestmark = pytest.mark.timeout(120)


def test_a_run_that_never_began_leaves_no_sandbox(tmp_path: Path) -> None:
    run = tmp_path / "run"
    tugline("rollout", "create-file-0", "--harness", "no-such", "--sandbox", "local", "--out", str(run), check=2)
    assert not (run / "sandboxes").exists() or list((run / "sandboxes").iterdir()) == []


@pytest.mark.parametrize(
    ("number", "background"), [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)]
)
def test_an_asked_stop_removes_sandboxes_and_the_run_goes_on(
    tmp_path: Path, number: signal.Signals, background: bool
) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"settings": {"repeat": true}}\n{"text": "ok"}\n')
    run, mark = tmp_path / "run", f"50{os.getpid()}{number:02d}{background:d}"
    agent = tmp_path / "agent.sh"
    agent.write_text(f"#!/bin/sh\nsetsid sleep {mark} &\nexec sleep {mark}\n")
    agent.chmod(0o755)
    common = [*("--engine", f"scripted:{script}", "-n", "3", "--out", str(run), "--sandbox", "local")]
    asked = ("create-file-0", "--harness", f"command:/bin/sh {agent}", *common)
    process = start_rollout(tmp_path / "log", *asked, background=background)
    until = time.monotonic() + 60
    while len(processes(f"sleep {mark}")) < 6:
        assert process.poll() is None, (tmp_path / "log").read_text()
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(30) == 130
    assert processes(f"sleep {mark}") == []
    assert list((run / "sandboxes").iterdir()) == []
    assert "Traceback" not in (tmp_path / "log").read_text()
    agent.write_text("#!/bin/sh\nexit 0\n")
    again = tugline_json("rollout", "create-file-0", "--harness", f"command:/bin/sh {agent}", *common, check=None)
    assert again["report"]["sessions"]["total"] == 3
