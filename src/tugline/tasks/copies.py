"""COPY and ADD: which host paths go where, by Docker's rules."""

from __future__ import annotations

import glob
import posixpath
import re
import shlex
import tarfile
from dataclasses import dataclass
from pathlib import Path

from tugline.core.task import Copy
from tugline.tasks.dockerlines import DockerfileProblem

STANDARD = (
    *(
        "/",
        "/bin",
        "/dev",
        "/etc",
        "/home",
        "/lib",
        "/media",
        "/mnt",
        "/opt",
        "/proc",
        "/root",
        "/run",
        "/sbin",
        "/srv",
    ),
    *("/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/usr/local/bin", "/usr/local/lib"),
    *("/usr/local/share", "/usr/share", "/var", "/var/lib", "/var/log", "/var/tmp"),
)
"""Directories that every image has: a file copied to such a path goes into it."""
HARMLESS = ("--chown", "--link")
"""Nobody but root and the agent lives in a sandbox."""
MAX_MATCHES = 10_000


@dataclass(frozen=True, slots=True)
class Order:
    """One COPY or ADD, words expanded. `flags` is name -> value."""

    name: str
    flags: dict[str, str]
    sources: tuple[str, ...]
    target: str


def order(name: str, found: list[str], flags: dict[str, str]) -> Order:
    """Check the words of a COPY or ADD. Raises DockerfileProblem."""
    if name == "COPY" and "--from" in flags:
        raise DockerfileProblem("COPY --from another stage or image is not supported")
    for flag in flags:
        if flag not in (*HARMLESS, "--chmod"):
            raise DockerfileProblem(f"{name} {flag[:40]} is not supported")
    if len(found) < 2 or not all(found):
        raise DockerfileProblem(f"{name} needs a source and a target")
    for source in found[:-1]:
        if "://" in source or source.startswith("git@"):
            raise DockerfileProblem(f"{name} of {source[:80]!r}: only local files are supported")
    return Order(name, flags, tuple(found[:-1]), found[-1])


def steps_of(order: Order, context: Path, workdir: str, folders: set[str]) -> list[Copy | str]:
    """Copy steps with final targets (and a chmod where asked). `folders` are the directories known to exist inside;
    what this order makes is added. Raises DockerfileProblem."""
    sources = [path for pattern in order.sources for path in _matches(pattern, context)]
    base = posixpath.normpath(posixpath.join("/", workdir, order.target))
    says_folder = order.target.endswith("/") or posixpath.basename(order.target) in (".", "..")
    if len(sources) > 1 and not says_folder:
        raise DockerfileProblem(f"{order.name} of several files needs a target that ends with /")
    steps: list[Copy | str] = []
    for path in sources:
        if order.name == "ADD" and path.is_file() and tarfile.is_tarfile(path):
            raise DockerfileProblem(f"ADD would unpack {path.name[:80]!r}: use COPY and RUN")
        target = base
        if path.is_dir():
            note_folder(folders, base)
        elif says_folder or base in folders:
            note_folder(folders, base)
            target = posixpath.join(base, path.name)
        else:
            note_folder(folders, posixpath.dirname(base))
        steps.append(Copy(path, target))
        if "--chmod" in order.flags:
            steps.append(_chmod(order, path, target))
    return steps


def _chmod(order: Order, path: Path, target: str) -> str:
    mode = order.flags["--chmod"]
    if path.is_dir() or not re.fullmatch(r"[0-7]{3,4}", mode):
        raise DockerfileProblem(f"{order.name} --chmod is supported for files and octal modes only")
    return f"chmod {mode} {shlex.quote(target)}"


def note_folder(folders: set[str], path: str) -> None:
    """A directory, and with it its parents, exists inside."""
    while path not in folders:
        folders.add(path)
        path = posixpath.dirname(path)


def _matches(pattern: str, context: Path) -> list[Path]:
    """Paths of the build context that a source names, in order. Links are followed at the named path only."""
    relative = posixpath.normpath(posixpath.join("/", pattern)).lstrip("/") or "."
    if ".." in pattern.split("/") and posixpath.normpath(pattern).startswith(".."):
        raise DockerfileProblem(f"{pattern[:80]!r} leaves the environment directory")
    wild = re.search(r"[*?\[]", relative) is not None
    names = sorted(glob.glob(relative, root_dir=context, include_hidden=True)) if wild else [relative]
    if len(names) > MAX_MATCHES:
        raise DockerfileProblem(f"{pattern[:80]!r} matches more than {MAX_MATCHES} files")
    inside = context.resolve()
    found = []
    for name in names:
        path = context / name
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        if not real.is_relative_to(inside):
            raise DockerfileProblem(f"{pattern[:80]!r} leaves the environment directory")
        if not (real.is_file() or real.is_dir()):
            raise DockerfileProblem(f"{pattern[:80]!r} is neither a file nor a directory")
        found.append(real if real.is_dir() else path)
    if not found:
        raise DockerfileProblem(f"{pattern[:80]!r} does not exist in the environment directory")
    return found
