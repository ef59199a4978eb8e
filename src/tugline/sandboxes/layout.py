"""What a sandbox looks like from inside, as bwrap arguments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tugline.core.errors import SandboxError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HOME = "/home/agent"
AGENT = 1000
ROOT_CAPS = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL")
"""For uid 0 inside: over files of the sandbox's single user only; nothing outside has that owner."""
RESERVED = ("/", "/proc", "/dev", "/sys", "/usr", "/etc", "/tmp", "/logs", "/bin", "/sbin", "/lib", "/lib64", "/home")


@dataclass(frozen=True, slots=True)
class View:
    """Host paths that make one sandbox. `host_dirs` are shown read-only under their own names."""

    root: str
    work: str
    private: str
    workdir: str
    host_dirs: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    """Directories below `host_dirs` that are shown empty."""
    empty: str = ""
    """Host path of an empty directory."""

    @property
    def writable(self) -> dict[str, str]:
        """Sandbox path -> host path of what every command may write to, parents first."""
        places = {
            "/tmp": f"{self.private}/tmp",
            HOME: f"{self.private}/home",
            "/logs": f"{self.private}/logs",
            self.workdir: self.work,
        }
        return dict(sorted(places.items(), key=lambda item: item[0].count("/")))


@dataclass(frozen=True, slots=True)
class Start:
    """One command's settings: environment, directory, [(host path, sandbox path)] shown read-only, user."""

    env: Mapping[str, str]
    cwd: str
    mounts: Sequence[tuple[str, str]]
    root: bool


def check_workdir(workdir: str) -> str:
    """The work directory in plain form. Raises SandboxError for one that cannot be replaced by ours."""
    path = plain(workdir)
    if path in RESERVED or path.startswith(("/proc/", "/dev/", "/sys/", "/usr/", "/etc/")):
        raise SandboxError(f"the work directory {workdir!r} lies in a system directory; use one like /app")
    return path


def plain(path: str) -> str:
    """An absolute path without `.`, `..` and doubled slashes. Raises SandboxError for anything else."""
    parts = [p for p in path.split("/") if p]
    if not path.startswith("/") or "\0" in path or ".." in parts:
        raise SandboxError(f"not a plain absolute path: {path!r}")
    return "/" + "/".join(p for p in parts if p != ".")


def bwrap_args(view: View, start: Start) -> list[str]:
    """All options of bwrap. They travel by descriptor, so that no `ps` shows the environment."""
    uid = "0" if start.root else str(AGENT)
    args = ["--unshare-all", "--unshare-user", "--disable-userns", "--uid", uid, "--gid", uid, "--cap-drop", "ALL"]
    for cap in ROOT_CAPS if start.root else ():
        args += ["--cap-add", cap]
    args += ["--die-with-parent", "--new-session", "--hostname", "sandbox", "--clearenv"]
    env = {"PATH": PATH, "HOME": "/root" if start.root else HOME, **start.env}
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise SandboxError(f"environment variable {name!r} cannot be passed")
        args += ["--setenv", name, value]
    args += ["--bind", view.root, "/"]
    for path in view.host_dirs:
        args += ["--ro-bind", path, path]
    for path in view.hidden:
        args += ["--ro-bind", view.empty, path]
    args += ["--proc", "/proc", "--dev", "/dev", "--bind", f"{view.private}/shm", "/dev/shm", "--remount-ro", "/dev"]
    for path in view.writable:
        args += ["--dir", path]
    for source, target in start.mounts:
        args += ["--ro-bind", source, check_mount(view, target)]
    if not start.root:
        args += ["--remount-ro", "/"]
    for path, source in view.writable.items():
        args += ["--bind", source, path]
    return [*args, "--chdir", start.cwd]


def destinations(view: View, start: Start) -> list[str]:
    """Sandbox paths that bwrap mounts on: none may lead through a link that a command has planted."""
    return ["/proc", "/dev", *view.host_dirs, *view.writable, *(plain(t) for _, t in start.mounts)]


def check_mount(view: View, target: str) -> str:
    """Mount points lie where no agent can write. Raises SandboxError."""
    path = plain(target)
    if any(path == w or path.startswith(f"{w}/") for w in (*view.writable, *view.host_dirs, "/proc", "/dev")):
        raise SandboxError(f"cannot mount on {target}: programs inside can write there, or it is a system directory")
    return path
