"""Plain processes on this machine, for agents that you trust. NO isolation: they see your files and your network.

A sandbox is a host directory laid out like the inside of a real one: /app is `<dir>/app`, /logs is `<dir>/logs`, the
home is `<dir>/home/agent`. Programs get these paths by their working directory and by HOME, TUGLINE_WORKDIR, APP_DIR
and LOGS_DIR; what writes to an absolute /app goes past it. Dockerfile RUN steps would run on the host and are refused.
Memory, process and disk limits are not enforced. What is kept: a clean environment, and no process of a command
outlives it. Judging happens in a bubblewrap sandbox over a copy of the work directory where that works here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Gateway, Limits, Sandbox
from tugline.core.errors import SandboxError, boundary
from tugline.core.task import Copy, Environment
from tugline.sandboxes import beneath, instance, layout
from tugline.sandboxes.box import OUTPUT_LIMIT, open_outputs, supervise
from tugline.sandboxes.bubblewrap import BubblewrapProvider
from tugline.sandboxes.client import Warden, start_warden, uninterrupted


class LocalProvider:
    """Makes directories. See the module's text for what is not promised."""

    name = "local"
    isolating = False

    def __init__(self, state_dir: Path, run_id: str, hide: Sequence[Path] = ()) -> None:
        self._state_dir = state_dir
        self._run_id = run_id
        self._lock = asyncio.Lock()
        self._host: tuple[Warden, instance.Instance] | None = None
        self._judges = BubblewrapProvider(state_dir, run_id, hide)
        self._judges_work: bool | None = None
        self._count = 0

    async def check(self) -> list[str]:
        """Local sandboxes need nothing but Linux."""
        try:
            await self._started()
        except SandboxError as err:
            return [err.message]
        return []

    async def describe(self) -> str:
        """One line for people, with the warning."""
        where = "bubblewrap" if await self._can_judge_apart() else "another local directory"
        return f"local: NO isolation, for trusted agents only; no memory or disk limit; judged in {where}"

    async def start(self, environment: Environment, session_id: str, limits: Limits) -> LocalSandbox:
        """See SandboxProvider. Raises SandboxError for RUN steps."""
        box = await self._box(environment, limits)
        try:
            for step in environment.steps:
                if not isinstance(step, Copy):
                    raise SandboxError(f"local sandboxes do not run `{step[:80]}` on this machine; use bubblewrap")
                target = step.target if step.target.startswith("/") else f"{environment.workdir}/{step.target}"
                if step.target.endswith("/") and await asyncio.to_thread(step.source.is_file):
                    target = f"{target}/{step.source.name}"
                await box.upload(step.source, target.replace("/./", "/"))
        except BaseException:
            await uninterrupted(box.close())
            raise
        return box

    async def reap(self) -> int:
        """See SandboxProvider."""
        with boundary(SandboxError, "remove left-over sandboxes"):
            return await asyncio.to_thread(instance.reap, self._state_dir)

    async def close(self) -> None:
        """See SandboxProvider."""
        await uninterrupted(self._close())

    async def _close(self) -> None:
        async with self._lock:
            host, self._host = self._host, None
            await self._judges.close()
            if host is not None:
                warden, place = host
                try:
                    await warden.close()
                finally:
                    await asyncio.to_thread(instance.discard, place, warden.cgroups)

    async def judge_box(self, box: LocalSandbox) -> Sandbox:
        """A box for judging what is in `box`: isolated where possible."""
        environment, limits = box.origin
        work = box.place / layout.plain(environment.workdir).lstrip("/")
        if await self._can_judge_apart():
            return await self._judges.start_with(environment, limits, work)
        clone = await self._box(environment, limits)
        try:
            await clone.upload(work, environment.workdir)
        except BaseException:
            await uninterrupted(clone.close())
            raise
        return clone

    async def _can_judge_apart(self) -> bool:
        if self._judges_work is None:
            self._judges_work = not await self._judges.check()
        return self._judges_work

    async def _started(self) -> tuple[Warden, instance.Instance]:
        async with self._lock:
            if self._host is None:
                self._host = await uninterrupted(self._start_host())
            return self._host

    async def _start_host(self) -> tuple[Warden, instance.Instance]:
        with boundary(SandboxError, f"make the sandbox state directory in {self._state_dir}"):
            place = await asyncio.to_thread(instance.create, self._state_dir, self._run_id, False)
        try:
            warden = await start_warden({"mode": "plain", "label": place.label}, place.path / "warden.log")
        except BaseException:
            await asyncio.to_thread(instance.discard, place)
            raise
        await asyncio.to_thread(instance.sign, place, self._run_id, warden.process.pid, warden.cgroups)
        return warden, place

    async def _box(self, environment: Environment, limits: Limits) -> LocalSandbox:
        warden, place = await self._started()
        self._count += 1
        path = place.path / f"b{self._count}"
        workdir = layout.check_workdir(environment.workdir)
        with boundary(SandboxError, f"make {path}"):
            await asyncio.to_thread(_lay_out, path, workdir)
        return LocalSandbox(self, warden, path, (environment, limits))


