"""A container engine's client under a warden: its calls, and a container's life in three of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tarfile
import tempfile

from tugline.core.errors import SandboxError, boundary
from tugline.sandboxes.client import Warden
from tugline.sandboxes.runtimes import Runtime, Shape, run_args

CALL_SECONDS, START_SECONDS, PULL_SECONDS = 120.0, 120.0, 3600.0


class Engine:
    """An engine's client under a warden."""

    def __init__(self, runtime: Runtime, warden: Warden) -> None:
        self.runtime = runtime
        self._warden = warden
        self._skeletons: dict[tuple[tuple[str, str], ...], asyncio.Task[str]] = {}
        self._unsure: set[str] = set()
        """Containers whose `run` has not succeeded."""

    async def call(self, *args: str, seconds: float = CALL_SECONDS, whole: bool = False) -> str:
        """Run the client; what it prints. Raises SandboxError with its words. `whole`: see `Warden.tool`."""
        code, out, err = await self.attempt(*args, seconds=seconds, whole=whole)
        if code != 0:
            said = " ".join(err.decode(errors="replace").split())[-600:]
            raise SandboxError(f"{self.runtime.kind} {args[0]} failed ({code}): {said or 'it said nothing'}")
        return out.decode(errors="replace").strip()

    async def attempt(self, *args: str, seconds: float = CALL_SECONDS, whole: bool = False) -> tuple[int, bytes, bytes]:
        """(exit code, stdout, stderr)."""
        return await self._warden.tool([*self.runtime.argv, *args], self.runtime.env, seconds, whole)

    async def skeleton(self, label: str, links: tuple[tuple[str, str], ...], folder: str) -> str:
        """An image of nothing but top links, as (name, where to): what docker needs to start a container from.
        `folder` takes a file meanwhile."""
        task = self._skeletons.get(links)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._skeletons[links] = asyncio.create_task(self._skeleton(label, links, folder))
        return await asyncio.shield(task)

    async def _skeleton(self, label: str, links: tuple[tuple[str, str], ...], folder: str) -> str:
        with boundary(SandboxError, "make an empty image"):
            file = await asyncio.to_thread(_tar_of_links, links, folder)
        try:
            return await self.call("import", "--change", f"LABEL tugline={label}", file)
        finally:
            await asyncio.to_thread(os.unlink, file)

    async def launch(self, shape: Shape) -> int:
        """Start a container that waits at its gate; the host's pid of its first process. Raises SandboxError."""
        self._unsure.add(shape.name)
        await self.call(*run_args(self.runtime, shape), seconds=START_SECONDS, whole=True)
        self._unsure.discard(shape.name)
        said = await self.call("inspect", "--format", "{{.State.Pid}}", shape.name)
        if not said.isdigit() or said == "0":
            raise SandboxError("the command's container ended before it could start; has the image a /bin/sh?")
        return int(said)

    async def ended(self, name: str) -> int:
        """Exit code of a container whose processes are dead."""
        said = (await self.call("wait", name)).split()
        if not said or not said[-1].lstrip("-").isdigit():
            raise SandboxError(f"the engine does not know how the command ended: {' '.join(said)[:200]}")
        return int(said[-1])

    async def out_of_memory(self, name: str) -> bool:
        """Whether the engine saw the kernel kill for memory. The control group may be gone before we can look."""
        code, out, _ = await self.attempt("inspect", "--format", "{{.State.OOMKilled}}", name)
        return code == 0 and out.strip() == b"true"

    async def remove(self, name: str) -> None:
        """Kill and remove a container, whatever its state. What fails here the warden does at its end."""
        with contextlib.suppress(SandboxError):
            if self.runtime.kind == "podman" and name in self._unsure:
                self._unsure.discard(name)
                await self._warden.call("clear", name=name)
                return
            # podman would first ask the command to end, and wait ten seconds for it
            at_once = ("--time", "0") if self.runtime.kind == "podman" else ()
            await self.attempt("rm", "--force", "--volumes", *at_once, name, whole=True)

    async def program(self, *argv: str, seconds: float = PULL_SECONDS) -> None:
        """Run another program of the host. Raises SandboxError with its words."""
        code, _, err = await self._warden.tool(argv, {"PATH": os.defpath}, seconds)
        if code != 0:
            raise SandboxError(f"{argv[0]} ended with {code}: {err.decode(errors='replace').strip()[-500:]}")


def _tar_of_links(links: tuple[tuple[str, str], ...], folder: str) -> str:
    fd, name = tempfile.mkstemp(prefix="links-", suffix=".tar", dir=folder)
    with os.fdopen(fd, "wb") as out, tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ("proc", "dev", "sys"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for link, to in links:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, to
            tar.addfile(info)
    return name
