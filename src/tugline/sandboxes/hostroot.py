"""A small root file system from this machine's own programs, for tasks that name no image and for probes.

It has a shell and the usual file tools with the libraries they need, users `root` and `agent`, and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tugline.core.errors import SandboxError
from tugline.sandboxes.layout import PATH
from tugline.sandboxes.warden.mounts import DIRS, OWN_ETC

PROGRAMS = (
    "sh", "bash", "awk", "base64", "basename", "cat", "chmod", "chown", "cmp", "cp", "cut", "date", "dd", "df", "diff",
    "dirname", "du", "env", "expr", "false", "find", "getent", "grep", "gzip", "head", "hostname", "id", "install",
    "ldd", "ln", "ls", "md5sum", "mkdir", "mkfifo", "mktemp", "mount", "mv", "nohup", "nproc", "od", "paste", "printf",
    "ps", "pwd", "readlink", "realpath", "rm", "rmdir", "sed", "seq", "setsid", "sha256sum", "sleep", "sort", "split",
    "stat", "sync", "tail", "tar", "tee", "test", "timeout", "touch", "tr", "true", "uname", "uniq", "unshare", "wc",
    "which", "whoami", "xargs", "yes",
)  # fmt: skip
NEEDED = ("sh", "bash", "cat", "env", "ls")


def programs() -> dict[str, str]:
    """Name -> path of those that this machine has. Raises SandboxError without a shell."""
    found = {name: path for name in PROGRAMS if (path := shutil.which(name, path=PATH))}
    missing = [name for name in NEEDED if name not in found]
    if missing:
        raise SandboxError(f"this machine has no {missing[0]} to make a root file system from; name an image instead")
    return found


def fingerprint() -> str:
    """Changes when any of the programs does."""
    lines = [f"{p}:{s.st_size}:{s.st_mtime_ns}" for p in programs().values() for s in (os.stat(p),)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def build(root: Path) -> None:
    """Fill an empty directory. Raises SandboxError, OSError."""
    for name in DIRS:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in sorted(os.listdir("/")):
        if (name in ("bin", "sbin") or name.startswith("lib")) and os.path.isdir(f"/{name}"):
            if os.path.islink(f"/{name}"):
                (root / name).symlink_to(os.readlink(f"/{name}"))
                (root / name).resolve().mkdir(parents=True, exist_ok=True)
            elif name != "lost+found":
                (root / name).mkdir(exist_ok=True)
    for path in programs().values():
        _add(root, path)
    for name, text in OWN_ETC.items():
        (root / "etc" / name).write_text(text)
    (root / "etc" / "resolv.conf").write_text("")
    (root / "root").chmod(0o700)


def _add(root: Path, path: str) -> None:
    """A program under its own name, what it really is, and its libraries."""
    real = os.path.realpath(path)
    _copy(root, real)
    if real != path:
        at = _inside(root, path)
        if not at.is_symlink() and not at.exists():
            at.symlink_to(real)
    for library in _libraries(real):
        _copy(root, library)


def _copy(root: Path, path: str) -> None:
    at = _inside(root, path)
    if not at.exists():
        shutil.copyfile(path, at)
        at.chmod(0o755 if os.stat(path).st_mode & 0o111 else 0o644)


def _inside(root: Path, path: str) -> Path:
    """Where a host path lies below `root`, whose own top links are followed."""
    parts = path.strip("/").split("/")
    top = root / parts[0]
    if top.is_symlink():
        top = root / os.readlink(top).lstrip("/")
    at = top.joinpath(*parts[1:])
    at.parent.mkdir(parents=True, exist_ok=True)
    return at


def _libraries(program: str) -> Iterator[str]:
    """Shared libraries and the loader, by ldd; none for scripts and static programs."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        path = line.partition("=>")[2].strip() or line.strip()
        path = path.split(" (")[0].strip()
        if path.startswith("/"):
            yield path
