"""kill -9 of the process that holds gateway and service, and of the engine, in mid-run, again and again.

Whatever reply a client has seen to its last byte is in the store and verifies; the run resumes and ends.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import pytest

from real.support import processes, start_rollout, tugline_json

CLIENT = Path(__file__).resolve().parents[1] / "service" / "chat_client.py"
KILLS = int(os.environ.get("TUGLINE_TEST_KILLS", "8"))

pytestmark = [pytest.mark.real, pytest.mark.chaos, pytest.mark.timeout(600)]


def seen_by_clients(run: Path) -> set[str]:
    """Turn ids of replies whose last byte a client has seen, from the clients' own logs."""
    seen = set()
    for log in run.glob("sessions/*/agent.log"):
        for line in log.read_text().splitlines():
            if line.startswith("{"):
                seen.add("turn_" + json.loads(line)["seen"])
    return seen


def stored(run: Path) -> set[str]:
    from tugline.store import RunStore

    with RunStore.open(run, write=False) as store:
        return {t.turn_id for state, _ in store.sessions() for t in store.iter_turns(state.key.session_id)}


def token(run: Path) -> str:
    """What only this run's clients carry on their command lines, wherever else tests run at the same time."""
    return "client-" + sha256(str(run).encode()).hexdigest()[:16]


def engines_of(parent: int) -> list[int]:
    """Pids of the engine processes that one rollout has started."""
    ours = []
    for pid in processes("tugline.engines.embedded.server"):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        if f"PPid:\t{parent}\n" in status:
            ours.append(pid)
    return ours


def args(run: Path) -> list[str]:
    return [
        *("create-file-0", "delete-file-0"),
        *("--harness", f"command:{sys.executable} {CLIENT} 12 0.05 {token(run)}"),
        *("--sandbox", "local", "-n", "3", "--out", str(run)),
        *("--set", "limits.infra_retries=0"),
    ]


def wait_for_calls(run: Path, process: subprocess.Popen[bytes], more_than: int, limit: float = 90) -> None:
    """Until clients have seen more than `more_than` replies."""
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        if len(seen_by_clients(run)) > more_than:
            return
        time.sleep(0.05)


@pytest.mark.parametrize("victim", ["gateway", "engine"])
def test_nothing_that_a_client_saw_is_lost(tmp_path: Path, victim: str) -> None:
    run, log, rng, kills = tmp_path / "run", tmp_path / "log", random.Random(7), 0
    process = start_rollout(log, *args(run))
    while kills < KILLS // 2:
        wait_for_calls(run, process, len(seen_by_clients(run)) + rng.randrange(1, 4))
        if process.poll() is not None:
            if victim == "engine":
                break
            process = start_rollout(log, *args(run))
            continue
        if victim == "gateway":
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            seen = seen_by_clients(run)
            assert seen <= stored(run), "a reply that a client saw is not in the store"
            process = start_rollout(log, *args(run))
        else:
            # its own engines only: other runs on this machine are not ours to kill
            for pid in engines_of(process.pid):
                os.kill(pid, signal.SIGKILL)
        kills += 1
    process.wait(timeout=300)
    assert process.returncode == 0, log.read_text()[-3000:]
    assert kills == KILLS // 2, "the run ended before it was killed often enough"
    seen = seen_by_clients(run)
    assert seen
    assert seen <= stored(run)
    proof = tugline_json("verify", str(run))
    assert proof["calls"]["exact"] == proof["calls"]["total"] >= len(seen)
    assert not processes(token(run)), "a client outlived the run"
