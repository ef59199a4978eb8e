"""What an agent leaves: taken out of its sandbox once it is dead, kept with the session, put into fresh sandboxes.

Only tools of the judging clone touch the agent's files, never ones that the agent could have replaced; nothing is
unpacked on the host.
"""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from posixpath import normpath

import msgspec
import zstandard

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Sandbox
from tugline.core.errors import RunError, SandboxError
from tugline.rollout.manifest import LIST, MAX_DEPTH, TOO_LARGE, Change, Manifest, deep, encoded, parse

ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
CHANGES, FILES, OUTSIDE = "changes.json", "files.tar.zst", "outside.tar.zst"
MAX_FILES = 60 << 20
"""Bytes of one submission; sandboxes keep 64 MiB of a command's output."""
TOOL_SECONDS = 120.0
LONG_NAME = "File name too long"
CLEAR = (
    'for p; do if [ -d "$p" ] && [ ! -L "$p" ]; then rmdir -- "$p" 2>/dev/null || printf "%s\\0" "$p"; '
    'elif [ -e "$p" ] || [ -L "$p" ]; then rm -f -- "$p"; fi; done'
)
"""Make room, children first. A directory goes only when nothing is left in it: what the task restores stays, and
nothing takes its place. Such directories are printed. A program is started only for what is there: there may be very
many paths."""
MAKE = (
    'for p; do if [ -L "$p" ] || { [ -e "$p" ] && [ ! -d "$p" ]; }; then rm -f -- "$p"; fi; done; exec mkdir -p -- "$@"'
)


class TooLarge(SandboxError):
    """The changes exceed what is carried. The work itself can still be judged where it lies."""

    code = "submission_too_large"


class ToolError(SandboxError):
    """A tool of ours ended badly inside. `ended`: its exit status, None when it took too long."""

    def __init__(self, message: str, ended: int | None) -> None:
        super().__init__(message)
        self.ended = ended


@dataclass(frozen=True, slots=True)
class Submission:
    """The changes to a work directory, and a tar stream of the files and links among them; `outside`: one of the
    artifacts that lie elsewhere, names below /."""

    changes: tuple[Change, ...]
    tar: bytes
    outside: bytes = b""


async def manifest(box: Sandbox, scratch: Path) -> Manifest:
    """What lies in a box's work directory. Raises TooLarge for a tree that nobody could list in time, SandboxError."""
    try:
        data = await _tool(box, LIST, b"", scratch, "list the work directory")
    except ToolError as err:
        if err.ended == TOO_LARGE or LONG_NAME in err.message:
            raise TooLarge(
                "the work directory has too many links, too much data or too long paths to be listed"
            ) from err
        raise
    if len(data) > MAX_FILES:
        raise TooLarge("the work directory's list is too long")
    try:
        found = await asyncio.to_thread(parse, data)
    except ValueError as err:
        raise SandboxError(f"the work directory cannot be listed: {err}") from err
    if await asyncio.to_thread(deep, found):
        raise TooLarge(f"the work directory has paths of more than {MAX_DEPTH} parts")
    return found


async def take(box: Sandbox, changes: Sequence[Change], scratch: Path) -> Submission:
    """Read the changed files of a judging clone. Raises TooLarge, SandboxError."""
    wanted = [c.path for c in changes if c.kind in ("added", "modified", "mode", "link")]
    tar = b""
    if wanted:
        names = "".join(f"./{path}\n" for path in wanted).encode(errors="surrogateescape")
        tar = await _tool(box, "exec tar -c -f - -T -", names, scratch, "read the changed files")
        if len(tar) > MAX_FILES or await asyncio.to_thread(_members, tar) != len(wanted):
            raise TooLarge(f"the changed files exceed {MAX_FILES >> 20} MiB")
    return Submission(tuple(changes), tar)


async def take_outside(box: Sandbox, paths: Sequence[str], scratch: Path) -> bytes:
    """Regular files below `paths`, read in the agent's own box as the agent. What comes is whatever the agent likes, so
    only plain files and directories below those paths are kept. Raises TooLarge, SandboxError."""
    if not paths:
        return b""
    script = 'cd / && for p; do [ -e "./$p" ] && printf "./%s\\n" "$p"; done | tar -c -f - -T - | head -c "$MAX"; true'
    argv = ("/bin/sh", "-c", script, "sh", *(p.lstrip("/") for p in paths))
    env = {**ENV, "MAX": str(MAX_FILES + 1)}  # a file may be nothing but a hole, and longer than any time
    data = await _run(box, Command(argv, env, "/"), scratch, "read the artifacts")
    if len(data) > MAX_FILES:
        raise TooLarge(f"the artifacts exceed {MAX_FILES >> 20} MiB")
    return await asyncio.to_thread(_plain, data, [p.lstrip("/") for p in paths])


async def put(box: Sandbox, work: Submission, workdir: str, scratch: Path) -> None:
    """Make the changes in a fresh box, at the agent's work directory. Raises SandboxError."""
    if workdir != box.workdir and box.isolated:
        await _run(box, Command(("mkdir", "-p", "--", workdir), ENV, "/", root=True), scratch, "make a directory")
    if work.outside:
        argv = ("tar", "-x", "-p", "--no-same-owner", "-f", "-")
        await _run(box, Command(argv, ENV, "/", work.outside, root=True), scratch, "write the artifacts")
    away = [c.path for c in reversed(work.changes) if c.kind in ("deleted", "added", "link")]
    dirs = [c.path for c in work.changes if c.kind == "dir"]
    tar = work.tar
    if away:
        script = f"exec xargs -0 sh -c '{CLEAR}' sh"
        left = await _tool(box, script, _names(away), scratch, "remove files", workdir)
        stays = {p.decode(errors="surrogateescape").removeprefix("./") for p in left.split(b"\0") if p}
        if stays:
            tar = await asyncio.to_thread(only, tar, {c.path for c in work.changes} - stays)
    if dirs:
        await _tool(box, f"exec xargs -0 sh -c '{MAKE}' sh", _names(dirs), scratch, "make directories", workdir)
    if tar:
        script = "exec tar -x -p --no-same-owner -f -"
        await _tool(box, script, tar, scratch, "write the changed files", workdir)


