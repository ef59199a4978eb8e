"""apptainer (or singularity) as the engine of container sandboxes. NOT PROVEN: tested against a stand-in only.

It has no daemon and no detached containers: a container is a child of the warden, found by a variable that its first
processes carry.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from pathlib import Path

from tugline.core.errors import SandboxError
from tugline.sandboxes.engine import START_SECONDS, Engine
from tugline.sandboxes.runtimes import BUILD_CAPS, ENTRY, Shape

MARK = "TUGLINE_CONTAINER"
LOOK_SECONDS = 0.02
LONGEST = 7 * 86400.0
_EXPORT = re.compile(r'^export (\w+)="\$\{\1:-"(.*)"\}"$', re.MULTILINE)


class Apptainer(Engine):
    """See `Engine`."""

    _runs: dict[str, asyncio.Task[tuple[int, bytes, bytes]]]

    async def launch(self, shape: Shape) -> int:
        """Start `apptainer exec` and wait for the container's init."""
        runs = self._all()
        argv = [*self.runtime.argv, *exec_args(shape)]
        runs[shape.name] = asyncio.create_task(self._warden.tool(argv, self.runtime.env, LONGEST))
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if runs[shape.name].done():
                code, _, err = await runs.pop(shape.name)
                said = err.decode(errors="replace").strip()[-500:]
                raise SandboxError(f"apptainer ended with {code} before the command could start: {said}")
            init = await asyncio.to_thread(find_init, f"{MARK}={shape.name}")
            if init:
                return init
            await asyncio.sleep(LOOK_SECONDS)
        raise SandboxError(f"apptainer did not start the command within {START_SECONDS:g} s")

    async def ended(self, name: str) -> int:
        """apptainer ends as the command did."""
        code, _, _ = await asyncio.shield(self._all()[name])
        return code

    async def out_of_memory(self, name: str) -> bool:
        """apptainer does not say."""
        return False

    async def remove(self, name: str) -> None:
        """Kill what is left of it."""
        run = self._all().pop(name, None)
        if run is not None:
            run.cancel()
            await asyncio.wait([run])
            with contextlib.suppress(SandboxError, asyncio.CancelledError):
                run.result()

    def _all(self) -> dict[str, asyncio.Task[tuple[int, bytes, bytes]]]:
        if not hasattr(self, "_runs"):
            self._runs = {}
        return self._runs


def exec_args(shape: Shape) -> list[str]:
    """Arguments of `exec`."""
    root = shape.user == "0"
    args = [
        "exec", "--containall", "--cleanenv", "--no-home", "--pid", "--ipc", "--uts", "--hostname", "sandbox", "--net",
        "--network", "none", "--no-mount", "hostfs,cwd", "--env", f"{MARK}={shape.name}", "--drop-caps", "all",
        "--security", f"uid:{shape.user}", "--security", f"gid:{shape.user}", "--memory", str(shape.memory),
        "--memory-swap", str(shape.memory), "--pids-limit", str(shape.pids),
    ]  # fmt: skip
    if shape.profile:
        args += ["--security", f"seccomp:{shape.profile}"]
    if shape.cpus:
        args += ["--cpus", f"{shape.cpus:g}"]
    args += ["--writable", "--add-caps", ",".join(f"CAP_{cap}" for cap in BUILD_CAPS)] if root else ["--no-privs"]
    for bind in shape.binds:
        args += ["--bind", bind.text]
    return [*args, shape.root, "/bin/sh", "-c", ENTRY]


def find_init(mark: str) -> int:
    """Host pid of the first process of the pid namespace in which a process carries `mark`; 0 if there is none yet."""
    marked = mark.encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            if marked in Path(f"/proc/{entry}/environ").read_bytes().split(b"\0"):
                inside = os.readlink(f"/proc/{entry}/ns/pid")
                if inside != os.readlink("/proc/self/ns/pid"):
                    return _first_of(inside)
    return 0


def _first_of(namespace: str) -> int:
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{entry}/ns/pid") != namespace:
                continue
            lines = Path(f"/proc/{entry}/status").read_text().splitlines()
            pids = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
            if pids and pids[-1] == "1":
                return int(entry)
    return 0


def apptainer_env(root: Path) -> dict[str, str]:
    """The image's variables, as apptainer keeps them for images that it has converted."""
    try:
        text = (root / ".singularity.d/env/10-docker2singularity.sh").read_text()
    except OSError:
        return {}
    return dict(_EXPORT.findall(text))
