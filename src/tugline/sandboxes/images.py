"""Root file systems from image references. Each is unpacked once, under the image's digest, and then only read.

A reference is what an engine knows (`name:tag`, `name@sha256:...`, an id), or one of

    oci-archive:FILE, docker-archive:FILE   what `podman save` and `docker save` write
    sif:FILE                                for apptainer
    rootfs:DIR, rootfs:FILE                 a directory, used as it is, or a tar file of one
    build:DIR                               a directory with a Dockerfile, built by the engine
    host                                    a shell and the usual tools of this machine (see `hostroot`)
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tugline.core.errors import SandboxError, boundary
from tugline.core.ident import new_id
from tugline.sandboxes import beneath, hostroot, layout, locks
from tugline.sandboxes.apptainer import apptainer_env
from tugline.sandboxes.client import uninterrupted
from tugline.sandboxes.engine import PULL_SECONDS, Engine

LOOK_SECONDS = 0.1
ARCHIVES = ("oci-archive:", "docker-archive:")


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What operators decide about images."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Task's image, or a pattern (shell wildcards) -> reference to use instead; the first that fits counts."""
    default: str = "host"
    """For tasks that name no image."""
    pull: bool = True
    """Whether an image that is not here is fetched."""
    pinned: bool = False
    """Refuse references to a registry without a digest."""


@dataclass(frozen=True, slots=True)
class Image:
    """`id` is sha256:... of what was unpacked; `root` its file system, never written to; `env` the image's own."""

    ref: str
    id: str
    root: Path
    env: Mapping[str, str]


