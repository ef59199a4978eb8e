"""File work for container sandboxes on the host's side: pipes, mount points, owners. Blocking; raises OSError."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from tugline.sandboxes import beneath, layout
from tugline.sandboxes.runtimes import IO, Bind
from tugline.sandboxes.warden.kernel import folder_in

AGENT_IDS, ROOT_IDS = (layout.AGENT, layout.AGENT), (0, 0)


def lay_out(io: Path) -> None:
    """The directory that a container sees as /run/tugline. Its parent keeps other users of this machine out."""
    io.parent.mkdir(mode=0o700, exist_ok=True)
    io.mkdir(mode=0o755)
    for name in ("out", "err", "gate"):
        os.mkfifo(io / name)
        (io / name).chmod(0o666)


def fill(io: Path, script: bytes, stdin: int) -> None:
    """What the container reads behind its gate."""
    (io / "entry").write_bytes(script)
    (io / "entry").chmod(0o644)
    with open(stdin, "rb", closefd=False) as source, open(io / "in", "wb") as target:
        source.seek(0)
        while data := source.read(1 << 20):
            target.write(data)
    (io / "in").chmod(0o644)


def mount_points(root: str, binds: Sequence[Bind]) -> None:
    """Places for binds in a root that the container cannot write to."""
    os.close(folder_in(root, IO))
    for bind in binds:
        if os.path.isdir(bind.source):
            os.close(folder_in(root, bind.target))
        elif beneath.read(Path(root), bind.target, 1 << 30) is None:
            beneath.write(Path(root), bind.target, b"", 0o644)
    for name in ("hosts", "hostname", "resolv.conf"):
        at = Path(root, "etc", name)
        if not at.exists() and not at.is_symlink():
            beneath.write(Path(root), f"/etc/{name}", b"", 0o644)


def absent(root: Path, paths: list[str]) -> list[str]:
    """Those of some top paths that `root` has not."""
    return [p for p in paths if p != "/.dockerenv" and not os.path.lexists(f"{root}{p}")]


def discard(io: Path) -> None:
    for name in ("entry", "in", "out", "err", "gate"):
        with contextlib.suppress(OSError):
            (io / name).unlink()
    with contextlib.suppress(OSError):
        io.rmdir()


def give(top: str) -> None:
    """chown to the agent, links themselves too; a file's set-id bits go, as the kernel wants it."""
    os.chown(top, *AGENT_IDS)
    for folder, names, files in os.walk(top):
        for name in [*names, *files]:
            at = os.path.join(folder, name)
            if os.lstat(at).st_uid != layout.AGENT or stat.S_ISDIR(os.lstat(at).st_mode):
                os.chown(at, *AGENT_IDS, follow_symlinks=False)
