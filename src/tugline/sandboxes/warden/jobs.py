"""Commands: start one, hold it until it may run, kill it with everything it started, know when nothing is left.

A job is either a bwrap process (its command lives in a pid namespace whose init is `init`) or a keeper (see
`keeper.py`). It is over only when the monitor is reaped and that init is dead, hence every process inside too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import Any

from . import kernel

CHUNK = 1 << 18
TAIL = 2000
MARK = b"\n[tugline: the output went on; the rest was dropped]\n"


@dataclass(slots=True)
class Pump:
    """Moves one output pipe into a host file, at most `left` bytes; never lets the writer wait for long."""

    source: int
    target: int
    left: int
    tail: bytes = b""
    marked: bool = False

    def step(self) -> int:
        """Move what is there. Bytes read; 0 at the end of the pipe, -1 when there is nothing now."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return -1
        self.tail = (self.tail + data[-TAIL:])[-TAIL:]
        kept = data[: self.left]
        self.left -= len(kept)
        if len(kept) < len(data) and not self.marked:
            self.marked = True
            kept += MARK
        with contextlib.suppress(OSError):  # a full host disk loses log text, not the session
            while kept:
                kept = kept[os.write(self.target, kept) :]
        return len(data)

    def drain(self) -> None:
        """The writers are dead: take the rest and close."""
        while self.step() > 0:
            pass
        os.close(self.source)
        os.close(self.target)


@dataclass(frozen=True, slots=True)
class Meter:
    """An open file of a control group with a line `oom_kill N`."""

    fd: int

    def read(self) -> int:
        """Processes that the kernel killed for memory so far; 0 once the group is gone."""
        with contextlib.suppress(OSError):
            for line in os.pread(self.fd, 4096, 0).splitlines():
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
        return 0


@dataclass(slots=True)
class Job:
    """A command in progress."""

    id: int
    box: str
    pid: int
    status: int
    """Read end of bwrap's status pipe (or the keeper's)."""
    gate: int
    """Write end of the pipe that the command waits on before it starts."""
    port: int | None
    init: int = 0
    pidfd: int = -1
    init_dead: bool = False
    set_up: bool = False
    wait: int | None = None
    """Wait status of the monitor once reaped."""
    keeper: bool = False
    """The monitor is a keeper: it must end the tree itself, so it is asked by SIGTERM."""
    killed: bool = False
    pending: bytes = b""
    ended: bool = False
    """The status pipe is at its end."""
    pumps: list[Pump] = field(default_factory=list)
    ooms: int = 0
    trouble: str | None = None
    """Why we killed it before it started."""
    hold: int = -1
    """Keeps the gate's pipe alive until the command has read from it; for engines."""
    meter: Meter | None = None
    """Counts out-of-memory kills where an engine made the control group."""

    @property
    def over(self) -> bool:
        """Monitor reaped and nothing left inside."""
        return self.wait is not None and (self.init_dead or self.pidfd < 0)

    def read_status(self) -> bool:
        """Take what bwrap reports. True when the init process has just become known."""
        if self.status < 0:
            return False
        try:
            data = os.read(self.status, 4096)
        except BlockingIOError:
            return False
        self.ended = self.ended or not data
        self.pending += data
        born = False
        while b"\n" in self.pending:
            line, _, self.pending = self.pending.partition(b"\n")
            report: dict[str, Any] = json.loads(line)
            if "child-pid" in report and self.pidfd < 0:
                self.init = int(report["child-pid"])
                with contextlib.suppress(ProcessLookupError):
                    self.pidfd = os.pidfd_open(self.init)
                    born = True
            if "exit-code" in report:
                self.set_up = True
        return born

    def release(self) -> None:
        """Let the command start. Does nothing the second time."""
        if self.gate >= 0:
            with contextlib.suppress(OSError):
                os.write(self.gate, b"1\n")
            os.close(self.gate)
            self.gate = -1
            # bwrap still has to say so; a keeper may be killed by its own command, a container has an engine
            self.set_up = self.keeper or self.hold >= 0

    def kill(self) -> None:
        """SIGKILL everything inside. Before the init process is known this only notes the wish."""
        self.killed = True
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGTERM if self.keeper else signal.SIGKILL)

    def kill_rest(self) -> None:
        """The monitor is gone: whatever is left inside goes too."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Drain the outputs, close every descriptor."""
        for pump in self.pumps:
            pump.drain()
        for fd in (self.status, self.gate, self.hold, self.pidfd, self.meter.fd if self.meter else -1):
            if fd >= 0:
                os.close(fd)

    def result(self) -> dict[str, Any]:
        """How it ended: exit code or -signal, and for a command that never ran, why."""
        code = os.waitstatus_to_exitcode(self.wait or 0)
        if self.killed and self.wait:
            code = -signal.SIGKILL
        out: dict[str, Any] = {"code": code, "started": self.trouble is None and (self.set_up or self.killed)}
        if not out["started"]:
            out["why"] = self.trouble or (self.pumps[-1].tail.decode(errors="replace") if self.pumps else "")
        return out


