"""Running the real command in tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def tugline(*args: str, timeout: float = 300, check: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m tugline.cli.main ARGS`; assert its exit status unless `check` is None."""
    done = subprocess.run(
        [sys.executable, "-m", "tugline.cli.main", *args],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
    )
    if check is not None:
        assert done.returncode == check, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
    return done


def tugline_json(*args: str, timeout: float = 300, check: int | None = 0) -> dict[str, Any]:
    """The JSON object that a command with --json prints."""
    done = tugline(*args, "--json", timeout=timeout, check=check)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def start_rollout(log: Path, *args: str, background: bool = False) -> subprocess.Popen[bytes]:
    """A rollout in a process group of its own; what it says goes to `log`. `background`: as a shell script starts a
    job with `&`, which ignores ^C from its birth; else as at a prompt, however the tests themselves were started."""
    handling = signal.SIG_IGN if background else signal.SIG_DFL
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "tugline.cli.main", "rollout", *args],
            stdout=out,
            stderr=out,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, handling),
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def processes(needle: str) -> list[int]:
    """Pids whose command line or environment-independent argv holds `needle`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                argv = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if needle in argv:
                found.append(int(entry.name))
    return found
