"""Memory and process limits: control groups where we may make them, else resource limits per process.

Groups lie below one directory of our own, `tugline-<label>`, so that a later run finds and removes them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from dataclasses import dataclass

ROOT = "/sys/fs/cgroup"
CONTROLLERS = ("memory", "pids")


@dataclass(frozen=True, slots=True)
class Cgroups:
    """`bases` = our directory in each hierarchy: one for version 2, two for version 1, none without control groups."""

    version: int
    bases: tuple[str, ...]

    @property
    def text(self) -> str:
        """For people."""
        if self.version:
            return f"memory and process limits by cgroup v{self.version}"
        return "memory limit per process (RLIMIT_DATA) and process limit by RLIMIT_NPROC: no writable cgroup"

    def make(self, name: str, memory: int, pids: int) -> None:
        """A group for one sandbox. Bytes, processes. Raises OSError."""
        for base in self.bases:
            os.mkdir(f"{base}/{name}")
        if self.version == 2:
            _put(f"{self.bases[0]}/{name}/memory.max", memory)
            with contextlib.suppress(OSError):  # absent without swap accounting
                _put(f"{self.bases[0]}/{name}/memory.swap.max", 0)
            _put(f"{self.bases[0]}/{name}/pids.max", pids)
        elif self.version == 1:
            _put(f"{self.bases[0]}/{name}/memory.limit_in_bytes", memory)
            with contextlib.suppress(OSError):
                _put(f"{self.bases[0]}/{name}/memory.memsw.limit_in_bytes", memory)
            _put(f"{self.bases[1]}/{name}/pids.max", pids)

    def enter(self, name: str, pid: int, memory: int, pids: int) -> None:
        """Put a process, and all it will start, under the limits. Raises OSError."""
        for base in self.bases:
            _put(f"{base}/{name}/cgroup.procs", pid)
        if not self.bases:
            # RLIMIT_AS would break V8 and WebAssembly, which reserve far more address space than they use.
            resource.prlimit(pid, resource.RLIMIT_DATA, (memory, memory))
            resource.prlimit(pid, resource.RLIMIT_NPROC, (pids, pids))

    def ooms(self, name: str) -> int:
        """Processes of the group that the kernel killed for memory so far."""
        if not self.bases:
            return 0
        file = "memory.events" if self.version == 2 else "memory.oom_control"
        with contextlib.suppress(OSError), open(f"{self.bases[0]}/{name}/{file}") as f:
            for line in f:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def drop(self, name: str) -> None:
        """Remove a sandbox's group; its processes are dead."""
        for base in self.bases:
            _rmdir(f"{base}/{name}")

    def close(self) -> None:
        """Remove what is left of ours."""
        for base in self.bases:
            remove_tree(base)


def remove_tree(base: str) -> None:
    """Remove a directory of groups, the children first, with the processes in them; what is absent is fine."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(base):
            if entry.is_dir(follow_symlinks=False):
                _empty(entry.path)
                _rmdir(entry.path)
    _rmdir(base)


def _empty(group: str) -> None:
    """Kill what is in a group and wait until it is gone. Its warden is dead, or it has nothing left to lose."""
    for _ in range(2000):
        try:
            with open(f"{group}/cgroup.procs") as f:
                pids = [int(line) for line in f]
        except OSError:
            return
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def detect(label: str) -> Cgroups:
    """Find out by trying. `label` is safe as a file name."""
    name = f"tugline-{label}"
    if os.path.exists(f"{ROOT}/cgroup.controllers"):
        for parent in _candidates("", ROOT):
            base = _try_v2(parent, name)
            if base:
                return Cgroups(2, (base,))
        return Cgroups(0, ())
    bases = []
    for controller in CONTROLLERS:
        found = next((b for p in _candidates(controller, f"{ROOT}/{controller}") if (b := _try_v1(p, name))), None)
        if found:
            bases.append(found)
    if len(bases) == len(CONTROLLERS):
        return Cgroups(1, tuple(bases))
    for base in bases:
        _rmdir(base)
    return Cgroups(0, ())


def _candidates(controller: str, mount: str) -> list[str]:
    """Directories to try, from our own group upwards to the hierarchy's top."""
    own = ""
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as f:
        for line in f:
            _, names, path = line.rstrip("\n").split(":", 2)
            if controller in names.split(","):
                own = path
    out = []
    parts = [p for p in own.split("/") if p]
    for n in range(len(parts), -1, -1):
        path = "/".join([mount, *parts[:n]])
        if os.path.isdir(path) and os.access(path, os.W_OK):
            out.append(path)
    return out


def _try_v2(parent: str, name: str) -> str | None:
    base = f"{parent}/{name}"
    try:
        with contextlib.suppress(OSError):
            _put(f"{parent}/cgroup.subtree_control", "+memory +pids")
        os.mkdir(base)
        _put(f"{base}/cgroup.subtree_control", "+memory +pids")
        os.mkdir(f"{base}/probe")
    except OSError:
        remove_tree(base)
        return None
    if not _accepts(f"{base}/probe"):
        remove_tree(base)
        return None
    _rmdir(f"{base}/probe")
    return base


def _try_v1(parent: str, name: str) -> str | None:
    base = f"{parent}/{name}"
    try:
        os.mkdir(base)
    except OSError:
        return None
    if not _accepts(base):
        _rmdir(base)
        return None
    return base


def _accepts(group: str) -> bool:
    """Whether a process of ours may be moved there."""
    pid = os.fork()
    if pid == 0:
        try:
            _put(f"{group}/cgroup.procs", os.getpid())
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def _put(path: str, value: int | str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _rmdir(path: str) -> None:
    for _ in range(50):
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)  # the kernel still takes the last process out
        else:
            return
