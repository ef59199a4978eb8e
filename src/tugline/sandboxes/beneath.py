"""File access below a directory that a program may have filled with links: openat2(2) keeps every step inside."""

from __future__ import annotations

import ctypes
import functools
import os
import secrets
import stat
from pathlib import Path
from typing import Any

from tugline.core.errors import SandboxError

OPENAT2 = 437
"""The same number on every architecture."""
NO_MAGICLINKS, IN_ROOT = 0x02, 0x10


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@functools.cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def open_in(root: int, path: str, flags: int) -> int:
    """Open `path` with the directory `root` as its root, links included. Raises OSError."""
    how = _How(flags | os.O_CLOEXEC, 0, NO_MAGICLINKS | IN_ROOT)
    fd = _libc().syscall(OPENAT2, root, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return int(fd)


def read(top: Path, path: str, limit: int) -> bytes | None:
    """Content of a regular file, None if absent. Raises SandboxError when larger than `limit` or no regular file."""
    root = os.open(top, os.O_PATH | os.O_DIRECTORY)
    try:
        fd = open_in(root, path, os.O_RDONLY | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    finally:
        os.close(root)
    with open(fd, "rb") as f:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise SandboxError(f"read {path}: not a regular file")
        data = f.read(limit + 1)
    if len(data) > limit:
        raise SandboxError(f"read {path}: larger than {limit} bytes")
    return data


def write(top: Path, path: str, data: bytes, mode: int) -> None:
    """Create or replace a file, with its parents. A link at `path` itself is replaced, not followed."""
    folder, _, name = path.rpartition("/")
    parent = _folder(top, folder)
    try:
        temporary = f".tugline.{secrets.token_hex(4)}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=parent)
        with open(fd, "wb") as f:
            f.write(data)
            os.fchmod(fd, mode)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        os.close(parent)


def upload(top: Path, source: Path, target: str) -> None:
    """Copy a host file, or a host directory's content, below `top`; links stay links."""
    if source.is_file():
        write(top, target, source.read_bytes(), stat.S_IMODE(source.stat().st_mode) & 0o777)
        return
    os.close(_folder(top, target))
    for folder, names, found in os.walk(source):
        inner = f"{target}/{os.path.relpath(folder, source)}".replace("/./", "/").removesuffix("/.")
        for name in [*names, *found]:
            at = Path(folder, name)
            if at.is_symlink():
                _link(top, inner, name, os.readlink(at))
            elif at.is_dir():
                os.close(_folder(top, f"{inner}/{name}"))
            elif at.is_file():
                write(top, f"{inner}/{name}", at.read_bytes(), stat.S_IMODE(at.stat().st_mode) & 0o777)


def _link(top: Path, folder: str, name: str, to: str) -> None:
    parent = _folder(top, folder)
    try:
        temporary = f".tugline.{secrets.token_hex(4)}"
        os.symlink(to, temporary, dir_fd=parent)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        os.close(parent)


def _folder(top: Path, path: str) -> int:
    """A directory below `top`, made where it is missing, as a descriptor."""
    root = os.open(top, os.O_PATH | os.O_DIRECTORY)
    try:
        at, done = os.dup(root), ""
        for part in [p for p in path.split("/") if p]:
            done = f"{done}/{part}"
            try:
                following = open_in(root, done, os.O_PATH | os.O_DIRECTORY)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=at)
                following = open_in(root, done, os.O_PATH | os.O_DIRECTORY)
            os.close(at)
            at = following
        return at
    finally:
        os.close(root)
