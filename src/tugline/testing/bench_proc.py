"""Processes of the benchmark: pinned, asked line by line over pipes, their CPU time read from outside. Linux."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import uvloop

from tugline.core.errors import RunError

T = TypeVar("T")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, all its threads, user and system. Its kernel clock has nanoseconds where
    /proc/PID/stat has ticks of 10 ms; both count the same."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the clock id of a process, as in clock_getcpuclockid(3)
    except OSError:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children(pid: int) -> list[int]:
    """Processes that a process has started. The servers measured here must have none: their CPU would be missed."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        listed = task / "children"
        if listed.exists():
            found += [int(p) for p in listed.read_text().split()]
    return found


def cpu_model() -> str:
    """As /proc/cpuinfo names it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return os.uname().machine


def two_cores() -> tuple[int, int] | None:
    """(for what is measured, for everything else), or None on a single core."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[0], cores[1]) if len(cores) > 1 else None


class Child:
    """A child process that answers one JSON line with one JSON line, and ends when its input does."""

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], name: str) -> None:
        self._process = process
        self._log = log
        self._name = name
        self.pid = process.pid

    def ask(self, question: object, answer: type[T]) -> T:
        """Raises RunError with the end of the child's log when it failed."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RunError(f"{self._name} has no pipes")
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            return msgspec.json.decode(line, type=answer)
        except (OSError, msgspec.MsgspecError) as err:
            self._process.kill()
            self._process.wait()
            self._log.seek(0)
            raise RunError(f"{self._name} failed: {self._log.read()[-3000:].decode('utf-8', 'replace')}") from err

    def close(self) -> None:
        """End it: politely, then not. Idempotent."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def child(module: str, *args: str, core: int | None) -> Iterator[Child]:
    """`python -m tugline.testing.MODULE ARGS` on a core."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tugline.testing.{module}", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        )
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        started = Child(process, log, module)
        try:
            yield started
        finally:
            started.close()


def answer_lines(main: Callable[[Callable[[], Awaitable[bytes]], Callable[[object], None]], Awaitable[None]]) -> None:
    """Run a child's `main(read, write)` in uvloop. `read()` gives the next line, b"" at the end."""

    async def run() -> None:
        def write(value: object) -> None:
            sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
            sys.stdout.buffer.flush()

        async def read() -> bytes:
            return await asyncio.to_thread(sys.stdin.buffer.readline)

        await main(read, write)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def fields(line: bytes) -> dict[str, Any]:
    """A question as a child reads it."""
    return msgspec.json.decode(line, type=dict[str, Any])
