"""The directory of one provider, and finding those whose owner is dead."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tugline.core.errors import ConfigError
from tugline.core.ident import new_id
from tugline.sandboxes.client import LOCK
from tugline.sandboxes.runtimes import find
from tugline.sandboxes.warden import kernel
from tugline.sandboxes.warden.cgroups import remove_tree
from tugline.sandboxes.warden.engine import sweep
from tugline.sandboxes.warden.main import remove

OWNER, UNSIGNED = "owner.json", ".new-"


class EngineOf(msgspec.Struct, frozen=True):
    """The container engine's client that an instance uses: what removes its containers."""

    argv: tuple[str, ...]
    env: dict[str, str]


class Owner(msgspec.Struct, frozen=True):
    """Who made an instance. A pid counts only with its start time (clock ticks since boot)."""

    pid: int
    started: int
    run_id: str
    stage: str = ""
    warden: int = 0
    warden_started: int = 0
    cgroups: tuple[str, ...] = ()
    engine: EngineOf | None = None
    boot: str = ""
    """Of the machine. Whatever else it says of processes, mounts, groups and programs is of this boot alone: a run's
    directory may come from anywhere."""


@dataclass(frozen=True, slots=True)
class Instance:
    """Directories of one provider: `path` below the run's state directory, `stage` an empty mount point."""

    path: Path
    stage: str

    @property
    def label(self) -> str:
        """Unique on this machine."""
        return self.path.name


def create(state_dir: Path, run_id: str, staged: bool) -> Instance:
    """Make the directories and note the owner. `staged` = with a mount point that any user can reach.

    Whatever moment this is killed in, `reap` finds what was made: the owner's pid is in the first name, the mount point
    is noted before it is made. Raises OSError.
    """
    name, me = new_id("box"), os.getpid()
    started = start_time(me)
    scratch = state_dir / f"{UNSIGNED}{me}-{started}-{name}"
    (scratch / "snapshots").mkdir(parents=True, mode=0o700)
    scratch.chmod(0o700)
    stage = _stage_path() if staged else ""
    note(Instance(scratch, stage), Owner(me, started, run_id, stage, boot=boot_id()))
    instance = Instance(state_dir / name, stage)
    scratch.rename(instance.path)
    if stage:
        os.mkdir(stage)
        os.chmod(stage, 0o711)
    return instance


def note(instance: Instance, owner: Owner) -> None:
    """Write the owner file so that it is whole or absent."""
    temporary = instance.path / f".{OWNER}"
    temporary.write_bytes(msgspec.json.encode(owner))
    temporary.rename(instance.path / OWNER)


def sign(
    instance: Instance, run_id: str, warden: int, cgroups: tuple[str, ...], engine: EngineOf | None = None
) -> None:
    """Note the warden, its groups and its engine too."""
    me = os.getpid()
    warden_started, boot = start_time(warden), boot_id()
    note(instance, Owner(me, start_time(me), run_id, instance.stage, warden, warden_started, cgroups, engine, boot))


def discard(instance: Instance, cgroups: tuple[str, ...] = ()) -> None:
    """Remove an instance's directories and what a killed warden left of its groups. The warden is gone."""
    for group in cgroups:
        remove_tree(group)
    if instance.stage:
        unmount_below(instance.stage)
        with contextlib.suppress(OSError):
            os.rmdir(instance.stage)
    remove(str(instance.path))


def reap(state_dir: Path) -> int:
    """Remove instances whose owner is dead, with the processes and groups they may have left. Returns how many."""
    removed = 0
    for path in state_dir.glob(f"{UNSIGNED}*"):
        numbers = path.name.removeprefix(UNSIGNED).split("-")[:2]
        if len(numbers) != 2 or not all(n.isdecimal() and n.isascii() for n in numbers):
            continue  # no name of ours
        if not alive(int(numbers[0]), int(numbers[1])):
            remove(str(path))
            removed += 1
    for path in sorted(state_dir.glob("box_*")):
        try:
            owner = msgspec.json.decode((path / OWNER).read_bytes(), type=Owner)
        except (OSError, msgspec.DecodeError):
            owner = Owner(0, 0, "", boot=boot_id())
            if not (path / OWNER).exists() and _young(path):
                continue
        if owner.boot != boot_id():
            _sweep_again(path, owner)
            remove(str(path))
            removed += 1
            continue
        if alive(owner.pid, owner.started):
            continue
        _end_warden(path, owner)
        if owner.stage:
            end_programs_of(owner.stage)
        if owner.engine is not None:
            sweep(list(owner.engine.argv), owner.engine.env, path.name)
        discard(Instance(path, owner.stage), owner.cgroups)
        removed += 1
    return removed


def boot_id() -> str:
    """Of this machine's run since it was started; nobody elsewhere knows it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _sweep_again(path: Path, owner: Owner) -> None:
    """Containers outlive a boot. Their engine is the one that is found here, not the one that is named there."""
    if owner.engine is not None and owner.engine.argv:
        with contextlib.suppress(ConfigError):
            runtime = find(owner.engine.argv[0].rpartition("/")[2], os.environ)
            sweep(list(runtime.argv), dict(runtime.env), path.name)


def start_time(pid: int) -> int:
    """Field 22 of /proc/PID/stat; 0 when there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def alive(pid: int, started: int) -> bool:
    """Whether that very process still runs."""
    return pid > 0 and started > 0 and start_time(pid) == started


def end_programs_of(stage: str) -> None:
    """Kill bwrap processes of a warden that was itself killed.

    They die with their parent, unless it went in the instant before they could ask the kernel for that. Each is started
    by its path below the stage, and ends everything in its namespace.
    """
    start = f"{stage}/".encode()
    for _ in range(100):
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                if Path(f"/proc/{int(name)}/cmdline").read_bytes().startswith(start):
                    found.append(int(name))
        if not found:
            return
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def unmount_below(stage: str) -> None:
    """Detach what a killed warden has left mounted where the host sees it. Other places stay as they are."""
    with contextlib.suppress(OSError):
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for point in sorted({p for p in points if p == stage or p.startswith(f"{stage}/")}, reverse=True):
            with contextlib.suppress(OSError):
                kernel.unmount(point)


def _end_warden(path: Path, owner: Owner) -> None:
    """Wait until the warden of a dead owner is gone; it is about to go by itself, also one that was not signed yet.
    SIGKILL reaches its children too."""
    try:
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for number, seconds in ((0, 15.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            if number and alive(owner.warden, owner.warden_started):
                os.kill(owner.warden, number)
            if _locked(lock, seconds):
                return
    except ProcessLookupError:
        return
    finally:
        os.close(lock)


def _locked(fd: int, seconds: float) -> bool:
    """Whether nobody else holds the lock any more, within that time."""
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        else:
            return True


def _young(path: Path) -> bool:
    """Made this minute: its owner may be about to sign it."""
    return time.time() - path.stat().st_mtime < 60


def _stage_path() -> str:
    """A name that is free, in a directory that every user can enter where there is one."""
    name = f"tugline-{secrets.token_hex(6)}"
    for parent in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/run", "/dev/shm"):
        if os.access(parent, os.W_OK) and _open_to_all(Path(parent)):
            return f"{parent}/{name}"
    return f"{tempfile.gettempdir()}/{name}"


def _open_to_all(path: Path) -> bool:
    return all(p.stat().st_mode & 0o001 for p in (path, *path.parents))
