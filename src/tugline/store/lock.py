"""One writer per run directory: RUN/lock, held with flock, naming its owner for whoever comes second.

flock ends with its owner, also at kill -9, unless a forked child still holds the descriptor: then the content says that
the owner is dead, and the lock file is replaced. Readers never lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tugline.core.errors import RunError

_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL)
"""What file systems without working flock answer."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a run directory. `started` is Unix seconds."""

    pid: int
    host: str
    started: float
    command: str
    scope: str
    """Boot and pid namespace: only inside it can a pid be checked."""
    ticks: str
    """The process's start in clock ticks since boot; tells a reused pid from the owner."""

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"process {self.pid} on {self.host} since {when}: {self.command}"


class RunLock:
    """A held lock. `dead` is the owner that it was taken over from, if that one never released it."""

    def __init__(self, file: Path, fd: int, dead: Owner | None) -> None:
        self._file = file
        self._fd = fd
        self.dead = dead

    @classmethod
    def acquire(cls, file: Path, started: float) -> RunLock:
        """Take the lock. Raises RunError naming the owner when another process, or this one, holds it."""
        with _alone(file.parent):
            fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                previous = _read(fd)
                if not _flock(fd, previous):
                    if previous is None or not _is_dead(previous):
                        raise RunError(f"{file.parent} is in use by {previous or 'another process'}")
                    file.unlink()  # a child of the dead owner still holds the old file
                    os.close(fd)
                    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
                    _flock(fd, None)
                _write(fd, msgspec.json.encode(_myself(started)))
            except BaseException:
                os.close(fd)
                raise
        return cls(file, fd, previous)

    def release(self) -> None:
        """Let go. The empty file stays: removing it would race with the next owner."""
        if self._fd >= 0:
            _write(self._fd, b"")
            os.close(self._fd)
            self._fd = -1


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Serialise acquisitions, so that two processes cannot both replace a dead owner's file."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError as err:
            if err.errno not in _NO_FLOCK:
                raise
        yield
    finally:
        os.close(fd)


def _flock(fd: int, previous: Owner | None) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as err:
        if err.errno not in _NO_FLOCK:
            raise
        return previous is None or _is_dead(previous)  # no flock here: the content is all there is
    return True


def _read(fd: int) -> Owner | None:
    try:
        return msgspec.json.decode(os.pread(fd, 1 << 16, 0), type=Owner)
    except msgspec.MsgspecError:
        return None  # empty: released; torn: its owner died while writing it


def _write(fd: int, text: bytes) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, text, 0)


def _myself(started: float) -> Owner:
    command = " ".join(sys.argv)[:500] or sys.executable
    return Owner(os.getpid(), socket.gethostname(), started, command, _scope(), _ticks(os.getpid()))


def _is_dead(owner: Owner) -> bool:
    if owner.scope != _scope() or owner.host != socket.gethostname():
        return False  # cannot be told from here
    return _ticks(owner.pid) != owner.ticks


def _scope() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _ticks(pid: int) -> str:
    """Start time of a process, "" when there is none (a zombie counts as none: it cannot write any more)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
