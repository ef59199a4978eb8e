"""File trees of sandboxes: one size-limited tmpfs and two overlays per box.

STAGE/              a tmpfs that only the warden's mount namespace has
  base/             the skeleton every root starts from: links into /usr, our own /etc
  empty/            the lowest layer of a work directory without a snapshot
  bin/              a copy of bwrap that an unprivileged user can reach
  snapshots/        bind of the provider's snapshot directory
  binds/N           host directories to show inside, reachable whatever their parents' modes
  boxes/NAME        the box's tmpfs: upper layers, home, tmp, logs, shm
  boxes/NAME.root   overlay: snapshot over base, writes to the box
  boxes/NAME.work   overlay: the work directory

Where a container engine runs the commands, the lowest layer is a whole image instead of the skeleton, the mounts are
the host's (an engine must see them), and `boxes/NAME.root` shows the box as its commands will: its work directory,
home, /tmp and /logs are bound to their places.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field

from . import kernel

ETC = (
    "alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ssl/certs", "ssl/openssl.cnf", "ca-certificates.conf",
    "pki/tls/certs", "pki/ca-trust/extracted", "pki/tls/cert.pem", "localtime", "timezone", "mime.types", "magic",
    "protocols", "services", "os-release", "debian_version", "python3", "terminfo", "inputrc", "bash.bashrc",
)  # fmt: skip
OWN_ETC = {
    "passwd": "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
DIRS = ("usr", "proc", "dev", "sys", "tmp", "home/agent", "root", "logs", "opt", "run", "mnt", "srv", "var/lib",
        "var/log", "var/cache", "etc")  # fmt: skip
HOME = "/home/agent"
METACOPY = "/sys/module/overlay/parameters/metacopy"
PRIVATE = ("home", "tmp", "logs", "logs/agent", "logs/verifier", "logs/artifacts", "shm")


@dataclass(slots=True)
class Box:
    """One box's mounts. `work` = layers of the work directory, newest first; the first is written to."""

    name: str
    memory: int
    pids: int
    root_lowers: list[str]
    work: list[str] = field(default_factory=list)
    on_disk: str | None = None
    size: int = 0
    """Bytes that all its writes together may take."""
    seals: int = 0
    workdir: str = ""
    """Where the work directory is bound below the root; only where the tree is `whole`."""
    bound: str = ""
    """Host path of that bind."""