async def remove(box: Sandbox, paths: Sequence[str], scratch: Path) -> None:
    """Take paths out of a box. Raises SandboxError."""
    if paths:
        await _tool(box, "exec xargs -0 rm -rf --", _names(paths), scratch, "remove links and special files")


def only(tar: bytes, paths: Collection[str]) -> bytes:
    """The files and links at `paths` alone; a second name of a file becomes a file of its own."""
    if not tar:
        return tar
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(tar)) as given,
        tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as out,
    ):
        for member in given:
            if member.name.removeprefix("./") not in paths or not (member.isfile() or member.issym() or member.islnk()):
                continue
            data = given.extractfile(member) if not member.issym() else None
            if member.islnk() and data is not None:
                member.type, member.linkname = tarfile.REGTYPE, ""
                body = data.read()
                member.size, data = len(body), io.BytesIO(body)
            out.addfile(member, data)
    return made.getvalue()


def outside_of(artifacts: Sequence[str], workdir: str) -> tuple[str, ...]:
    """The artifacts that lie outside the work directory, as absolute paths."""
    work = normpath(workdir)
    tops = [normpath(a if a.startswith("/") else f"{work}/{a}") for a in artifacts]
    near = (work, f"{work}/")
    return tuple(t for t in tops if t not in near and not t.startswith(near[1]) and not near[1].startswith(f"{t}/"))


def keep(work: Submission, folder: Path) -> None:
    """Store a submission with its session."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CHANGES).write_bytes(encoded(work.changes))
    (folder / FILES).write_bytes(zstandard.compress(work.tar, 3))
    if work.outside:
        (folder / OUTSIDE).write_bytes(zstandard.compress(work.outside, 3))


def stored(folder: Path) -> Submission:
    """A session's submission again. Raises RunError when it is not there or damaged."""
    try:
        changes = msgspec.json.decode((folder / CHANGES).read_bytes(), type=tuple[Change, ...])
        tar = _unpacked(folder / FILES)
        outside = _unpacked(folder / OUTSIDE) if (folder / OUTSIDE).is_file() else b""
    except (OSError, msgspec.MsgspecError, zstandard.ZstdError) as err:
        raise RunError(f"{folder} holds no submission that can be read: {err}") from err
    if not all(_below(change.path) for change in changes):
        raise RunError(f"{folder} holds a submission whose paths leave the work directory")
    return Submission(changes, tar, outside)


def _unpacked(file: Path) -> bytes:
    """A stored stream. zstd asks for as much memory as the stream's head says, whatever the limit."""
    data = file.read_bytes()
    if zstandard.frame_content_size(data) > MAX_FILES:
        raise zstandard.ZstdError(f"{file.name} has more than {MAX_FILES >> 20} MiB")
    return zstandard.decompress(data, max_output_size=MAX_FILES)


def _below(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


def _names(paths: Sequence[str]) -> bytes:
    return "".join(f"./{path}\0" for path in paths).encode(errors="surrogateescape")


def _members(tar: bytes) -> int:
    """Files and links in a tar stream; -1 when it is cut."""
    try:
        with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
            return sum(1 for m in archive if not m.isdir())
    except tarfile.TarError:
        return -1


def _plain(data: bytes, tops: Sequence[str]) -> bytes:
    """A tar stream of the plain files and directories below `tops`; b"" for what is no tar stream."""
    made = io.BytesIO()
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(data)) as given,
            tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as out,
        ):
            for member in given:
                name = PurePosixPath(member.name)
                below = any(name == PurePosixPath(t) or PurePosixPath(t) in name.parents for t in tops)
                if not below or name.is_absolute() or ".." in name.parts or not (member.isfile() or member.isdir()):
                    continue
                clean = tarfile.TarInfo(str(name))
                clean.size, clean.mode, clean.type = member.size, member.mode & 0o777, member.type
                out.addfile(clean, given.extractfile(member) if member.isfile() else None)
    except tarfile.TarError:
        return b""
    return made.getvalue()


async def _tool(box: Sandbox, script: str, stdin: bytes, scratch: Path, what: str, workdir: str | None = None) -> bytes:
    """Run a shell line in the work directory as the box's root. Raises SandboxError unless it ends with 0."""
    argv = ("/bin/sh", "-c", script)
    return await _run(box, Command(argv, ENV, workdir or box.workdir, stdin=stdin, root=True), scratch, what)


async def _run(box: Sandbox, command: Command, scratch: Path, what: str) -> bytes:
    await asyncio.to_thread(scratch.mkdir, parents=True, exist_ok=True)
    out, err = scratch / "tool.out", scratch / "tool.err"
    try:
        ended = await box.run(replace(command, stdout=out, stderr=err), Deadline.after(TOOL_SECONDS))
        if ended.code != 0 or ended.timed_out:
            said = (await asyncio.to_thread(err.read_bytes)).decode(errors="replace").strip()[-300:]
            why = "took too long" if ended.timed_out else said or f"exit {ended.code}"
            raise ToolError(f"{what}: {why}", None if ended.timed_out else ended.code)
        return await asyncio.to_thread(out.read_bytes)
    finally:
        await asyncio.to_thread(_drop, out, err)


def _drop(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
