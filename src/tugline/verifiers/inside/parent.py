"""The parent of the workers: starts one for each test file, reads what they say, prints one report.

The job is JSON on standard input; the report is one line of JSON on standard output, which no worker has. A worker
gets a fresh key and a pipe of its own; a line that does not carry the key's next signature ends its credit.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import json
import os
import select
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MAX_BYTES = 32 << 20
"""Of results per test file."""
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36


class Reader:
    """The lines of one worker, checked one by one."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.buffer = b""
        self.count = 0
        self.size = 0
        self.messages: list[dict] = []  # type: ignore[type-arg]
        self.forged = False

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > MAX_BYTES:
            self.forged = True
            return
        lines = (self.buffer + data).split(b"\n")
        self.buffer = lines.pop()
        for line in lines:
            if self.forged:
                return
            mac, _, body = line.partition(b" ")
            expected = hmac.new(self.key, b"%d %s" % (self.count, body), hashlib.sha256).hexdigest().encode()
            if not hmac.compare_digest(mac, expected):
                self.forged = True
                return
            self.count += 1
            self.messages.append(json.loads(body.decode()))


def digest(path: str) -> str:
    """sha256 of a regular file, or what it is instead."""
    if os.path.islink(path) or not os.path.isfile(path):
        return "no file"
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def changed(job: dict) -> list[str]:  # type: ignore[type-arg]
    """Restored files that are not any more what the task says."""
    return [p for p, known in job["restored"].items() if digest(os.path.join(job["workdir"], p)) != known]


def children() -> list[int]:
    """Processes whose parent we are, ourselves the reaper of all orphans."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/" + name + "/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if parent == os.getpid():
                found.append(int(name))
    return found


def sweep() -> int:
    """Kill everything that a worker has left. Returns how many there were."""
    total = 0
    for _ in range(200):
        left = children()
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        total += len(left)
    return total


def run_file(job: dict, file: dict, until: float) -> dict:  # type: ignore[type-arg]
    """One worker to its end or to its time."""
    key = os.urandom(32)
    out, into = os.pipe()
    worker = subprocess.Popen(
        [sys.executable, "-I", "-B", os.path.join(HERE, "worker.py"), str(into)],
        stdin=subprocess.PIPE, stdout=2, stderr=2, pass_fds=(into,), cwd=job["workdir"], start_new_session=True,
    )  # fmt: skip
    os.close(into)
    os.set_blocking(out, False)
    told = dict(job, file=file["path"], key=key.hex())
    del told["files"]
    try:
        worker.stdin.write(json.dumps(told).encode())  # type: ignore[union-attr]
        worker.stdin.close()  # type: ignore[union-attr]
    except BrokenPipeError:
        pass
    reader, ended, late = Reader(key), None, False
    while True:
        ready, _, _ = select.select([out], [], [], min(0.2, max(0.0, until - time.monotonic())))
        data = os.read(out, 1 << 16) if ready else None
        if data:
            reader.feed(data)
        if reader.forged or data == b"":
            break
        if ended is None:
            ended = worker.poll()
        elif not ready:
            break  # dead, and nothing more in the pipe: whoever holds it open besides is no worker
        if time.monotonic() >= until:
            late = True
            break
    if ended is None and not late and not reader.forged:
        try:
            ended = worker.wait(timeout=max(0.1, min(10.0, until - time.monotonic())))
        except subprocess.TimeoutExpired:
            ended = None
    if ended is None:
        worker.kill()
        ended = worker.wait()
    strays = sweep()
    os.close(out)
    return {
        "path": file["path"], "messages": reader.messages, "forged": reader.forged or bool(reader.buffer),
        "code": ended, "late": late, "strays": strays, "changed": changed(job),
    }  # fmt: skip


def main() -> None:
    """Read the job, run every file, print the report."""
    job = json.load(sys.stdin)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no worker opens our descriptors or memory through /proc
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    begun = time.monotonic()
    until = begun + job["limit"]
    runs = []
    for file in job["files"]:
        wrong = changed(job)
        if wrong:
            runs.append({"path": file["path"], "messages": [], "forged": False, "code": 0, "late": False, "strays": 0,
                         "changed": wrong})  # fmt: skip
            continue
        runs.append(run_file(job, file, until))
    report = {"runs": runs, "seconds": time.monotonic() - begun, "python": sys.version.split()[0]}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
