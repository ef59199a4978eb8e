"""`tugline gateway` as a child process: started, awaited, stopped in order, never left behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from tugline.core.errors import ConfigError, RunError
from tugline.core.trace import Trajectory
from tugline.rollout.api.token import read_token
from tugline.store import RunStore

START_SECONDS = 240.0
STOP_SECONDS = 60.0
"""Ending the open sessions and proving the run; after that it is killed, and the sessions are lost, not their calls."""


class StartOptions(TypedDict, total=False):
    """A gateway to start; as the flags of `tugline gateway`."""

    engine: str
    model: str | Path
    out: str | Path
    config: str | Path
    sampling: str
    seed: int
    set: dict[str, Any]
    """Any settings by their dotted names."""


class GatewayProcess:
    """A running child. It ends with us, also when we are killed: it watches its standard input."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, ready: dict[str, Any]) -> None:
        self._process = process
        self._log = log
        self._lock = threading.Lock()
        self._failure: str | None = None
        self.stopped = False
        self.control: str = ready["control"]
        self.run = Path(ready["run"])
        self.token = read_token(Path(ready["token_file"]))

    @classmethod
    def start(cls, options: StartOptions) -> GatewayProcess:
        """Ready to open sessions when this returns. Raises RunError, ConfigError with what the child said."""
        fd, name = tempfile.mkstemp(prefix="tugline-gateway-", suffix=".log")
        log = Path(name)
        command = [sys.executable, "-m", "tugline.cli.main", "gateway", "--json", "--no-session", *_flags(options)]
        try:
            process = subprocess.Popen(
                [*command, "--until-stdin-closes"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=fd,
                start_new_session=True,  # ^C is ours to handle: it must not stop the gateway before the session ends
            )
        finally:
            os.close(fd)
        try:
            return cls(process, log, _await_ready(process, log))
        except BaseException:
            _end(process, 5.0)
            log.unlink(missing_ok=True)
            raise

    def stop(self) -> str | None:
        """End open sessions as cancelled, prove and close the run. Idempotent; blocks.

        What it said when a proof failed or it did not end in order, else None.
        """
        with self._lock:
            if not self.stopped:
                _end(self._process, STOP_SECONDS)
                self.stopped = True
                code = self._process.returncode
                self._failure = None if code == 0 else f"{_how(code)}: {_tail(self._log)}"
                self._log.unlink(missing_ok=True)
            return self._failure

    def stored(self, session_id: str) -> Trajectory:
        """From the run directory, once the process has stopped. Raises RunError."""
        with RunStore.open(self.run, write=False) as store:
            found = store.trajectory(session_id)
        if found is None:
            raise RunError(f"session {session_id} has no rows in {self.run}")
        return found


def _flags(options: StartOptions) -> list[str]:
    plain = {name: value for name, value in options.items() if name != "set" and value is not None}
    flags = [part for name, value in plain.items() for part in (f"--{name}", str(value))]
    return flags + [part for k, v in (options.get("set") or {}).items() for part in ("--set", f"{k}={v}")]


def _await_ready(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """The one line that it prints."""
    out, line = process.stdout, b""
    until = time.monotonic() + START_SECONDS
    with selectors.DefaultSelector() as selector:
        if out is None:
            raise RunError("the gateway has no output")
        selector.register(out, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, until - time.monotonic())):
                raise RunError(f"the gateway was not ready within {START_SECONDS:.0f} s: {_tail(log)}")
            part = os.read(out.fileno(), 65536)
            if not part:
                break
            line += part
    try:
        ready: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.DecodeError:
        raise RunError(f"the gateway could not be started: {_tail(log)}") from None
    error = ready.get("error")
    if isinstance(error, dict):
        kind = ConfigError if error.get("code") == ConfigError.code else RunError
        raise kind(str(error.get("message")))
    return ready


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """In order if it can, by force if it must. The end of its input is the one request to stop: a signal beside it
    would be the second, on which people's programs give up what they are finishing."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    for force in (process.terminate, process.kill):
        try:
            process.wait(seconds)
            break
        except subprocess.TimeoutExpired:
            force()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _how(code: int) -> str:
    return f"exit status {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"


def _tail(log: Path) -> str:
    try:
        return log.read_text("utf-8", "replace").strip()[-2000:] or "it said nothing"
    except OSError as err:
        return str(err)
