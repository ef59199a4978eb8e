"""Commands in containers that an engine (podman, docker) has made: the warden's part.

The container's first process is our entry script, which waits at a gate, a pipe in a directory shown inside. The warden
holds the container's init by a pidfd, listens in its network namespace, moves its outputs and opens the gate.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from . import podman
from .jobs import Job, Meter, Pump

SWEEPS = 12
"""Rounds of removal at most; the daemon may still finish a request of a client that is dead."""


def attach(request: dict[str, Any], files: list[int]) -> Job:
    """{id, box, init, io, outputs: [numbers], limit, port?}: a job over a waiting container. Takes `files` over.

    Raises OSError: the container has ended.
    """
    opened = list(files)
    try:
        pidfd = os.pidfd_open(request["init"])
        opened.append(pidfd)
        # Opened for both directions: a pipe of which we are a writer too has no end until we close it.
        gate = os.open(f"{request['io']}/gate", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        opened.append(gate)
        job = Job(request["id"], request["box"], 0, -1, gate, request["port"], init=request["init"], pidfd=pidfd)
        job.hold = os.dup(gate)
        opened.append(job.hold)
        targets = dict(zip(request["outputs"], files, strict=True))
        for number, name in ((1, "out"), (2, "err")):
            source = os.open(f"{request['io']}/{name}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            opened.append(source)
            if number not in targets:
                targets[number] = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                opened.append(targets[number])
            job.pumps.append(Pump(source, targets[number], request["limit"]))
        job.meter = _meter(request["init"])
    except OSError:
        for fd in opened:
            os.close(fd)
        raise
    job.wait, job.set_up = 0, True  # nobody to reap: the engine is its parent
    job.ooms = job.meter.read() if job.meter else 0
    with contextlib.suppress(OSError), open(f"/proc/{job.init}/oom_score_adj", "w") as f:
        f.write("600")
    return job


def _meter(pid: int) -> Meter | None:
    """The counter of the control group that `pid` is in, version 2 or 1."""
    try:
        with open(f"/proc/{pid}/cgroup") as f:
            lines = [line.rstrip("\n").split(":", 2) for line in f]
    except OSError:
        return None
    for _, names, path in lines:
        for file in (
            (f"/sys/fs/cgroup{path}/memory.events",) if not names else
            (f"/sys/fs/cgroup/memory{path}/memory.oom_control",) if "memory" in names.split(",") else ()
        ):  # fmt: skip
            with contextlib.suppress(OSError):
                return Meter(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
    return None


def sweep(argv: list[str], env: dict[str, str], label: str, name: str = "") -> int:
    """Remove every container and image with our label, until there is none. Returns how many; never raises.

    With `name` only that container, and no image.
    """
    prefix = name or f"tugline-{label}-"
    mine = f"name=^{name}$" if name else f"label=tugline={label}"
    if podman.is_podman(argv):
        podman.end_containers(argv, env, prefix)
    removed = 0
    clean = 0
    for _ in range(SWEEPS):
        found = podman.lines([*argv, "ps", "-a", "-q", "--no-trunc", "--filter", mine], env)
        if not found:
            clean += 1
            if clean == 2:
                break
            time.sleep(0.2)
            continue
        clean = 0
        removed += len(found)
        at_once = ["--time", "0"] if podman.is_podman(argv) else []
        podman.lines([*argv, "rm", "-f", "-v", *at_once, *found], env)
    if podman.is_podman(argv):
        removed += podman.drop_storage(argv, env, prefix)
    images = [] if name else podman.lines([*argv, "images", "-q", "--no-trunc", "--filter", mine], env)
    if images:
        podman.lines([*argv, "rmi", "-f", *dict.fromkeys(images)], env)
    return removed
