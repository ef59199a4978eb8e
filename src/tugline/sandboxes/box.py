"""One bubblewrap sandbox: commands and files. See `BubblewrapProvider` for how it comes to be."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Gateway, Sandbox
from tugline.core.errors import SandboxError, boundary
from tugline.sandboxes import files, layout
from tugline.sandboxes.client import Run, Warden, memfd_with, spooled, uninterrupted

OUTPUT_LIMIT = 64 << 20
"""Bytes kept of each output of a command."""
FILE_SECONDS = 120.0


class BubblewrapSandbox:
    """One session's files. See `Sandbox` in core.contracts."""

    isolated = True
    home = layout.HOME

    def __init__(
        self,
        warden: Warden,
        name: str,
        view: layout.View,
        scratch: Path,
        clone: Callable[[], Awaitable[BubblewrapSandbox]],
    ) -> None:
        self._warden = warden
        self.name = name
        self.view = view
        self._scratch = scratch
        self._clone = clone
        self._running = 0
        self._closed: asyncio.Task[None] | None = None

    @property
    def workdir(self) -> str:
        """Path inside."""
        return self.view.workdir

    async def run(self, command: Command, deadline: Deadline, gateway: Gateway | None = None) -> Exit:
        """See Sandbox.run. The first process is a shell that replaces itself: an unknown program ends with 127."""
        with boundary(SandboxError, "open the command's output files"):
            opened = await asyncio.to_thread(open_outputs, command)
        try:
            end = await self.execute(command, deadline, gateway, opened)
        finally:
            opened.close()
        return end

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See Sandbox.write."""
        argv = files.shell(files.WRITE, layout.plain(path), f"{mode & 0o7777:o}")
        await self._tool(f"write {path}", argv, memfd_with(data))

    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """See Sandbox.read."""
        argv = files.shell(files.READ, layout.plain(path), str(limit + 1))
        code, data = await self._tool(f"read {path}", argv, memfd_with(b""), (0, files.ABSENT), limit + 1)
        if len(data) > limit:
            raise SandboxError(f"read {path}: larger than {limit} bytes")
        return data if code == 0 else None

    async def upload(self, source: Path, target: str) -> None:
        """See Sandbox.upload. A single file is copied under the target's own name."""
        path = layout.plain(target)
        with boundary(SandboxError, f"pack {source}"):
            single = await asyncio.to_thread(source.is_file)
            name = path.rpartition("/")[2] if single else None
            fd = await asyncio.to_thread(files.pack, source, name, self._scratch)
        into = path.rpartition("/")[0] or "/" if single else path
        await self._tool(f"upload to {target}", files.shell(files.UNPACK, into), fd)

    async def clone(self) -> Sandbox:
        """See Sandbox.clone. Copies nothing: both go on from the frozen work directory."""
        if self._running:
            raise SandboxError("cannot clone a sandbox while a command runs in it")
        self._running += 1
        try:
            return await self._clone()
        finally:
            self._running -= 1

    async def close(self) -> None:
        """See Sandbox.close."""
        if self._closed is None:
            self._closed = asyncio.create_task(self._close())
        await uninterrupted(asyncio.shield(self._closed))

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(60):
                await self._warden.call("drop", name=self.name)
        except TimeoutError as err:
            raise SandboxError(f"sandbox {self.name} could not be removed within 60 s") from err
        except SandboxError:
            if not self._warden.dead:
                raise

    async def _tool(
        self, what: str, argv: tuple[str, ...], stdin: int, fine: tuple[int, ...] = (0,), limit: int = 4096
    ) -> tuple[int, bytes]:
        """Run one of our own scripts as root inside. Takes over `stdin`. Raises SandboxError unless it ends `fine`."""
        opened = Opened(stdin, {1: memfd_with(b""), 2: memfd_with(b"")}, limit)
        try:
            command = Command(argv, cwd="/", root=True)
            end = await self.execute(command, Deadline.after(FILE_SECONDS), None, opened)
            if end.code not in fine:
                text = spooled(opened.outputs[2]).decode(errors="replace").strip()[-300:]
                reason = "not a regular file" if end.code == files.NOT_A_FILE else text or f"exit {end.code}"
                raise SandboxError(f"{what}: {'took too long' if end.timed_out else reason}")
            return end.code, spooled(opened.outputs[1])
        finally:
            opened.close()

    async def execute(self, command: Command, deadline: Deadline, gateway: Gateway | None, opened: Opened) -> Exit:
        """`run` with descriptors that are open already; they stay the caller's."""
        if self._closed is not None:
            raise SandboxError("the sandbox is closed")
        self._running += 1
        args = -1
        try:
            mounts = [(await self._warden.call("bind", source=str(m.source)), m.target) for m in command.mounts]
            start = layout.Start(command.env, command.cwd or self.workdir, mounts, command.root)
            args = memfd_with(b"".join(a.encode() + b"\0" for a in layout.bwrap_args(self.view, start)))
            run = await self._warden.run(
                [opened.stdin, args, *opened.outputs.values()], box=self.name,
                argv=("/bin/sh", "-c", 'exec "$@"', "sh", *command.argv), outputs=list(opened.outputs),
                limit=opened.limit, port=gateway.port if gateway else None,
                dests=layout.destinations(self.view, start),
            )  # fmt: skip
            return await supervise(self._warden, run, deadline, gateway)
        finally:
            self._running -= 1
            if args >= 0:
                os.close(args)


