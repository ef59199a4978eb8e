"""One container sandbox: commands as containers, files by the host below the sandbox's root. See `container`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Gateway, Limits, Sandbox
from tugline.core.errors import SandboxError, boundary
from tugline.core.ident import new_id
from tugline.sandboxes import beneath, layout
from tugline.sandboxes.box import Opened, open_outputs, supervise
from tugline.sandboxes.client import Run, Warden, memfd_with, spooled, uninterrupted
from tugline.sandboxes.images import Engine
from tugline.sandboxes.runtimes import IO, Bind, Shape, entry_script, run_args, tops_of
from tugline.sandboxes.warden.kernel import folder_in

AGENT_IDS, ROOT_IDS = (layout.AGENT, layout.AGENT), (0, 0)
START_SECONDS = 120.0
CLOSE_SECONDS = 60.0
GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
"""For uid 0: the work directory belongs to the agent, which git refuses to work with otherwise."""


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


class ContainerSandbox:
    """One session's files. See `Sandbox` in core.contracts."""

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
        name = f"tugline-{self._parts.label}-{self.name}-{new_id('c')[2:]}"
        self._running += 1
        run: Run | None = None
        try:
            async with asyncio.timeout_at(deadline.at):
                init = await self._started(name, command, opened.stdin)
                self._open()
                run = await self._parts.warden.run(
                    list(opened.outputs.values()), "attach", box=self.name, init=init, io=self._io(name),
                    outputs=list(opened.outputs), limit=opened.limit, port=gateway.port if gateway else None,
                )  # fmt: skip
            end = await supervise(self._parts.warden, run, deadline, gateway)
            end = end if end.timed_out else replace(end, code=await self._code(name))
            if command.root and self._parts.engine.runtime.kind == "docker":
                await self._keep_new_tops(name)
            return end
        except TimeoutError:
            return Exit(-9, time.monotonic() - began, timed_out=True)
        finally:
            self._running -= 1
            if run is None:
                await uninterrupted(self._remove(name))  # nobody else knows whether it runs
            else:
                task = asyncio.create_task(self._remove(name))
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
            return await self._clone()
        finally:
            self._running -= 1

    async def give_work_to_agent(self) -> None:
        """Everything in the work directory belongs to the agent from now on. Its data is not copied."""
        with boundary(SandboxError, "give the work directory to the agent"):
            await asyncio.to_thread(_give, self.view.work)

    async def close(self) -> None:
        """See Sandbox.close."""
        if self._closed is None:
            self._closed = asyncio.create_task(self._close())
        await uninterrupted(asyncio.shield(self._closed))

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._parts.warden.call("drop", name=self.name)
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

    async def _started(self, name: str, command: Command, stdin: int) -> int:
        """Start the command's container, waiting at its gate. The host's pid of its first process."""
        parts = self._parts
        mounts = [(await parts.warden.call("bind", source=str(m.source)), m.target) for m in command.mounts]
        binds = [Bind(source, layout.check_mount(self.view, target)) for source, target in mounts]
        script = entry_script(command.argv, self._env(command), command.cwd or self.workdir)
        with boundary(SandboxError, "lay out the command's files"):
            await asyncio.to_thread(_lay_out, Path(self._io(name)), script, stdin)
            await asyncio.to_thread(_mount_points, self.view.root, binds)
            tops, links = await asyncio.to_thread(tops_of, self._root)
        writable = [Bind(f"{self.view.root}{path}", path, True) for path in self.view.writable]
        shm = Bind(f"{self.view.private}/shm", "/dev/shm", True)
        docker = parts.engine.runtime.kind == "docker"
        shape = Shape(
            name=name, label=parts.label, root=self.view.root, user="0" if command.root else str(layout.AGENT),
            memory=parts.limits.memory, pids=parts.limits.pids, cpus=parts.cpus,
            binds=(*(writable if docker else ()), shm, Bind(self._io(name), IO), *binds),
            image=await parts.engine.skeleton(parts.label, links) if docker else "", tops=tops,
            profile=parts.profile,
        )  # fmt: skip
        await parts.engine.call(*run_args(parts.engine.runtime, shape), seconds=START_SECONDS)
        said = await parts.engine.call("inspect", "--format", "{{.State.Pid}}", name)
        if not said.isdigit() or said == "0":
            raise SandboxError("the command's container ended before it could start; has the image a /bin/sh?")
        return int(said)

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

    async def _code(self, name: str) -> int:
        """Exit code of an ended container, as the engine tells it."""
        said = (await self._parts.engine.call("wait", name)).split()
        if not said or not said[-1].lstrip("-").isdigit():
            raise SandboxError(f"the engine does not know how the command ended: {' '.join(said)[:200]}")
        return int(said[-1])

    async def _keep_new_tops(self, name: str) -> None:
        """Under docker the root directory itself is the container's: what was made right in it is taken over."""
        changes = await self._parts.engine.call("diff", name)
        made = [line[2:] for line in changes.splitlines() if line.startswith("A ") and line.count("/") == 1]
        for path in await asyncio.to_thread(_absent, self._root, made):
            await self._parts.engine.call("cp", "--archive", f"{name}:{path}", f"{self._root}{path}")

    async def _remove(self, name: str) -> None:
        """Its container and the directory of its pipes. What fails here the warden does at its end."""
        with contextlib.suppress(SandboxError):
            await self._parts.engine.attempt("rm", "--force", "--volumes", name)
        await asyncio.to_thread(_discard, Path(self._io(name)))