class Images:
    """Resolves references. One per provider; `top` holds the unpacked images, for other runs too."""

    def __init__(self, engine: Engine, options: ImageOptions, top: Path, label: str) -> None:
        self._engine = engine
        self._options = options
        self._top = top
        self._label = label
        self._tasks: dict[str, asyncio.Task[Image]] = {}
        self._held: list[locks.Entry] = []

    @property
    def used(self) -> dict[str, str]:
        """Reference as tasks name it -> digest of what was used."""
        return {
            ref: t.result().id for ref, t in self._tasks.items() if t.done() and not t.cancelled() and not t.exception()
        }

    async def get(self, ref: str) -> Image:
        """The image that a task names. Raises SandboxError that says how to name another."""
        task = self._tasks.get(ref)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._resolve(ref))
            self._tasks[ref] = task
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Let go of everything. Idempotent."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        for entry in self._held:
            entry.release()
        self._held.clear()

    async def _resolve(self, named: str) -> Image:
        ref = self.chosen(named)
        if ref == "host":
            key = await asyncio.to_thread(hostroot.fingerprint)
            return await self._unpacked(named, f"sha256:{key}", {}, "host")
        kind, _, rest = ref.partition(":")
        if kind == "rootfs":
            return await self._plain(named, Path(rest))
        if self._engine.runtime.kind == "apptainer":
            return await self._converted(named, ref, kind, rest)
        if kind == "build":
            ref = await self._built(Path(rest))
        elif ref.startswith(ARCHIVES):
            ref = await self._loaded(kind, Path(rest))
        elif self._options.pinned and "@sha256:" not in ref:
            raise SandboxError(
                f"the image {ref} is not pinned: name it as {ref}@sha256:..., or map it in sandbox.images"
            )
        facts = await self._inspect(ref) or await self._pulled(ref)
        env = dict(e.partition("=")[::2] for e in facts["Config"].get("Env") or ())
        digest = str(facts["Id"]).removeprefix("sha256:")
        return await self._unpacked(named, f"sha256:{digest}", env, ref)

    async def _converted(self, named: str, ref: str, kind: str, rest: str) -> Image:
        """apptainer has no store of images: it unpacks files and what it fetches."""
        if kind == "build":
            raise SandboxError("apptainer cannot build Dockerfiles; build the image elsewhere and name its archive")
        if kind in ("sif", "oci-archive", "docker-archive"):
            with boundary(SandboxError, f"read {ref}"):
                digest = await asyncio.to_thread(_file_digest, Path(rest))
            source = rest if kind == "sif" else ref
        else:
            if self._options.pinned and "@sha256:" not in ref:
                raise SandboxError(f"the image {ref} is not pinned: name {ref}@sha256:...")
            if not self._options.pull:
                raise SandboxError(f"apptainer would have to fetch {ref}, and sandbox.pull is off")
            source = f"docker://{ref}"
            digest = ref.partition("@sha256:")[2] or hashlib.sha256(source.encode()).hexdigest()
        image = await self._unpacked(named, f"sha256:{digest}", {}, f"apptainer:{source}")
        return Image(image.ref, image.id, image.root, await asyncio.to_thread(apptainer_env, image.root))

    def chosen(self, named: str) -> str:
        """The reference that stands for a task's image."""
        if not named:
            return self._options.default
        if named in self._options.names:
            return self._options.names[named]
        for pattern, ref in self._options.names.items():
            if fnmatch.fnmatchcase(named, pattern):
                return ref
        return named

    async def _inspect(self, ref: str) -> dict[str, Any] | None:
        code, out, err = await self._engine.attempt("image", "inspect", ref)
        if code == 0:
            found: list[dict[str, Any]] = msgspec.json.decode(out)
            return found[0]
        text = err.decode(errors="replace")
        if any(s in text.lower() for s in ("no such image", "image not known", "failed to find image", "not known")):
            return None
        raise SandboxError(
            f"{self._engine.runtime.kind} cannot look at the image {ref}: {' '.join(text.split())[-400:]}"
        )

    async def _pulled(self, ref: str) -> dict[str, Any]:
        kind = self._engine.runtime.kind
        advice = f"name another with sandbox.images (`{ref}` = a tag, rootfs:DIR, oci-archive:FILE, build:DIR or host)"
        if not self._options.pull:
            raise SandboxError(f"{kind} has no image {ref}, and sandbox.pull is off; {advice}")
        code, _, err = await self._engine.attempt("pull", "--quiet", ref, seconds=PULL_SECONDS)
        facts = await self._inspect(ref) if code == 0 else None
        if facts is None:
            said = " ".join(err.decode(errors="replace").split())[-300:]
            raise SandboxError(f"{kind} has no image {ref} and cannot fetch it ({said}); {advice}")
        return facts

    async def _loaded(self, kind: str, file: Path) -> str:
        with boundary(SandboxError, f"read {kind}:{file}"):
            await asyncio.to_thread(file.stat)
        if self._engine.runtime.kind == "podman":
            said = await self._engine.call("pull", "--quiet", f"{kind}:{file}", seconds=PULL_SECONDS)
            return said.split()[-1]
        said = await self._engine.call("load", "--quiet", "--input", str(file), seconds=PULL_SECONDS)
        if "Loaded image" not in said:
            raise SandboxError(f"docker did not load {file}: {said[-300:]} (older ones cannot read OCI archives)")
        return said.split("Loaded image")[-1].partition(":")[2].removeprefix(" ").removeprefix("ID: ").strip()

    async def _built(self, folder: Path) -> str:
        args = ["--quiet", "--network", "none"]
        return (await self._engine.call("build", *args, str(folder), seconds=PULL_SECONDS)).split()[-1]

    async def _plain(self, named: str, path: Path) -> Image:
        """A directory is used where it is; a tar file is unpacked under its own digest."""
        with boundary(SandboxError, f"read the root file system {path}"):
            is_dir = await asyncio.to_thread(path.is_dir)
            if not is_dir:
                digest = await asyncio.to_thread(_file_digest, path)
                return await self._unpacked(named, f"sha256:{digest}", {}, f"tar:{path}")
            real = await asyncio.to_thread(path.resolve)
            stat = await asyncio.to_thread(real.stat)
        identity = hashlib.sha256(f"{real}\0{stat.st_dev}\0{stat.st_ino}\0{stat.st_mtime_ns}".encode()).hexdigest()
        return Image(named, f"sha256:{identity}", real, {})

    async def _unpacked(self, named: str, digest: str, env: Mapping[str, str], source: str) -> Image:
        path = self._top / f"{digest.removeprefix('sha256:')[:40]}-1"
        with boundary(SandboxError, f"open the image store {self._top}"):
            entry = await uninterrupted(asyncio.to_thread(locks.held, path))
            if entry is None:
                while (turn := await uninterrupted(asyncio.to_thread(locks.take_turn, path))) is None:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_SECONDS)
                try:
                    entry = await uninterrupted(asyncio.to_thread(locks.held, path))
                    if entry is None:
                        entry = await self._unpack(path, source)
                finally:
                    await uninterrupted(asyncio.to_thread(locks.end_turn, path, turn))
        self._held.append(entry)
        return Image(named, digest, path / "rootfs", env)

    async def _unpack(self, path: Path, source: str) -> locks.Entry:
        scratch = await uninterrupted(asyncio.to_thread(locks.scratch_for, path))
        try:
            root = scratch.path / "rootfs"
            await asyncio.to_thread(root.mkdir, mode=0o755)
            if source == "host":
                await asyncio.to_thread(hostroot.build, root)
            elif source.startswith("apptainer:"):
                uri = source.removeprefix("apptainer:")
                await self._engine.call("build", "--force", "--sandbox", str(root), uri, seconds=PULL_SECONDS)
            elif source.startswith("tar:"):
                await self._untar(source.removeprefix("tar:"), root)
            else:
                await self._export(source, scratch.path / "image.tar", root)
            await asyncio.to_thread(_name_agent, root)
            return await uninterrupted(asyncio.to_thread(locks.publish, scratch, path, source))
        finally:
            await uninterrupted(asyncio.to_thread(scratch.close))

    async def _export(self, ref: str, tar: Path, root: Path) -> None:
        """Flatten an image through a container that never runs."""
        name = f"tugline-{self._label}-{new_id('x')[2:]}"
        create = ("create", "--name", name, "--label", f"tugline={self._label}", "--network", "none", ref, "/bin/sh")
        await self._engine.call(*create, whole=True)
        try:
            await self._engine.call("export", "--output", str(tar), name, seconds=PULL_SECONDS)
        finally:
            await self._engine.attempt("rm", "--force", name, whole=True)
        await self._untar(str(tar), root)
        await asyncio.to_thread(tar.unlink)

    async def _untar(self, tar: str, root: Path) -> None:
        options = ("--numeric-owner", "--xattrs", "--xattrs-include=*", "-p")
        skip = ("--exclude=./dev/*", "--exclude=dev/*", "--exclude=./proc/*", "--exclude=./sys/*")
        await self._engine.program("/bin/tar", "-x", *options, *skip, "-C", str(root), "-f", tar)


def _name_agent(root: Path) -> None:
    """Agents' uid gets a name where the image has none for it: git, ssh and others want one."""
    for file, line in (
        ("passwd", f"agent:x:{layout.AGENT}:{layout.AGENT}:agent:{layout.HOME}:/bin/sh\n"),
        ("group", f"agent:x:{layout.AGENT}:\n"),
    ):
        text = beneath.read(root, f"/etc/{file}", 1 << 24)
        known = [entry.split(":") for entry in (text or b"").decode(errors="replace").splitlines()]
        if not any(len(e) > 2 and (e[2] == str(layout.AGENT) or e[0] == "agent") for e in known):
            whole = (text or b"").removesuffix(b"\n") + (b"\n" if text else b"") + line.encode()
            beneath.write(root, f"/etc/{file}", whole, 0o644)


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