class LocalSandbox:
    """A directory. See `Sandbox` in core.contracts."""

    isolated = False

    def __init__(
        self, provider: LocalProvider, warden: Warden, place: Path, origin: tuple[Environment, Limits]
    ) -> None:
        self._provider = provider
        self._warden = warden
        self.place = place
        self.origin = origin
        self._closed = False

    @property
    def workdir(self) -> str:
        """A host path."""
        return self.real(self.origin[0].workdir)

    @property
    def home(self) -> str:
        """A host path."""
        return self.real(layout.HOME)

    def real(self, path: str) -> str:
        """Host path of a sandbox path; host paths below this sandbox stay as they are."""
        top = str(self.place)
        return path if path == top or path.startswith(f"{top}/") else top + layout.plain(path)

    async def run(self, command: Command, deadline: Deadline, gateway: Gateway | None = None) -> Exit:
        """See Sandbox.run. `gateway`, `mounts` and `root` mean nothing here: the network and files are the host's."""
        if self._closed:
            raise SandboxError("the sandbox is closed")
        with boundary(SandboxError, "open the command's output files"):
            opened = await asyncio.to_thread(open_outputs, command)
        try:
            run = await self._warden.run(
                [opened.stdin, *opened.outputs.values()], box=str(self.place), argv=self._argv(command), dests=[],
                outputs=list(opened.outputs), limit=OUTPUT_LIMIT, port=None, env=self._env(command),
                cwd=self.real(command.cwd) if command.cwd else self.workdir,
            )  # fmt: skip
            return await supervise(self._warden, run, deadline, None)
        finally:
            opened.close()

    def _argv(self, command: Command) -> list[str]:
        """Arguments that name a file of the sandbox's home become host paths; nothing else is touched."""
        return [self.real(a) if a.startswith(f"{layout.HOME}/") else a for a in command.argv]

    def _env(self, command: Command) -> dict[str, str]:
        """The command's environment with sandbox paths of its own tree made host paths."""
        own = (layout.HOME, layout.plain(self.origin[0].workdir), "/logs", "/tests", "/solution")
        given = {
            name: self.real(value) if any(value == p or value.startswith(f"{p}/") for p in own) else value
            for name, value in command.env.items()
        }
        base = {
            "PATH": layout.PATH, "HOME": self.home, "TMPDIR": self.real("/tmp"), "TUGLINE_WORKDIR": self.workdir,
            "APP_DIR": self.workdir, "LOGS_DIR": self.real("/logs/verifier"),
        }  # fmt: skip
        return {**base, **given}

    async def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See Sandbox.write."""
        with boundary(SandboxError, f"write {path}"):
            await asyncio.to_thread(beneath.write, self.place, self._inner(path), data, mode)

    async def read(self, path: str, limit: int = 1 << 20) -> bytes | None:
        """See Sandbox.read. Links are followed as if this sandbox's directory were the root."""
        with boundary(SandboxError, f"read {path}"):
            return await asyncio.to_thread(beneath.read, self.place, self._inner(path), limit)

    async def upload(self, source: Path, target: str) -> None:
        """See Sandbox.upload. A single file is copied under the target's own name."""
        with boundary(SandboxError, f"upload to {target}"):
            await asyncio.to_thread(beneath.upload, self.place, source, self._inner(target))

    async def clone(self) -> Sandbox:
        """See Sandbox.clone."""
        return await self._provider.judge_box(self)

    async def close(self) -> None:
        """See Sandbox.close."""
        if not self._closed:
            self._closed = True
            await uninterrupted(self._remove())

    async def _remove(self) -> None:
        try:
            await self._warden.call("drop", name=str(self.place))
            await self._warden.call("remove", path=str(self.place))
        except SandboxError:
            if not self._warden.dead:
                raise
            await asyncio.to_thread(shutil.rmtree, self.place, ignore_errors=True)

    def _inner(self, path: str) -> str:
        top = str(self.place)
        return path[len(top) :] if path.startswith(f"{top}/") else layout.plain(path)


def _lay_out(path: Path, workdir: str) -> None:
    for name in ("tmp", "home/agent", "logs/agent", "logs/verifier", "logs/artifacts", workdir.lstrip("/")):
        os.makedirs(path / name, exist_ok=True)
