"""Unified diffs as git writes them, applied to contents. Pure, and strict: a hunk fits exactly where it says, or at
the one other place where its old lines stand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
NO_END = "\\ No newline at end of file"


class PatchError(ValueError):
    """A diff cannot be read or does not fit; says which file."""


@dataclass(slots=True)
class Hunk:
    """`old` and `new` are whole lines with their ends; `start` is the first old line, from 1."""

    start: int
    old: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FileDiff:
    """None as a path: the file is not there before or after."""

    old: str | None
    new: str | None
    hunks: list[Hunk] = field(default_factory=list)
    binary: bool = False


def parse(text: str) -> list[FileDiff]:
    """The files of a diff. Raises PatchError."""
    files: list[FileDiff] = []
    lines = _lines(text)
    at = 0
    while at < len(lines):
        line = lines[at].rstrip("\r\n")
        if line.startswith("diff --git "):
            match = re.match(r"diff --git a/(.+) b/(.+)$", line)
            files.append(FileDiff(match[1], match[2]) if match else FileDiff("", ""))
        elif line.startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ "):
            old, new = _path(line[4:]), _path(lines[at + 1].rstrip("\r\n")[4:])
            if not files or files[-1].hunks:
                files.append(FileDiff(old, new))
            files[-1].old, files[-1].new = old, new
            at += 1
        elif files and line.startswith("new file mode"):
            files[-1].old = None
        elif files and line.startswith("deleted file mode"):
            files[-1].new = None
        elif files and line.startswith(("GIT binary patch", "Binary files ")):
            files[-1].binary = True
        elif match := _HUNK.match(line):
            if not files:
                raise PatchError("a hunk without a file")
            at = _hunk(lines, at, match, files[-1])
            continue
        at += 1
    return files


def touched(text: str) -> list[str]:
    """Paths that a diff reads or writes, in order."""
    return list(dict.fromkeys(p for f in parse(text) for p in (f.old, f.new) if p))


def apply(text: str, before: Mapping[str, bytes]) -> dict[str, bytes | None]:
    """Contents after the diff, by path; None = removed. Bytes that are no UTF-8 pass through. Raises PatchError."""
    out: dict[str, bytes | None] = {}
    for file in parse(text):
        if file.binary:
            raise PatchError(f"{file.new or file.old}: binary changes are not supported")
        content = b""
        if file.old is not None:
            if file.old not in before:
                raise PatchError(f"{file.old} is not there")
            content = before[file.old]
            out[file.old] = None
        if file.new is not None:
            out[file.new] = _applied(content, file)
    return out


def _applied(content: bytes, file: FileDiff) -> bytes:
    lines = _lines(content.decode("utf-8", "surrogateescape"))
    shift = 0
    for hunk in file.hunks:
        at = _place(lines, hunk, shift, file.new or "")
        shift = at - (hunk.start - 1 if hunk.old else hunk.start) + len(hunk.new) - len(hunk.old)
        lines[at : at + len(hunk.old)] = hunk.new
    return "".join(lines).encode("utf-8", "surrogateescape")


def _place(lines: list[str], hunk: Hunk, shift: int, name: str) -> int:
    size = len(hunk.old)
    expected = (hunk.start - 1 if hunk.old else hunk.start) + shift
    if lines[expected : expected + size] == hunk.old and 0 <= expected <= len(lines):
        return expected
    found = [i for i in range(len(lines) - size + 1) if lines[i : i + size] == hunk.old] if size else []
    if len(found) != 1:
        raise PatchError(f"{name}: the hunk at line {hunk.start} does not fit")
    return found[0]


def _hunk(lines: list[str], at: int, match: re.Match[str], file: FileDiff) -> int:
    """Read one hunk; returns the index behind it."""
    olds, news = int(match[2] or 1), int(match[4] or 1)
    hunk = Hunk(int(match[1]))
    at += 1
    while at < len(lines) and (len(hunk.old) < olds or len(hunk.new) < news):
        line = lines[at]
        mark, body = line[:1], line[1:]
        if mark == "-":
            hunk.old.append(body)
        elif mark == "+":
            hunk.new.append(body)
        elif mark in (" ", "\n", "\r"):
            body = body if mark == " " else line
            hunk.old.append(body)
            hunk.new.append(body)
        elif not line.startswith(NO_END[:2]):
            raise PatchError(f"{file.new or file.old}: a line of a hunk begins with {mark!r}")
        at += 1
        if at < len(lines) and lines[at].startswith(NO_END[:2]):
            for side, fits in ((hunk.old, mark in "- "), (hunk.new, mark in "+ ")):
                if fits and side:
                    side[-1] = side[-1].rstrip("\r\n")
            at += 1
    if (len(hunk.old), len(hunk.new)) != (olds, news):
        raise PatchError(f"{file.new or file.old}: the hunk at line {hunk.start} is cut")
    file.hunks.append(hunk)
    return at


def _lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends one."""
    found = [f"{part}\n" for part in text.split("\n")]
    found[-1] = found[-1][:-1]
    return found if found[-1] else found[:-1]


def _path(text: str) -> str | None:
    """a/x or b/x of a header line."""
    name = text.split("\t")[0].strip()
    if name == "/dev/null":
        return None
    return name[2:] if name[:2] in ("a/", "b/") else name
