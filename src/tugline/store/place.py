"""Where a run directory lies: what file system it is on, and writing small files there in one step."""

from __future__ import annotations

import os
from pathlib import Path

NETWORK = frozenset(
    {
        *("nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "beegfs", "gpfs", "afs", "pvfs2"),
        *("orangefs", "wekafs", "9p", "ncpfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs"),
        *("fuse.gcsfuse", "fuse.juicefs", "fuse.rclone"),
    }
)
"""File systems on which two machines may have the file open: SQLite's shared memory does not work there."""


def file_system(path: Path, mounts: str | None = None) -> str:
    """Type of the file system that holds `path`, such as "ext4" or "nfs4"; "" where it cannot be told.

    `mounts` is the text of /proc/self/mountinfo.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return ""
    target = os.path.realpath(path)
    best, kind = -1, ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, after = left.split(" "), right.split(" ")
        if len(fields) < 5 or not after[0]:
            continue
        point = fields[4].encode("utf-8", "surrogateescape").decode("unicode_escape")  # spaces are written as \040
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:  # the last mount on one point hides the others
            best, kind = len(point), after[0]
    return kind


def write_whole(file: Path, text: str) -> None:
    """Write a file so that readers see the old or the new content, never a part."""
    part = file.with_name(file.name + ".part")
    with part.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    part.replace(file)


def free_bytes(path: Path) -> int:
    """Bytes that may still be written where `path` lies."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize
