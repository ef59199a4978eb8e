"""The system calls that Python does not have."""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

NEWNS = 0x00020000
NEWUSER = 0x10000000
NEWNET = 0x40000000
MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 2, 4, 32, 4096, 16384, 1 << 19
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
IP_FREEBIND = 15
OPENAT2 = 437
"""The same number on every architecture."""
NO_MAGICLINKS, IN_ROOT = 0x02, 0x10


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leave namespaces of this process. Raises OSError."""
    _check(_libc().unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind `fd`. Raises OSError."""
    _check(_libc().setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError that names the target."""
    result = _libc().mount(
        source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def unmount(target: str) -> None:
    """Detach a mount now; the kernel frees it when its last user is gone. Raises OSError."""
    _check(_libc().umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument. Raises OSError."""
    _check(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def open_in(root: int, path: str, flags: int) -> int:
    """Open `path` with the directory `root` as its root, links included. Raises OSError."""
    how = _How(flags | os.O_CLOEXEC, 0, NO_MAGICLINKS | IN_ROOT)
    fd = _libc().syscall(OPENAT2, root, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return int(fd)


def folder_in(top: str, path: str, owner: tuple[int, int] | None = None) -> int:
    """A directory below `top` as an O_PATH descriptor, made (for `owner`) where it is missing. No link leads out."""
    root = os.open(top, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        at, done = os.dup(root), ""
        for part in [p for p in path.split("/") if p]:
            done = f"{done}/{part}"
            try:
                following = open_in(root, done, os.O_PATH | os.O_DIRECTORY)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=at)
                if owner is not None:
                    os.chown(part, *owner, dir_fd=at, follow_symlinks=False)
                following = open_in(root, done, os.O_PATH | os.O_DIRECTORY)
            os.close(at)
            at = following
        return at
    finally:
        os.close(root)
