"""The parent of the workers: starts one for each test file, reads what they say, prints one report.

The job is JSON on standard input. Standard output, which no worker has, gets BEGUN before the first worker starts and
at last the report, one line of JSON: nobody but the code that is judged keeps it from coming. A worker gets a fresh key
and a pipe of its own; a line that does not carry the key's next signature, or is no message, ends its credit.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import json
import os
import select
import signal
import stat
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MAX_BYTES = 32 << 20
"""Of results per test file."""
BEGUN = "begun"
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
            try:
                self.messages.append(message(json.loads(body.decode())))
            except (ValueError, RecursionError):  # signed, and yet not by the worker's own program
                self.forged = True
                return


def message(value: object) -> dict:  # type: ignore[type-arg]
    """A message as the host can read it. Raises ValueError for anything but a kind with words, numbers and ids."""
    if not isinstance(value, dict) or not isinstance(value.get("t"), str):
        raise ValueError("no message")
    return {plain(name): plain(part) for name, part in value.items()}


def plain(value: object) -> object:
    """A word, a number, a list of words. Half characters become escapes. Raises ValueError."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return [plain(part) for part in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53:
        return value
    raise ValueError("no word, number or list of words")


def digest(path: str, size: int) -> str:
    """sha256 of a regular file of `size` bytes, or what it is instead. Never waits, never reads more."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return "no file"
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size != size:
            return "no such file"
        return hashlib.sha256(file.read(size + 1)).hexdigest()


def changed(job: dict) -> list[str]:  # type: ignore[type-arg]
    """Restored files that are not any more what the task says."""
    known, sizes = job["restored"], job["sizes"]
    return [p for p in known if digest(os.path.join(job["workdir"], p), sizes[p]) != known[p]]


def traced(pid: int) -> bool:
    """Whether a process is dead and another one traces it, which then has its end first."""
    try:
        with open("/proc/" + str(pid) + "/status") as file:
            facts = dict(line.split(":", 1) for line in file.read().splitlines() if ":" in line)
        return facts["State"].strip()[0] in "ZX" and int(facts["TracerPid"]) != 0
    except (OSError, KeyError, ValueError):
        return False


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


def sweep(seconds: float = 10.0) -> int:
    """Kill everything that a worker has left, itself too. Returns how many there were. What traces another process
    keeps its end from us until it is dead itself."""
    seen, until = set(), time.monotonic() + seconds
    while time.monotonic() < until:
        left = children()
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.001)
            except (ProcessLookupError, ChildProcessError):
                pass
        seen.update(left)
    return len(seen)


def run_file(job: dict, file: dict, until: float) -> dict:  # type: ignore[type-arg]
    """One worker to its end or to its time."""
    key = os.urandom(32)
    out, into = os.pipe()
    try:
        worker = subprocess.Popen(
            [sys.executable, "-I", "-B", os.path.join(HERE, "worker.py"), str(into)],
            stdin=subprocess.PIPE, stdout=2, stderr=2, pass_fds=(into,), cwd=job["workdir"], start_new_session=True,
        )  # fmt: skip
    except OSError as err:  # an earlier worker's processes are still in the way
        os.close(out)
        os.close(into)
        sys.stderr.write("no worker for " + file["path"] + ": " + str(err) + "\n")
        return nothing(file)
    os.close(into)
    os.set_blocking(out, False)
    told = dict(job, file=file["path"], key=key.hex())
    for hidden in ("files", "limit"):  # how much time there is says which run this is
        del told[hidden]
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
        if ended is None and ready == [] and traced(worker.pid):
            break
        if ended is None:
            ended = worker.poll()
        elif not ready:
            break  # dead, and nothing more in the pipe: whoever holds it open besides is no worker
        if time.monotonic() >= until:
            late = True
            break
    if ended is None and not late and not reader.forged and not traced(worker.pid):
        end = min(until, time.monotonic() + 10)
        while worker.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        ended = worker.poll()
    strays = sweep()
    if ended is None:
        strays -= 1
        ended = -signal.SIGKILL
    os.close(out)
    return {
        "path": file["path"], "messages": reader.messages, "forged": reader.forged or bool(reader.buffer),
        "code": ended, "late": late, "strays": max(0, strays), "changed": changed(job),
    }  # fmt: skip


def nothing(file: dict, wrong: object = ()) -> dict:  # type: ignore[type-arg]
    """A test file that was not run."""
    return {"path": file["path"], "messages": [], "forged": False, "code": 0, "late": False, "strays": 0,
            "changed": list(wrong)}  # type: ignore[call-overload]  # fmt: skip


def main() -> None:
    """Read the job, run every file, print the report."""
    job = json.load(sys.stdin)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no worker opens our descriptors or memory through /proc
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.stdout.write(BEGUN + "\n")
    sys.stdout.flush()
    begun = time.monotonic()
    until = begun + job["limit"]
    runs = []
    for file in job["files"]:
        wrong = changed(job)
        if wrong:
            runs.append(nothing(file, wrong))
            continue
        runs.append(run_file(job, file, until))
    report = {"runs": runs, "seconds": time.monotonic() - begun, "python": sys.version.split()[0]}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
