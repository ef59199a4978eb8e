"""One container sandbox: commands as containers, files by the host below the sandbox's root. See `container`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Gateway, Limits, Sandbox
from tugline.core.errors import SandboxError, boundary
from tugline.core.ident import new_id
from tugline.sandboxes import beneath, containerfiles, layout
from tugline.sandboxes.box import Opened, open_outputs, supervise
from tugline.sandboxes.client import Warden, memfd_with, spooled, uninterrupted
from tugline.sandboxes.containerfiles import AGENT_IDS, ROOT_IDS
from tugline.sandboxes.engine import Engine
from tugline.sandboxes.runtimes import IO, Bind, Shape, entry_script, tops_of

CLOSE_SECONDS = 60.0
KILLED = 137
"""Exit status of a shell whose command was ended by SIGKILL."""
GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
"""For uid 0: the work directory belongs to the agent, which git refuses to work with otherwise."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What of a command's container is fixed before the command is known."""

    root: bool
    binds: tuple[Bind, ...]


@dataclass(slots=True)
class Usual:
    """What agents' commands of one provider look like, learnt from the last one."""

    frame: Frame | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What boxes of one provider share, and this one's sizes. `stage` is the warden's directory."""

    warden: Warden
    engine: Engine
    label: str
    stage: str
    env: Mapping[str, str]
    limits: Limits
    cpus: float | None
    profile: str
    usual: Usual


@dataclass(frozen=True, slots=True)
class Waiting:
    """A container at its gate. `init` = host pid of its first process, `tops` what docker shows of the root."""

    name: str
    frame: Frame
    tops: tuple[str, ...]
    init: int


class ContainerSandbox:
    """One session's files. See `Sandbox` in core.contracts.

    `start_ahead` lets the agent's container wait at its gate while the session waits for its turn.
    """

    isolated = True
    home = layout.HOME

    def __init__(
        self, parts: Parts, name: str, view: layout.View, clone: Callable[[], Awaitable[ContainerSandbox]]
    ) -> None:
        self._parts = parts
        self.name = name
        self.view = view
        self._clone = clone
        self._running = 0
        self._removals: set[asyncio.Task[None]] = set()
        self._ahead: asyncio.Task[Waiting] | None = None
        self._closed: asyncio.Task[None] | None = None

    @property
    def workdir(self) -> str:
        """Path inside."""
        return self.view.workdir

    async def run(self, command: Command, deadline: Deadline, gateway: Gateway | None = None) -> Exit:
        """See Sandbox.run."""
        with boundary(SandboxError, "open the command's output files"):
            opened = await asyncio.to_thread(open_outputs, command)
        try:
            return await self.execute(command, deadline, gateway, opened)
        finally:
            opened.close()

    async def output(self, argv: tuple[str, ...], env: Mapping[str, str], seconds: float) -> tuple[int, str]:
        """Run a command as uid 0; (exit code, the end of its output)."""
        out = memfd_with(b"")
        opened = Opened(memfd_with(b""), {1: out, 2: os.dup(out)}, 1 << 16)
        try:
            end = await self.execute(Command(argv, env=env, root=True), Deadline.after(seconds), None, opened)
            return end.code, spooled(out).decode(errors="replace").strip()
        finally:
            opened.close()

    async def execute(self, command: Command, deadline: Deadline, gateway: Gateway | None, opened: Opened) -> Exit:
        """`run` with descriptors that are open already; they stay the caller's."""
        self._open()
        began = time.monotonic()
        self._running += 1
        waiting: Waiting | None = None
        try:
            async with asyncio.timeout_at(deadline.at):
                frame = await self._frame(command)
                if gateway is not None:
                    self._parts.usual.frame = frame
                waiting = await self._taken(frame) or await self._start(frame)
                io, script = self._io(waiting.name), self._script(command)
                await asyncio.to_thread(containerfiles.fill, Path(io), script, opened.stdin)
                self._open()
                run = await self._parts.warden.run(
                    list(opened.outputs.values()), "attach", box=self.name, init=waiting.init, io=io,
                    outputs=list(opened.outputs), limit=opened.limit, port=gateway.port if gateway else None,
                )  # fmt: skip
            end = await supervise(self._parts.warden, run, deadline, gateway)
            if not end.timed_out:
                end = replace(end, code=await self._parts.engine.ended(waiting.name))
                if end.code == KILLED and not end.oom:
                    end = replace(end, oom=await self._parts.engine.out_of_memory(waiting.name))
            if command.root and self._parts.engine.runtime.kind == "docker":
                await self._keep_new_tops(waiting.name)
            return end
        except TimeoutError:
            return Exit(-9, time.monotonic() - began, timed_out=True)
        finally:
            self._running -= 1
            if waiting is not None:
                self._remove_later(waiting.name)

    def start_ahead(self) -> None:
        """Start the agent's container now, if it is known how they look. One that turns out otherwise is removed."""
        if self._parts.usual.frame is not None:
            self._ahead = asyncio.create_task(self._start(self._parts.usual.frame))
            self._ahead.add_done_callback(_said)

    async def _taken(self, frame: Frame) -> Waiting | None:
        """The container that was started ahead, if it is what is needed now."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return None
        try:
            waiting = await asyncio.shield(ahead)
        except SandboxError:
            return None
        except asyncio.CancelledError:
            self._drop(ahead)
            raise
        tops, _ = await asyncio.to_thread(tops_of, self._root)
        if waiting.frame == frame and waiting.tops == tops:
            return waiting
        self._remove_later(waiting.name)
        return None

    def _drop(self, ahead: asyncio.Task[Waiting]) -> None:
        """Remove a container that nobody wants any more, once it is there."""

        async def drop() -> None:
            with contextlib.suppress(SandboxError):
                await self._remove((await ahead).name)

        self._keep(drop())

    def _remove_later(self, name: str) -> None:
        self._keep(self._remove(name))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    # ---------------------------------------------------------------------------------------------------- files

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See Sandbox.write."""
        place = layout.plain(path)
        await self._files(f"write {path}", beneath.write, place, data, mode & 0o7777, self._owner(place))

    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """See Sandbox.read."""
        self._open()
        with boundary(SandboxError, f"read {path}"):
            return await asyncio.to_thread(beneath.read, self._root, layout.plain(path), limit)

    async def upload(self, source: Path, target: str) -> None:
        """See Sandbox.upload. A single file is copied under the target's own name."""
        place = layout.plain(target)
        await self._files(f"upload to {target}", beneath.upload, source, place, self._owner(place))

    async def clone(self) -> Sandbox:
        """See Sandbox.clone. Copies nothing: both go on from the frozen work directory."""
        if self._running:
            raise SandboxError("cannot clone a sandbox while a command runs in it")
        self._running += 1
        try:
            if (ahead := self._ahead) is not None:  # it sees the work directory as it was before the freeze
                self._ahead = None
                self._drop(ahead)
            return await self._clone()
        finally:
            self._running -= 1

    async def give_work_to_agent(self) -> None:
        """Everything in the work directory belongs to the agent from now on. Its data is not copied."""
        with boundary(SandboxError, "give the work directory to the agent"):
            await asyncio.to_thread(containerfiles.give, self.view.work)

    async def close(self) -> None:
        """See Sandbox.close."""
        if self._closed is None:
            self._closed = asyncio.create_task(self._close())
        await uninterrupted(asyncio.shield(self._closed))

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._parts.warden.call("drop", name=self.name)
                if (ahead := self._ahead) is not None:
                    self._ahead = None
                    self._drop(ahead)
                while self._removals:
                    await asyncio.wait(self._removals)
        except TimeoutError as err:
            raise SandboxError(f"sandbox {self.name} could not be removed within {CLOSE_SECONDS:g} s") from err
        except SandboxError:
            if not self._parts.warden.dead:
                raise

    # --------------------------------------------------------------------------------------------------- inside

    @property
    def _root(self) -> Path:
        return Path(self.view.root)

    def _io(self, name: str) -> str:
        return f"{self._parts.stage}/io/{name}"

    def _open(self) -> None:
        if self._closed is not None:
            raise SandboxError("the sandbox is closed")

    def _owner(self, path: str) -> tuple[int, int]:
        mine = any(path == w or path.startswith(f"{w}/") for w in self.view.writable)
        return AGENT_IDS if mine else ROOT_IDS

    async def _files(self, what: str, work: Callable[..., None], *args: object) -> None:
        self._open()
        with boundary(SandboxError, what):
            await asyncio.to_thread(work, self._root, *args)

    async def _frame(self, command: Command) -> Frame:
        mounts = [(await self._parts.warden.call("bind", source=str(m.source)), m.target) for m in command.mounts]
        binds = tuple(Bind(source, layout.check_mount(self.view, target)) for source, target in mounts)
        return Frame(command.root, binds)

    def _script(self, command: Command) -> bytes:
        return entry_script(command.argv, self._env(command), command.cwd or self.workdir)

    async def _start(self, frame: Frame) -> Waiting:
        """Start a container that waits at its gate. Nothing of it is left when this is cancelled or fails."""
        name = f"tugline-{self._parts.label}-{self.name}-{new_id('c')[2:]}"
        try:
            return await self._started(name, frame)
        except BaseException:
            await uninterrupted(self._remove(name))
            raise

    async def _started(self, name: str, frame: Frame) -> Waiting:
        parts = self._parts
        with boundary(SandboxError, "lay out the command's files"):
            await asyncio.to_thread(containerfiles.lay_out, Path(self._io(name)))
            await asyncio.to_thread(containerfiles.mount_points, self.view.root, frame.binds)
            tops, links = await asyncio.to_thread(tops_of, self._root)
        writable = [Bind(f"{self.view.root}{path}", path, True) for path in self.view.writable]
        shm = Bind(f"{self.view.private}/shm", "/dev/shm", True)
        docker = parts.engine.runtime.kind == "docker"
        shape = Shape(
            name=name, label=parts.label, root=self.view.root, user="0" if frame.root else str(layout.AGENT),
            memory=parts.limits.memory, pids=parts.limits.pids, cpus=parts.cpus,
            binds=(*writable, shm, Bind(self._io(name), IO), *frame.binds),
            image=await parts.engine.skeleton(parts.label, links, parts.stage) if docker else "", tops=tops,
            profile=parts.profile,
        )  # fmt: skip
        return Waiting(name, frame, tops, await parts.engine.launch(shape))

    def _env(self, command: Command) -> dict[str, str]:
        """The image's variables, then the command's. Directories that the image has on its PATH come first."""
        own = {"PATH": layout.PATH, "HOME": "/root" if command.root else layout.HOME, **(GIT if command.root else {})}
        env = {**own, **self._parts.env, **command.env}
        if command.env.get("PATH") and self._parts.env.get("PATH"):
            given = command.env["PATH"].split(":")
            env["PATH"] = ":".join([*(p for p in self._parts.env["PATH"].split(":") if p not in given), *given])
        for name, value in env.items():
            if not name or "=" in name or "\0" in name + value:
                raise SandboxError(f"environment variable {name!r} cannot be passed")
        return env

    async def _keep_new_tops(self, name: str) -> None:
        """Under docker the root directory itself is the container's: what was made right in it is taken over."""
        changes = await self._parts.engine.call("diff", name)
        made = [line[2:] for line in changes.splitlines() if line.startswith("A ") and line.count("/") == 1]
        for path in await asyncio.to_thread(containerfiles.absent, self._root, made):
            await self._parts.engine.call("cp", "--archive", f"{name}:{path}", f"{self._root}{path}")

    async def _remove(self, name: str) -> None:
        """Its container and the directory of its pipes."""
        await self._parts.engine.remove(name)
        await asyncio.to_thread(containerfiles.discard, Path(self._io(name)))


def _said(task: asyncio.Task[Waiting]) -> None:
    """Whoever needs the container tries anew; why the first try failed interests nobody."""
    if not task.cancelled():
        task.exception()