def _lay_out(io: Path, script: bytes, stdin: int) -> None:
    """The directory that a container sees as /run/tugline. Its parent keeps other users of this machine out."""
    io.parent.mkdir(mode=0o700, exist_ok=True)
    io.mkdir(mode=0o755)
    (io / "entry").write_bytes(script)
    (io / "entry").chmod(0o644)
    with open(stdin, "rb", closefd=False) as source, open(io / "in", "wb") as target:
        source.seek(0)
        while data := source.read(1 << 20):
            target.write(data)
    (io / "in").chmod(0o644)
    for name in ("out", "err", "gate"):
        os.mkfifo(io / name)
        (io / name).chmod(0o666)


def _mount_points(root: str, binds: list[Bind]) -> None:
    """Places for binds in a root that the container cannot write to."""
    os.close(folder_in(root, IO))
    for bind in binds:
        if os.path.isdir(bind.source):
            os.close(folder_in(root, bind.target))
        elif beneath.read(Path(root), bind.target, 1 << 30) is None:
            beneath.write(Path(root), bind.target, b"", 0o644)
    for name in ("hosts", "hostname", "resolv.conf"):
        at = Path(root, "etc", name)
        if not at.exists() and not at.is_symlink():
            beneath.write(Path(root), f"/etc/{name}", b"", 0o644)


def _absent(root: Path, paths: list[str]) -> list[str]:
    """Those of some top paths that `root` has not."""
    return [p for p in paths if p != "/.dockerenv" and not os.path.lexists(f"{root}{p}")]


def _discard(io: Path) -> None:
    for name in ("entry", "in", "out", "err", "gate"):
        with contextlib.suppress(OSError):
            (io / name).unlink()
    with contextlib.suppress(OSError):
        io.rmdir()


def _give(top: str) -> None:
    """chown to the agent, links themselves too; a file's set-id bits go, as the kernel wants it."""
    os.chown(top, *AGENT_IDS)
    for folder, names, files in os.walk(top):
        for name in [*names, *files]:
            at = os.path.join(folder, name)
            if os.lstat(at).st_uid != layout.AGENT or stat.S_ISDIR(os.lstat(at).st_mode):
                os.chown(at, *AGENT_IDS, follow_symlinks=False)
