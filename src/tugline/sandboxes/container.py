"""Sandboxes that podman or docker run: whole images instead of this machine's /usr, limits by the engine.

A sandbox is files, as with bubblewrap: the image and the task's prepared snapshot as read-only layers, what the session
writes on a size-limited tmpfs over them. Each command is one container over these files, without a network but the
listener that the gateway holds inside, without capabilities, and gone when its command ends: nothing of it can be left.
The warden mounts the files where the engine sees them, so this needs root.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits
from tugline.core.errors import ConfigError, SandboxError, boundary
from tugline.core.task import Copy, Environment
from tugline.sandboxes import instance, layout
from tugline.sandboxes.advice import INSTALL, advice
from tugline.sandboxes.apptainer import Apptainer
from tugline.sandboxes.client import Warden, start_warden, uninterrupted
from tugline.sandboxes.containerbox import ContainerSandbox, Parts, Usual
from tugline.sandboxes.containerfiles import AGENT_IDS
from tugline.sandboxes.engine import Engine
from tugline.sandboxes.images import Image, ImageOptions, Images
from tugline.sandboxes.profile import find_profile, refusing, stricter
from tugline.sandboxes.runtimes import Runtime, find
from tugline.sandboxes.snapshots import Layers, Snapshots
from tugline.sandboxes.stores import image_dir, snapshot_dir

PREPARE_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    """What operators decide. `runtime`: auto, podman or docker."""

    runtime: str = "auto"
    images: ImageOptions = field(default_factory=ImageOptions)


@dataclass(frozen=True, slots=True)
class Host:
    """What a started provider works with."""

    warden: Warden
    place: instance.Instance
    engine: Engine
    images: Images
    snapshots: Snapshots
    profile: str = ""


class ContainerProvider:
    """Makes container sandboxes. One warden serves all of them; it starts with the first."""

    isolating = True

    def __init__(
        self,
        state_dir: Path,
        run_id: str,
        options: ContainerOptions | None = None,
        cache: Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._state_dir = state_dir
        self._run_id = run_id
        self.name = "apptainer" if options is not None and options.runtime == "apptainer" else "container"
        self._options = options or ContainerOptions()
        self._cache = cache
        self._environ = dict(os.environ if environ is None else environ)
        self._lock = asyncio.Lock()
        self._host: Host | None = None
        self._count = 0
        self._usual = Usual()

    async def check(self) -> list[str]:
        """Run one command in a sandbox; the words say what to do when it fails."""
        try:
            runtime = await asyncio.to_thread(self._runtime)
            box = await self.start(Environment(image="", workdir="/app"), "check", Limits(disk=1 << 20))
            try:
                end = await box.run(Command(("true",)), Deadline.after(60))
            finally:
                await box.close()
        except ConfigError as err:
            return [f"{err.message}. {advice(err.message) or INSTALL}"]
        except SandboxError as err:
            return [f"{err.message}. {await asyncio.to_thread(advice, err.message)}".removesuffix(". ")]
        return [] if end.code == 0 else [f"a probe command ended with {end.code} in a {runtime.kind} container"]

    async def describe(self) -> str:
        """One line: which engine, how commands run."""
        version = await (await self._started()).engine.call("--version")
        return f"container; {version}; limits by the engine's control groups; agents run as uid {layout.AGENT}"

    async def images(self) -> dict[str, str]:
        """Image as tasks name it -> digest of what their sandboxes were made from."""
        return self._host.images.used if self._host else {}

    @property
    def prepared(self) -> int:
        """Snapshots that were made here and not found ready."""
        return self._host.snapshots.made if self._host else 0

    async def start(self, environment: Environment, session_id: str, limits: Limits) -> ContainerSandbox:
        """See SandboxProvider. Raises SandboxError, also when an image or a prepare step fails."""
        host = await self._started()
        image = await host.images.get(environment.image)
        layers = await self._prepared(host, environment, image)
        box = await self._box(host, environment, limits, image, layers)
        box.start_ahead()
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
            host, self._host = self._host, None
            if host is None:
                return
            await host.images.close()
            await host.snapshots.close()
            try:
                await host.warden.close()
            finally:
                await asyncio.to_thread(instance.discard, host.place, host.warden.cgroups)

    # --------------------------------------------------------------------------------------------- inside

    def _runtime(self) -> Runtime:
        if sys.platform != "linux":
            raise SandboxError("container sandboxes need Linux; use --sandbox local for trusted agents")
        if os.geteuid() != 0:
            raise SandboxError("container sandboxes need root, to mount file trees where the engine sees them")
        return find(self._options.runtime, self._environ)

    async def _started(self) -> Host:
        async with self._lock:
            if self._host is None:
                self._host = await uninterrupted(self._start_host())
            return self._host

    async def _start_host(self) -> Host:
        runtime = await asyncio.to_thread(self._runtime)
        with boundary(SandboxError, f"make the sandbox state directory in {self._state_dir}"):
            place = await asyncio.to_thread(instance.create, self._state_dir, self._run_id, True)
            store = await asyncio.to_thread(snapshot_dir, place, self._cache)
            unpacked = await asyncio.to_thread(image_dir, place, self._cache)
        labelled = runtime.kind != "apptainer"  # whose containers are children of the warden and end with it
        engine = {"argv": list(runtime.argv), "env": dict(runtime.env), "label": place.label if labelled else ""}
        config: dict[str, object] = {
            "mode": "engine", "stage": place.stage, "snapshots": str(store), "label": place.label,
            "owner": AGENT_IDS, "engine": engine,
        }  # fmt: skip
        # Signed before anything is mounted where the host sees it: whoever finds us dead must know of it.
        signed = instance.EngineOf(runtime.argv, dict(runtime.env)) if labelled else None
        await asyncio.to_thread(instance.sign, place, self._run_id, 0, (), signed)
        try:
            warden = await start_warden(config, place.path / "warden.log")
        except BaseException:
            await asyncio.to_thread(instance.discard, place)
            raise
        await asyncio.to_thread(instance.sign, place, self._run_id, warden.process.pid, warden.cgroups, signed)
        client = (Apptainer if runtime.kind == "apptainer" else Engine)(runtime, warden)
        images = Images(client, self._options.images, unpacked, place.label)
        profile = await asyncio.to_thread(_profile, place.path, runtime)
        return Host(warden, place, client, images, Snapshots(store, f"{place.stage}/snapshots"), profile)

    async def _prepared(self, host: Host, environment: Environment, image: Image) -> Layers:
        """The image with the task's steps done and its work directory given to the agent: made once."""
        root = await host.warden.call("bind", source=str(image.root))
        inside = await asyncio.to_thread(_work_in, image.root, environment.workdir)
        work = f"{root}{inside}" if inside else f"{host.place.stage}/empty"
        base = Layers((root,), (work,))
        if not environment.steps and not inside:
            return base
        steps = environment.digest or repr(environment)
        parts = ("container 1", image.id, environment.workdir, steps if environment.steps else "")
        return await host.snapshots.get(parts, base, lambda name: self._fill(host, environment, image, base, name))

    async def _fill(self, host: Host, environment: Environment, image: Image, base: Layers, name: str) -> Layers | None:
        """Run the prepare steps with a directory of the snapshot store as the writable layer."""
        limits = Limits(disk=4 << 30)
        at = f"{host.place.stage}/snapshots/{name}"
        box = await self._box(host, environment, limits, image, base, on_disk=at)
        try:
            for step in environment.steps:
                await _step(box, step, environment)
            await box.give_work_to_agent()
        finally:
            await uninterrupted(box.close())
        return None

    async def _box(
        self,
        host: Host,
        environment: Environment,
        limits: Limits,
        image: Image,
        layers: Layers,
        on_disk: str | None = None,
    ) -> ContainerSandbox:
        workdir = layout.check_workdir(environment.workdir)
        self._count += 1
        name = f"b{self._count}"
        memory = min(limits.memory, (environment.memory_mb or 1 << 30) << 20)
        disk = min(limits.disk, (environment.storage_mb or 1 << 30) << 20)
        make = host.warden.call(
            "box", name=name, memory=memory, pids=limits.pids, disk=disk, root=layers.root, work=layers.work,
            on_disk=on_disk, workdir=workdir,
        )  # fmt: skip
        try:
            await uninterrupted(make)
        except asyncio.CancelledError:
            await uninterrupted(host.warden.call("drop", name=name))
            raise
        at = f"{host.place.stage}/boxes/{name}"

        async def clone() -> ContainerSandbox:
            frozen = await uninterrupted(host.warden.call("seal", name=name))
            return await self._box(host, environment, limits, image, replace(layers, work=tuple(frozen)))

        view = layout.View(f"{at}.root", f"{at}.work", at, workdir, ())
        size = replace(limits, memory=memory, disk=disk)
        parts = Parts(
            host.warden, host.engine, host.place.label, host.place.stage, image.env, size, environment.cpus,
            host.profile, self._usual,
        )  # fmt: skip
        return ContainerSandbox(parts, name, view, clone)