@dataclass(frozen=True, slots=True)
class Outputs:
    """Read ends for the warden, write ends for the child, by the child's descriptor number."""

    pumps: list[Pump]
    child: dict[int, int]


def open_outputs(files: dict[int, int], limit: int) -> Outputs:
    """A pipe for each output that is kept, /dev/null for the others."""
    pumps: list[Pump] = []
    child: dict[int, int] = {}
    for number in (1, 2):
        if number in files:
            read, write = os.pipe()
            os.set_blocking(read, False)
            pumps.append(Pump(read, files[number], limit))
            child[number] = write
        else:
            child[number] = os.open(os.devnull, os.O_WRONLY)
    return Outputs(pumps, child)


def start(
    argv: list[str], env: dict[str, str], fds: dict[int, int], owner: tuple[int, int] | None, last_wish: int
) -> int:
    """fork and exec with exactly `fds` (child number -> our descriptor) open. Returns the pid.

    `owner` drops to that user first. `last_wish` is the signal the child gets when the warden is killed.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        top = max(*fds.values(), *fds) + 1
        moved = {number: _dup_above(fd, top) for number, fd in fds.items()}
        for number, fd in moved.items():
            os.dup2(fd, number, inheritable=True)
        os.closerange(max(fds) + 1, 1 << 20)
        if owner is not None:
            os.setgroups([])
            os.setresgid(owner[1], owner[1], owner[1])
            os.setresuid(owner[0], owner[0], owner[0])
        kernel.prctl(kernel.PR_SET_PDEATHSIG, last_wish)
        if os.getppid() != parent:
            os._exit(1)
        os.chdir("/")
        os.umask(0o022)
        os.execve(argv[0], argv, env)
    except BaseException as err:  # noqa: BLE001 - the forked child must never return into the loop
        os.write(2, f"{type(err).__name__}: {err}\n".encode())
    finally:
        os._exit(127)


def holding(data: bytes) -> int:
    """A descriptor of its own that reads `data`."""
    fd = os.memfd_create("tugline", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _dup_above(fd: int, lowest: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)


def listen_inside(init: int, port: int) -> socket.socket:
    """A socket that listens on 127.0.0.1:`port` of the network namespace of process `init`. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        pid = os.fork()
        if pid == 0:
            _listen_child(init, port, theirs)
        theirs.close()
        ours.settimeout(10)
        try:
            message, fds = receive(ours)
        finally:
            os.waitpid(pid, 0)
    if not fds:
        raise OSError(f"cannot listen inside the sandbox: {message.decode(errors='replace')}")
    return socket.socket(fileno=fds[0])


def _listen_child(init: int, port: int, reply: socket.socket) -> None:
    try:
        signal.set_wakeup_fd(-1)
        kernel.setns(os.open(f"/proc/{init}/ns/net", os.O_RDONLY), kernel.NEWNET)
        server = socket.socket()
        server.setsockopt(socket.SOL_IP, kernel.IP_FREEBIND, 1)  # the loopback may come up a moment later
        server.bind(("127.0.0.1", port))
        server.listen(256)
        socket.send_fds(reply, [b"ok"], [server.fileno()])
    except BaseException as err:  # noqa: BLE001 - see start()
        with contextlib.suppress(OSError):
            reply.send(f"{type(err).__name__}: {err}".encode()[:500])
    finally:
        os._exit(0)


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One datagram and its descriptors, which no child inherits. (`socket.recv_fds` ignores its flags.)"""
    data, fds, _, _ = socket.recv_fds(sock, 1 << 17, 8)
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds


def interpreter(folder: str, module: str, *args: str) -> list[str]:
    """argv of a module of this package as a program: isolated from the user's Python settings."""
    boot = f"import sys; sys.path.insert(0, sys.argv[1]); from warden.{module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", boot, folder, *args]
