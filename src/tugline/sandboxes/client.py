"""The service's side of the warden: one socket, requests by number, no thread."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tugline.core.errors import SandboxError
from tugline.sandboxes.warden.jobs import receive

BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from warden.main import main; main()"
LOCK = "lock"
INLINE = 60_000
"""Larger requests travel in a memfd."""
T = TypeVar("T")


@dataclass(slots=True)
class Run:
    """A command in progress. `done` ends with {code, started, oom, why?}; `listening` with a socket."""

    id: int
    done: asyncio.Future[dict[str, Any]]
    listening: asyncio.Future[socket.socket]


@dataclass(slots=True)
class Warden:
    """A running warden. Make one with `start_warden`. All methods belong to one event loop."""

    control: socket.socket
    process: subprocess.Popen[bytes]
    limits: str = ""
    user: int = 0
    cgroups: tuple[str, ...] = ()
    _next: int = 0
    _waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _runs: dict[int, Run] = field(default_factory=dict)
    dead: bool = False
    """The warden is gone, and every sandbox with it."""

    async def call(self, op: str, **fields: object) -> Any:
        """One request, one reply. Raises SandboxError with the warden's words."""
        number = self._number()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            await self._send({"id": number, "op": op, **fields}, ())
            return await future
        finally:
            self._waiting.pop(number, None)

    async def tool(
        self, argv: Sequence[str], env: Mapping[str, str], seconds: float, whole: bool = False
    ) -> tuple[int, bytes, bytes]:
        """Run a program of the host to its end: (exit code or -signal, stdout, stderr). It dies with the warden, when
        cancelled, and after so many seconds (SandboxError); one that is `whole` only for the last reason."""
        call = self._tool(argv, env, seconds, whole)
        return await (uninterrupted(call) if whole else call)

    async def _tool(
        self, argv: Sequence[str], env: Mapping[str, str], seconds: float, whole: bool
    ) -> tuple[int, bytes, bytes]:
        number = self._number()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        fds = [memfd_with(b"") for _ in range(3)]
        try:
            await self._send({"id": number, "op": "tool", "argv": list(argv), "env": dict(env), "whole": whole}, fds)
            try:
                async with asyncio.timeout(seconds):
                    code = await asyncio.shield(future)
            except (TimeoutError, asyncio.CancelledError) as err:
                await uninterrupted(self._stop(number, future))
                if isinstance(err, TimeoutError):
                    raise SandboxError(f"`{' '.join(argv)[:200]}` did not end within {seconds:g} s") from err
                raise
            return code, spooled(fds[1]), spooled(fds[2])
        finally:
            self._waiting.pop(number, None)
            for fd in fds:
                os.close(fd)

    async def _stop(self, number: int, future: asyncio.Future[int]) -> None:
        with contextlib.suppress(SandboxError):
            await self._send({"id": 0, "op": "kill", "job": number}, ())
            await asyncio.wait([future])

    async def run(self, fds: Sequence[int], op: str = "run", **fields: object) -> Run:
        """Start a command, or with "attach" follow one. The descriptors stay the caller's."""
        loop = asyncio.get_running_loop()
        run = Run(self._number(), loop.create_future(), loop.create_future())
        self._runs[run.id] = run
        try:
            await self._send({"id": run.id, "op": op, **fields}, fds)
        except BaseException:
            self._runs.pop(run.id, None)
            raise
        return run

    async def go(self, run: Run) -> None:
        """Let a command start that waited for its listener."""
        await self._send({"id": 0, "op": "go", "job": run.id}, ())

    async def kill(self, run: Run) -> None:
        """Kill a command with all it started; returns when nothing is left, even if cancelled meanwhile."""
        if not run.done.done():
            await uninterrupted(self._kill(run))

    async def _kill(self, run: Run) -> None:
        with contextlib.suppress(SandboxError):
            await self._send({"id": 0, "op": "kill", "job": run.id}, ())
            await asyncio.wait([run.done])

    async def close(self) -> None:
        """Idempotent. Every process and mount of this warden is gone when it returns."""
        if not self.dead:
            self._lost("closed")
        code = await asyncio.to_thread(_wait, self.process)
        if code is None:
            raise SandboxError("the sandbox warden did not end within 30 s and was killed")

    def attach(self) -> None:
        """Start to read events on the running loop."""
        asyncio.get_running_loop().add_reader(self.control.fileno(), self._readable)

    def _number(self) -> int:
        self._next += 1
        return self._next

    async def _send(self, message: dict[str, object], fds: Sequence[int]) -> None:
        if self.dead:
            raise SandboxError("the sandbox warden has ended; sandboxes of this run are lost")
        data = msgspec.json.encode(message)
        memfd = -1
        if len(data) > INLINE:
            memfd = memfd_with(data)
            data, fds = msgspec.json.encode({"big": True}), (memfd, *fds)
        try:
            while True:
                try:
                    socket.send_fds(self.control, [data], list(fds))
                except BlockingIOError:
                    await _writable(self.control)
                except OSError as err:
                    raise SandboxError(f"the sandbox warden cannot be reached: {err}") from err
                else:
                    return
        finally:
            if memfd >= 0:
                os.close(memfd)

    def _readable(self) -> None:
        for _ in range(64):
            try:
                data, fds = receive(self.control)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._lost("died")
                return
            self._event(msgspec.json.decode(data), fds)

    def _event(self, message: dict[str, Any], fds: list[int]) -> None:
        listener = socket.socket(fileno=fds[0]) if fds else None
        number = message["id"]
        run = self._runs.get(number)
        future = run.done if run else self._waiting.get(number)
        if listener is not None:
            listener.setblocking(False)
            if run is None or run.listening.done():
                listener.close()
            else:
                run.listening.set_result(listener)
        elif future is not None:
            self._runs.pop(number, None)
            if run is not None and not run.listening.done():
                run.listening.cancel()
            if not future.done():
                if "error" in message:
                    future.set_exception(SandboxError(message["error"]))
                else:
                    future.set_result(message["ok"])

    def _lost(self, how: str) -> None:
        self.dead = True
        asyncio.get_running_loop().remove_reader(self.control.fileno())
        self.control.close()
        err = f"the sandbox warden {how}"
        for run in self._runs.values():
            if not run.listening.done():
                run.listening.cancel()
        for future in [*self._waiting.values(), *(r.done for r in self._runs.values())]:
            if not future.done():
                future.set_exception(SandboxError(err))
                future.exception()  # somebody may have stopped waiting: that is no loss
        self._runs.clear()


