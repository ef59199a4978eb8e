"""Runs one command without namespaces and leaves none of its processes behind.

The keeper is a child subreaper: whatever the command starts, also through `setsid` or a double fork, becomes its
child when the parent ends. After the command, or on SIGTERM, it kills children until there are none.
argv: FOLDER STATUS_FD GATE_FD NPROC CWD COMMAND...
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

from . import kernel


class _Stop(Exception):
    pass


def main() -> None:
    """Entry point of the keeper program."""
    status, gate = int(sys.argv[2]), int(sys.argv[3])
    cwd, argv = sys.argv[4], sys.argv[5:]
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    stopping = False

    def on_term(_number: int, _frame: Any) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            raise _Stop

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = 0
    try:
        os.write(status, json.dumps({"child-pid": os.getpid()}).encode() + b"\n")
        os.read(gate, 1)
        pid = _start(argv, cwd, (status, gate))
        for fd in (0, 1, 2):
            os.close(fd)
        while True:
            done, wait = os.wait()
            if done == pid:
                code = os.waitstatus_to_exitcode(wait)
                break
    except _Stop:
        code = -signal.SIGKILL
    stopping = True
    kill_children()
    os.write(status, json.dumps({"exit-code": code}).encode() + b"\n")
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _start(argv: list[str], cwd: str, close: tuple[int, ...]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        for fd in close:
            os.close(fd)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        os.chdir(cwd)
        env = dict(os.environ)
        if env.pop("TUGLINE_NO_CTYPE", None):
            env.pop("LC_CTYPE", None)  # set by this interpreter, not by the caller
        os.execvpe(argv[0], argv, env)
    except OSError as err:
        os.write(2, f"{argv[0]}: {err.strerror}\n".encode())
    finally:
        os._exit(127)


def kill_children() -> None:
    """SIGKILL and reap every child, again and again until there is none."""
    while True:
        for pid in children(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def children(parent: int) -> list[int]:
    """Direct children by /proc."""
    out = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as f:
                if int(f.read().rpartition(b")")[2].split()[1]) == parent:
                    out.append(int(name))
    return out