async def _step(box: ContainerSandbox, step: Copy | str, environment: Environment) -> None:
    """One prepare step. Raises SandboxError with the end of its output."""
    if isinstance(step, Copy):
        base = step.target if step.target.startswith("/") else f"{box.workdir}/{step.target}"
        if step.target.endswith("/") and await asyncio.to_thread(step.source.is_file):
            base = f"{base}/{step.source.name}"
        await box.upload(step.source, base.replace("/./", "/"))
        return
    code, text = await box.output(("/bin/sh", "-c", step), environment.env, PREPARE_SECONDS)
    if code != 0:
        raise SandboxError(f"prepare step `{step[:200]}` ended with {code}: {text[-500:]} (there is no network here)")


def _profile(place: Path, runtime: Runtime) -> str:
    """The system call profile for this provider's containers, as a file; "" where the engine's own will do."""
    own = find_profile()
    if runtime.kind == "docker" or (runtime.kind == "podman" and own is None):
        return ""
    with boundary(SandboxError, f"write a system call profile from {own}"):
        made = stricter(own.read_bytes()) if runtime.kind == "podman" and own is not None else refusing()
        (place / "seccomp.json").write_bytes(made)
    return str(place / "seccomp.json")


def _work_in(root: Path, workdir: str) -> str:
    """The work directory that an image brings, as a path below its root without links; "" when it brings none."""
    at = root
    for part in [p for p in workdir.split("/") if p]:
        at = at / part
        if at.is_symlink() or not at.is_dir():
            return ""
    return workdir if any(at.iterdir()) else ""