async def start_warden(config: dict[str, object], log: Path) -> Warden:
    """Start the warden program. `log` receives what it prints. Raises SandboxError: this machine cannot do it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = await asyncio.to_thread(_spawn, theirs.fileno(), msgspec.json.encode(config).decode(), log)
    ours.setblocking(False)
    warden = Warden(ours, process)
    hello: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    warden._waiting[0] = hello
    warden.attach()
    try:
        async with asyncio.timeout(30):
            facts = await hello
    except BaseException as err:
        await uninterrupted(warden.close())
        if isinstance(err, TimeoutError):
            raise SandboxError("the sandbox warden did not start within 30 s") from err
        raise
    finally:
        warden._waiting.pop(0, None)
    warden.limits, warden.user, warden.cgroups = facts["limits"], facts["user"], tuple(facts["cgroups"])
    return warden


def _spawn(fd: int, config: str, log: Path) -> subprocess.Popen[bytes]:
    """Start the program. It holds the lock beside its log for as long as it lives, also when nobody knows its pid."""
    folder = str(Path(__file__).parent)
    lock = os.open(log.with_name(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        with open(log, "ab") as out:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", BOOT, folder, str(fd), config], stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, pass_fds=(fd, lock), env={}, start_new_session=True, cwd="/",
            )  # fmt: skip
    finally:
        os.close(lock)


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(30)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return None


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sock.fileno(), _set, ready)
    try:
        await ready
    finally:
        loop.remove_writer(sock.fileno())


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def memfd_with(data: bytes) -> int:
    """A descriptor that reads `data` from its start."""
    fd = os.memfd_create("tugline", os.MFD_CLOEXEC)
    os.set_blocking(fd, False)  # memory never blocks; this says so to whoever watches the event loop
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def spooled(fd: int) -> bytes:
    """All of a memfd that a program has written to."""
    with io.FileIO(fd, closefd=False) as f:
        f.seek(0)
        return f.readall() or b""


async def uninterrupted(work: Awaitable[T]) -> T:
    """Await to the end although this task is cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as err:
            if task.cancelled():
                raise
            cancelled = err
        except BaseException:  # noqa: BLE001 - raised by task.result() below
            break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()
        raise cancelled
    return task.result()
