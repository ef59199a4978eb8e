"""Directories that processes share: made once, held while in use, removed only when nobody holds them.

A lock is flock(2) on the directory itself, so it ends with the process and leaves no file behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tugline.core.ident import new_id
from tugline.sandboxes.warden.main import remove

META = "meta.json"
TRASH, SCRATCH, TURN = ".trash-", ".new-", ".turn-"


class Meta(msgspec.Struct, frozen=True):
    """What is known of an entry. `size` in bytes of file content and directories."""

    size: int
    what: str = ""
    details: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Entry:
    """A directory in use. Closing `fd` lets it go."""

    path: Path
    fd: int
    meta: Meta

    def release(self) -> None:
        """Others may remove it now."""
        os.close(self.fd)


def held(path: Path) -> Entry | None:
    """Hold an entry if it is there. Blocks for the moment in which somebody decides to remove it."""
    while True:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            if _is(fd, path):
                meta = msgspec.json.decode((path / META).read_bytes(), type=Meta)
                os.utime(fd)
                return Entry(path, fd, meta)
        except (OSError, msgspec.DecodeError):
            os.close(fd)
            return None
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory that is being filled. Close it, whatever happens; what was not published is removed."""

    path: Path
    fd: int

    def close(self) -> None:
        """Let go, and remove what still has the scratch name."""
        os.close(self.fd)
        if self.path.exists():
            remove(str(self.path))


def scratch_for(path: Path) -> Scratch:
    """A scratch directory beside `path`. While it is locked no sweep touches it."""
    made = path.with_name(f"{SCRATCH}{path.name[:40]}-{new_id('x')[2:]}")
    made.mkdir(parents=True, mode=0o755)
    fd = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return Scratch(made, fd)


def publish(scratch: Scratch, path: Path, what: str) -> Entry:
    """Give a filled scratch directory its name; it is held from then on. What stood there, damaged, goes."""
    meta = Meta(tree_size(scratch.path), what)
    (scratch.path / META).write_bytes(msgspec.json.encode(meta))
    try:
        scratch.path.rename(path)
    except OSError:
        discard(path)
        scratch.path.rename(path)
    fcntl.flock(scratch.fd, fcntl.LOCK_SH)
    return Entry(path, os.dup(scratch.fd), meta)


def take_turn(path: Path) -> int | None:
    """The right to make `path`, as a descriptor for `end_turn`; None while another process has it."""
    gate = path.with_name(f"{TURN}{path.name}")
    gate.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(gate, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    if _is(fd, gate):
        return fd
    os.close(fd)
    return None


def end_turn(path: Path, fd: int) -> None:
    """Let the next one make."""
    with contextlib.suppress(OSError):
        os.unlink(path.with_name(f"{TURN}{path.name}"))
    os.close(fd)


def discard(path: Path) -> None:
    """Out of sight at once, then removed."""
    trash = path.with_name(f"{TRASH}{new_id('x')[2:]}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(trash)
        remove(str(trash))


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed and what is left, in entries and bytes."""

    removed: int
    freed: int
    kept: int
    size: int


def sweep(tops: Sequence[Path], older: float, largest: int, now: float) -> Swept:
    """Remove what was last used before `now` - `older` seconds, then the least used until at most `largest` bytes are
    left in all of `tops`. What a living process holds stays, and so does what one is making."""
    removed, freed = sum(_leftovers(top) for top in tops), 0
    entries = sorted((entry for top in tops for entry in _entries(top)), key=lambda entry: entry[0])
    size = sum(meta.size for _, _, meta in entries)
    kept = len(entries)
    for used, path, meta in entries:
        if now - used <= older and size <= largest:
            continue
        if _take(path):
            removed, freed, size, kept = removed + 1, freed + meta.size, size - meta.size, kept - 1
    return Swept(removed, freed, kept, size)


def _entries(top: Path) -> Iterator[tuple[float, Path, Meta]]:
    for path in top.iterdir() if top.is_dir() else ():
        if path.name.startswith("."):
            continue
        try:
            meta = msgspec.json.decode((path / META).read_bytes(), type=Meta)
            yield path.stat().st_mtime, path, meta
        except (OSError, msgspec.DecodeError):
            continue


def _leftovers(top: Path) -> int:
    """What dead processes were making or removing."""
    removed = 0
    for path in top.iterdir() if top.is_dir() else ():
        if path.name.startswith(SCRATCH):
            removed += _take(path)
        elif path.name.startswith(TRASH):
            remove(str(path))
            removed += 1
        elif path.name.startswith(TURN) and (fd := take_turn(path.with_name(path.name.removeprefix(TURN)))) is not None:
            end_turn(path.with_name(path.name.removeprefix(TURN)), fd)
    return removed


def _take(path: Path) -> bool:
    """Remove a directory unless somebody holds it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        discard(path)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _is(fd: int, path: Path) -> bool:
    """Whether `path` still names what is open."""
    try:
        here, there = os.fstat(fd), os.stat(path)
    except OSError:
        return False
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


def tree_size(path: Path) -> int:
    """Bytes of a directory tree as the disk counts them."""
    total = 0
    for folder, names, files in os.walk(path):
        for name in [*names, *files]:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
