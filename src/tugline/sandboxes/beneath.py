"""File access below a directory that a program may have filled with links: openat2(2) keeps every step inside."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from tugline.core.errors import SandboxError
from tugline.sandboxes.warden.kernel import folder_in, open_in

Owner = tuple[int, int]
"""uid, gid."""


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


def write(top: Path, path: str, data: bytes, mode: int, owner: Owner | None = None) -> None:
    """Create or replace a file, with its parents. A link at `path` itself is replaced, not followed. Raises OSError."""
    folder, _, name = path.rpartition("/")
    parent = folder_in(str(top), folder, owner)
    try:
        temporary = f".tugline.{secrets.token_hex(4)}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=parent)
        with open(fd, "wb") as f:
            f.write(data)
            if owner is not None:
                os.fchown(fd, *owner)
            os.fchmod(fd, mode)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        os.close(parent)


def upload(top: Path, source: Path, target: str, owner: Owner | None = None) -> None:
    """Copy a host file, or a host directory's content, below `top`; links stay links. Raises OSError."""
    if source.is_file():
        write(top, target, source.read_bytes(), stat.S_IMODE(source.stat().st_mode) & 0o777, owner)
        return
    os.close(folder_in(str(top), target, owner))
    for folder, names, found in os.walk(source):
        inner = f"{target}/{os.path.relpath(folder, source)}".replace("/./", "/").removesuffix("/.")
        for name in [*names, *found]:
            at = Path(folder, name)
            if at.is_symlink():
                _link(top, inner, name, os.readlink(at), owner)
            elif at.is_dir():
                os.close(folder_in(str(top), f"{inner}/{name}", owner))
            elif at.is_file():
                write(top, f"{inner}/{name}", at.read_bytes(), stat.S_IMODE(at.stat().st_mode) & 0o777, owner)


def _link(top: Path, folder: str, name: str, to: str, owner: Owner | None) -> None:
    parent = folder_in(str(top), folder, owner)
    try:
        temporary = f".tugline.{secrets.token_hex(4)}"
        os.symlink(to, temporary, dir_fd=parent)
        if owner is not None:
            os.chown(temporary, *owner, dir_fd=parent, follow_symlinks=False)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        os.close(parent)
