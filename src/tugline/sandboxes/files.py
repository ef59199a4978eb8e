"""Reading, writing and uploading through a sandbox's own commands.

Everything happens inside, as the sandbox's user and in its own view of the file system, so a link that an agent has
planted leads nowhere but into its own box. The programs used are the host's, shown read-only.
"""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from pathlib import Path

ABSENT, NOT_A_FILE = 44, 45
READ = 'if [ ! -e "$1" ]; then exit 44; fi; if [ ! -f "$1" ]; then exit 45; fi; exec head -c "$2" -- "$1"'
WRITE = (
    'd=$(dirname -- "$1"); t="$d/.tugline.$$"; mkdir -p -- "$d" && cat > "$t" && chmod "$2" "$t" && mv -fT -- "$t" "$1"'
)
UNPACK = 'mkdir -p -- "$1" && exec tar -x -p --no-same-owner -C "$1" -f -'


def shell(script: str, *args: str) -> tuple[str, ...]:
    """argv that runs a script with positional arguments."""
    return ("/bin/sh", "-c", script, "sh", *args)


def pack(source: Path, name: str | None, scratch: Path) -> int:
    """A tar stream of a directory's content, or of one file under `name`, as a descriptor at its start.

    Owners are dropped; sockets, pipes and devices are left out; links stay links.
    """
    with tempfile.TemporaryFile(dir=scratch) as spool:
        with tarfile.open(fileobj=spool, mode="w", format=tarfile.PAX_FORMAT) as tar:
            if name is not None:
                tar.add(source, arcname=name, filter=_plain)
            else:
                for entry in sorted(os.listdir(source)):
                    tar.add(source / entry, arcname=f"./{entry}", filter=_plain)
        spool.flush()
        fd = os.dup(spool.fileno())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if not (info.isfile() or info.isdir() or info.issym() or info.islnk()):
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = stat.S_IMODE(info.mode) & 0o777
    return info
