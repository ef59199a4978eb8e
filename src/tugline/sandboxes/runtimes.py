"""Container engines as command lines: podman and docker. Finding one, and the arguments that make our containers. Pure,
but for `find`.

A container is one command. Its root file system is ours (an overlay that the warden has mounted), not the engine's:
podman takes it with `--rootfs`; docker gets each top directory of it as a bind over an almost empty image.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tugline.core.errors import ConfigError

Kind = Literal["podman", "docker", "apptainer"]
KINDS: tuple[Kind, ...] = ("podman", "docker")
"""What "auto" chooses from."""
KEPT_ENV = frozenset(
    {"path", "home", "xdg_runtime_dir", "xdg_config_home", "xdg_data_home", "https_proxy", "http_proxy", "no_proxy"}
)
"""What an engine's client gets of our environment, beside CONTAINERS_*, DOCKER_* and their kind."""
IO = "/run/tugline"
"""Where a container sees the directory of its command."""
ENTRY = f"exec 1>{IO}/out 2>{IO}/err && read -r _ <{IO}/gate && exec 0<{IO}/in && . {IO}/entry"
BUILD_CAPS = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETFCAP")
"""Of uid 0 in prepare steps and verifiers: over the container's files, users and processes. No network, no devices."""
MAX_PROCESSES = 32_768
"""podman sets this limit for itself before it starts a container and cannot raise it again."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """An engine's client. `argv` = program and global options."""

    kind: Kind
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Bind:
    """A host path shown in a container."""

    source: str
    target: str
    writable: bool = False

    @property
    def text(self) -> str:
        return f"{self.source}:{self.target}:{'rw' if self.writable else 'ro'}"


@dataclass(frozen=True, slots=True)
class Shape:
    """One container. `user` "0" or "1000"; memory in bytes. `root` is the host path of its file system."""

    name: str
    label: str
    root: str
    user: str
    memory: int
    pids: int
    cpus: float | None
    binds: tuple[Bind, ...] = ()
    image: str = ""
    """docker: the almost empty image."""
    tops: tuple[str, ...] = ()
    """docker: top directories and files of `root`."""
    profile: str = ""
    """podman: host path of its system call profile."""


def find(kind: str, environ: Mapping[str, str]) -> Runtime:
    """The engine's client of that kind; "auto" takes podman, else docker. Raises ConfigError: there is none."""
    if kind == "apptainer":
        for name in ("apptainer", "singularity"):
            if program := shutil.which(name, path=environ.get("PATH")):
                return Runtime("apptainer", (program,), client_env(environ))
        raise ConfigError("no apptainer program on PATH", where="sandbox.runtime")
    kinds = KINDS if kind == "auto" else tuple(k for k in KINDS if k == kind)
    if not kinds:
        raise ConfigError(
            f"unknown container engine {kind!r}; there are: auto, {', '.join(KINDS)}", where="sandbox.runtime"
        )
    for each in kinds:
        program = shutil.which(each, path=environ.get("PATH"))
        if program:
            extra = podman_options() if each == "podman" else ()
            return Runtime(each, (program, *extra), client_env(environ))
    raise ConfigError(f"no {' or '.join(kinds)} program on PATH", where="sandbox.runtime")


def client_env(environ: Mapping[str, str]) -> dict[str, str]:
    """What the engine's client may know."""
    prefixes = (
        "CONTAINERS_", "CONTAINER_HOST", "DOCKER_", "REGISTRY_", "STORAGE_", "BUILDAH_", "_CONTAINERS_", "APPTAINER_",
        "SINGULARITY_",
    )  # fmt: skip
    kept = {k: v for k, v in environ.items() if k.lower() in KEPT_ENV or k.startswith(prefixes)}
    return {"PATH": os.defpath, "HOME": "/root", **kept}


def podman_options() -> tuple[str, ...]:
    """What podman must be told on this machine: without systemd it can neither make groups nor log through it, and
    crun refuses a machine that mounts control groups of both versions."""
    options: list[str] = []
    if not os.path.isdir("/run/systemd/system"):
        options += ["--cgroup-manager", "cgroupfs", "--events-backend", "file"]
    hybrid = not os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    runc = shutil.which("runc") or shutil.which("runc", path="/usr/sbin:/sbin:/usr/local/sbin")
    if hybrid and runc:
        options += ["--runtime", runc]
    return tuple(options)


def run_args(runtime: Runtime, shape: Shape) -> list[str]:
    """Arguments of `run`: start a container that waits at its gate."""
    args = [
        "run", "--detach", "--name", shape.name, "--label", f"tugline={shape.label}", "--network", "none",
        "--hostname", "sandbox", "--user", f"{shape.user}:{shape.user}", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--memory", str(shape.memory), "--memory-swap", str(shape.memory),
        "--pids-limit", str(shape.pids), "--log-driver", "none", "--workdir", "/", "--pull", "never",
    ]  # fmt: skip
    if shape.cpus:
        args += ["--cpus", f"{shape.cpus:g}"]
    for cap in BUILD_CAPS if shape.user == "0" else ():
        args += ["--cap-add", cap]
    binds = list(shape.binds)
    if shape.user != "0":
        args += ["--read-only"]
    if runtime.kind == "podman":
        # bound already below the tree; a bind of its own would need the place to be in the tree's own layer
        binds = [bind for bind in binds if not bind.source.startswith(f"{shape.root}/")]
        if shape.user != "0":
            args += ["--read-only-tmpfs=false"]
        args += ["--systemd", "false", "--no-hosts", *_podman_limits()]
        if shape.profile:
            args += ["--security-opt", f"seccomp={shape.profile}"]
        tail = ["--rootfs", shape.root]
    else:
        writable = shape.user == "0"
        taken = {bind.target for bind in binds}
        tops = (Bind(f"{shape.root}{top}", top, writable) for top in shape.tops if top not in taken)
        binds = [*tops, *binds]
        tail = [shape.image]
    for bind in binds:
        args += ["--volume", bind.text]
    return [*args, *tail, "/bin/sh", "-c", ENTRY]


def _podman_limits() -> list[str]:
    """podman asks for more open files than we may have; a process without rights cannot raise its limits."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    files = 1 << 20 if files == resource.RLIM_INFINITY else min(files, 1 << 20)
    most = MAX_PROCESSES if processes == resource.RLIM_INFINITY else min(processes, MAX_PROCESSES)
    return ["--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={most}:{most}"]


def entry_script(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> bytes:
    """What the container's first shell reads once its gate is open. It stays the parent of the command: a first process
    could not be ended by its own signals, and takes in orphans."""
    words = ["env", "-i", *(f"{k}={v}" for k, v in env.items()), "/bin/sh", "-c", 'exec "$@"', "sh", *argv]
    lines = [f"cd {quote(cwd)} || exit 126", " ".join(quote(w) for w in words), "exit $?"]
    return ("\n".join(lines) + "\n").encode()


def quote(word: str) -> str:
    """One word of sh."""
    return "'" + word.replace("'", "'\\''") + "'"


def tops_of(root: Path) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Top directories and files of a root file system that a container may be shown, and its top links (name, to)."""
    dirs, links = [], []
    for name in sorted(os.listdir(root)):
        if name in ("proc", "dev", "sys", ".dockerenv") or ":" in name:
            continue
        at = root / name
        if at.is_symlink():
            links.append((name, os.readlink(at)))
        elif at.is_dir() or at.is_file():
            dirs.append(f"/{name}")
    return tuple(dirs), tuple(links)