async def supervise(warden: Warden, run: Run, deadline: Deadline, gateway: Gateway | None) -> Exit:
    """Follow a command to its end: listener first, then go; kill at the deadline or on cancellation."""
    began = time.monotonic()
    timed_out = False
    closer: Callable[[], Awaitable[None]] | None = None
    try:
        async with asyncio.timeout_at(deadline.at):
            if gateway is not None:
                closer = await gateway.serve(await _listener(run))
                began = time.monotonic()
                await warden.go(run)
            await asyncio.wait([run.done])
    except TimeoutError:
        timed_out = True
    finally:
        await warden.kill(run)
        seconds = time.monotonic() - began
        if closer is not None:
            await uninterrupted(closer())
        elif run.listening.done() and not run.listening.cancelled():
            run.listening.result().close()
    end = run.done.result()
    if not end["started"] and not timed_out:
        raise _not_started(end)
    return Exit(end["code"], seconds, timed_out, end["oom"])


async def _listener(run: Run) -> socket.socket:
    """The socket inside the sandbox. Raises SandboxError when the command ended before there was one."""
    await asyncio.wait([run.listening])
    if run.listening.cancelled():
        end = run.done.result()
        raise _not_started(end)
    return run.listening.result()


def _not_started(end: dict[str, Any]) -> SandboxError:
    why = str(end.get("why", "")).strip()[-500:]
    return SandboxError(f"the command could not be started: {why or 'no reason given'}")


@dataclass(frozen=True, slots=True)
class Opened:
    """Descriptors of one command: stdin, kept outputs by number."""

    stdin: int
    outputs: dict[int, int]
    limit: int = OUTPUT_LIMIT

    def close(self) -> None:
        for fd in (self.stdin, *self.outputs.values()):
            os.close(fd)


def open_outputs(command: Command) -> Opened:
    """Descriptors for a command's stdin and output files (created, emptied). Raises OSError."""
    outputs: dict[int, int] = {}
    try:
        for number, path in ((1, command.stdout), (2, command.stderr)):
            if path is not None and number == 2 and path == command.stdout:
                outputs[2] = os.dup(outputs[1])
            elif path is not None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
                outputs[number] = os.open(path, flags, 0o600)
        return Opened(memfd_with(command.stdin), outputs)
    except BaseException:
        for fd in outputs.values():
            os.close(fd)
        raise