class Tree:
    """Everything mounted. `owner` = (uid, gid) that sandboxed processes run as, seen from the warden.

    `whole`: the layers are whole images and the mounts are seen by the host.
    """

    def __init__(
        self, stage: str, snapshots: str, owner: tuple[int, int], unprivileged: bool, whole: bool = False
    ) -> None:
        self.stage = stage
        self.owner = owner
        self.whole = whole
        # metacopy: giving an image's work directory to the agent copies no data
        self._extra = ",userxattr" if unprivileged else ",metacopy=on" if whole and os.path.exists(METACOPY) else ""
        self._binds: dict[tuple[str, int, int], str] = {}
        self._kept: set[str] = set()
        self.boxes: dict[str, Box] = {}
        kernel.mount("tugline", stage, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=0711,size=512m")
        kernel.mount("none", stage, None, kernel.MS_PRIVATE)
        for name in ("empty", "bin", "snapshots", "binds", "boxes"):
            self._mkdir(f"{stage}/{name}")
        kernel.mount(snapshots, f"{stage}/snapshots", None, kernel.MS_BIND | kernel.MS_REC)
        if not whole:
            self._skeleton(f"{stage}/base")

    def install(self, program: str, libs: str | None) -> str:
        """Copy bwrap, with the libraries its wheel brings, to where any user can run it."""
        target = f"{self.stage}/bin/pkg/_bin"
        os.makedirs(target)
        shutil.copy(program, f"{target}/bwrap")
        os.chmod(f"{target}/bwrap", 0o755)
        if libs:
            shutil.copytree(libs, f"{self.stage}/bin/{os.path.basename(libs)}")
        return f"{target}/bwrap"

    def bind(self, source: str) -> str:
        """Show a host path under the stage. Raises OSError."""
        stat = os.stat(source)
        key = (source, stat.st_dev, stat.st_ino)
        if key not in self._binds:
            target = f"{self.stage}/binds/{len(self._binds)}"
            if os.path.isdir(source):
                os.mkdir(target)
            else:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
            kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)
            self._binds[key] = target
        return self._binds[key]

    def make(self, box: Box, size: int, work_lowers: list[str]) -> None:
        """Mount a box. `size` in bytes limits all its writes together. Raises OSError."""
        at = f"{self.stage}/boxes/{box.name}"
        self._mkdir(at)
        uid, gid = self.owner
        box.size = size
        options = f"mode=0755,{_limits(box)},uid={uid},gid={gid}"
        kernel.mount("tugline", at, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        self.boxes[box.name] = box
        for name in PRIVATE:
            self._mkdir(f"{at}/{name}")
        for name in ("tmp", "shm"):
            os.chmod(f"{at}/{name}", 0o1777)
        upper = box.on_disk or at
        for name in ("root", "root.w", "work0", "work0.w"):
            self._mkdir(f"{upper}/{name}")
        if self.whole:
            os.chown(f"{upper}/root", 0, 0)
        for name in ("root", "work"):
            os.makedirs(f"{at}.{name}", exist_ok=True)
        self._overlay(f"{at}.root", f"{upper}/root", f"{upper}/root.w", box.root_lowers)
        box.work = [f"{upper}/work0", *work_lowers]
        self._overlay(f"{at}.work", box.work[0], f"{upper}/work0.w", box.work[1:])
        if self.whole:
            for source, place in ((f"{at}/home", HOME), (f"{at}/tmp", "/tmp"), (f"{at}/logs", "/logs")):
                self._bind_in(box, source, place)
            box.bound = self._bind_in(box, f"{at}.work", box.workdir)

    def _bind_in(self, box: Box, source: str, place: str) -> str:
        """Show a host directory at `place` of a box; the host path it is mounted on."""
        fd = kernel.folder_in(f"{self.stage}/boxes/{box.name}.root", place)
        try:
            target = f"/proc/self/fd/{fd}"
            real = os.readlink(target)
            kernel.mount(source, target, None, kernel.MS_BIND)
        finally:
            os.close(fd)
        return real

    def seal(self, name: str) -> list[str]:
        """Freeze the work directory as it stands; the box goes on in a new layer. Returns the frozen layers."""
        box, at = self.boxes[name], f"{self.stage}/boxes/{name}"
        sealed = list(box.work)
        fresh = f"{box.on_disk or at}/work{len(sealed)}"
        box.seals += 1  # an agent that has filled its disk is judged like any other
        kernel.mount("tugline", at, None, kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV, _limits(box))
        self._mkdir(fresh)
        self._mkdir(f"{fresh}.w")
        if box.bound:
            kernel.unmount(box.bound)
        kernel.unmount(f"{at}.work")
        box.work = [fresh, *sealed]
        self._overlay(f"{at}.work", fresh, f"{fresh}.w", sealed)
        if self.whole:
            box.bound = self._bind_in(box, f"{at}.work", box.workdir)
        return sealed

    def loose(self, name: str) -> list[str]:
        """Mounts to take away now that box `name` is gone. Layers that other boxes stand on stay until those go."""
        at = f"{self.stage}/boxes/{name}"
        self._kept.add(name)
        used = [layer for box in self.boxes.values() for layer in (*box.root_lowers, *box.work)]
        free = {n for n in self._kept if not any(u.startswith(f"{self.stage}/boxes/{n}/") for u in used)}
        self._kept -= free
        return [f"{at}.work", f"{at}.root", *(f"{self.stage}/boxes/{n}" for n in sorted(free))]

    def unmount(self, paths: list[str]) -> None:
        """Detach mounts and remove their mount points."""
        for path in paths:
            with contextlib.suppress(OSError):
                kernel.unmount(path)
            with contextlib.suppress(OSError):
                os.rmdir(path)

    def links_in(self, name: str, paths: list[str]) -> str | None:
        """The first of `paths` that a command has replaced by a link, or None.

        bwrap would follow such a link when it mounts there.
        """
        root = f"{self.stage}/boxes/{name}.root"
        for path in paths:
            at = root
            for part in [p for p in path.split("/") if p]:
                at = f"{at}/{part}"
                if os.path.islink(at):
                    return path
                if not os.path.isdir(at):
                    break
        return None

    def close(self) -> None:
        """Unmount everything and remove the mount point."""
        for name in list(self.boxes):
            del self.boxes[name]
            self.unmount(self.loose(name))
        with contextlib.suppress(OSError):
            kernel.unmount(self.stage)
        with contextlib.suppress(OSError):
            os.rmdir(self.stage)

    def _overlay(self, target: str, upper: str, work: str, lowers: list[str]) -> None:
        data = f"lowerdir={':'.join(lowers)},upperdir={upper},workdir={work}{self._extra}"
        kernel.mount("tugline", target, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, data)

    def _mkdir(self, path: str) -> None:
        os.mkdir(path, 0o755)
        os.chown(path, *self.owner)

    def _skeleton(self, base: str) -> None:
        os.mkdir(base, 0o755)
        for name in DIRS:
            os.makedirs(f"{base}/{name}", 0o755, exist_ok=True)
        os.symlink("/tmp", f"{base}/var/tmp")
        for name in sorted(os.listdir("/")):
            if name in ("bin", "sbin") or name.startswith("lib"):
                if os.path.islink(f"/{name}"):
                    os.symlink(os.readlink(f"/{name}"), f"{base}/{name}")
                elif os.path.isdir(f"/{name}") and name != "lost+found":
                    os.mkdir(f"{base}/{name}")
        for name in ETC:
            _copy(f"/etc/{name}", f"{base}/etc/{name}")
        for name, text in OWN_ETC.items():
            with open(f"{base}/etc/{name}", "w") as f:
                f.write(text)
        for folder, _, files in os.walk(base):
            os.chown(folder, *self.owner)
            for file in files:
                os.chown(f"{folder}/{file}", *self.owner, follow_symlinks=False)


def _limits(box: Box) -> str:
    """Mount options: the box's size, and what its seals need beyond it."""
    return f"size={box.size + (box.seals << 20)},nr_inodes={max(65536, box.size // 8192) + 256 * box.seals}"


def _copy(source: str, target: str) -> None:
    """Copy links, directories and world-readable files; skip the rest."""
    if os.path.islink(source):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        with contextlib.suppress(PermissionError):
            for name in os.listdir(source):
                _copy(f"{source}/{name}", f"{target}/{name}")
    elif os.path.isfile(source) and os.stat(source).st_mode & 0o004:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copyfile(source, target)
