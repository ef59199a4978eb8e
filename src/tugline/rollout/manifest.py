"""What lies in a work directory, listed by the sandbox's own tools, and how two lists differ. The parsing is pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

import msgspec

from tugline.core.task import Carry

TOO_LARGE = 77
"""Exit status of LIST for what cannot be listed in the time that there is."""
MAX_LINKS, MAX_APPARENT, MAX_DEPTH = 20_000, 8 << 30, 100
"""Of one tree: links, bytes of all files together as they say themselves (holes count), parts of a path."""
_ODD = "*[\n\r\\\\]*"
LIST = (
    'find . -type f -exec stat -c %s {} + | { t=0; while read -r n; do [ "${#n}" -lt 13 ] || exit 1; t=$((t+n)); done; '
    f'[ "$t" -le {MAX_APPARENT} ]; }} && [ "$(find . -type l | wc -l)" -le {MAX_LINKS} ] || exit {TOO_LARGE}; '
    "find . -mindepth 1 -type d -print0; printf '//\\0'; find . -type f -perm -100 -print0; printf '//\\0'; "
    'find . -type l -exec sh -c \'for p; do printf "%s\\0=%s\\0" "$p" "$(readlink "$p")"; done\' sh {} +; '
    "printf '//\\0'; find . ! -type f ! -type d ! -type l -print0; printf '//\\0'; "
    f"find . -type f -path '{_ODD}' -print0; printf '//\\0'; find . -type f ! -path '{_ODD}' -exec sha256sum {{}} +"
)
"""Directories, executables, links with their targets, other kinds, files with odd names, each list ended by `//`; then
the other files. How sha256sum spells an odd name differs."""
UNREAD = "?"
"""In the place of a digest: a file whose name is too odd to be carried anywhere."""
SYSTEM = ("/usr/", "/bin/", "/sbin/", "/lib", "/opt/", "/etc/")
"""Where links may lead outside the work directory: what every judging sandbox has of its own."""

Kind = Literal["added", "modified", "deleted", "mode", "link", "dir", "escape", "special"]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Paths below the work directory. `files`: sha256 and whether executable; `links`: target; `others`: no file,
    directory or link."""

    files: Mapping[str, tuple[str, bool]]
    links: Mapping[str, str]
    dirs: frozenset[str]
    others: frozenset[str]


EMPTY = Manifest({}, {}, frozenset(), frozenset())


class Change(msgspec.Struct, frozen=True):
    """One difference. escape: a link that leads out of the work directory; special: a pipe, socket or device."""

    path: str
    kind: Kind


def parse(data: bytes) -> Manifest:
    """Raises ValueError for what LIST cannot have printed (a name with a line end under some tools)."""
    parts: list[list[bytes]] = [[]]
    at = 0
    while len(parts) < 6:
        end = data.find(b"\0", at)
        if end < 0:
            raise ValueError("the list ends early")
        item = data[at:end]
        at = end + 1
        if item == b"//":
            parts.append([])
        else:
            parts[-1].append(item)
    dirs, executable, links, others, unread = ([_name(p) for p in part] for part in parts[:5])
    runs = frozenset(executable)
    files = {path: (UNREAD, path in runs) for path in unread}
    for line in data[at:].splitlines():
        digest, path = _summed(line)
        files[path] = (digest, path in runs)
    pairs = list(zip(links[::2], parts[2][1::2], strict=True))
    return Manifest(files, {p: t[1:].decode(errors="surrogateescape") for p, t in pairs}, frozenset(dirs),
                    frozenset(others))  # fmt: skip


def _name(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape").removeprefix("./")


def _summed(line: bytes) -> tuple[str, str]:
    """A line of sha256sum."""
    digest, _, name = line.partition(b"  ")
    if len(digest) != 64 or not name.startswith(b"./"):
        raise ValueError(f"not a line of sha256sum: {line[:80]!r}")
    return digest.decode(), _name(name)


def deep(found: Manifest) -> bool:
    """Whether a path has more than MAX_DEPTH parts."""
    return any(
        path.count("/") >= MAX_DEPTH for part in (found.files, found.links, found.dirs, found.others) for path in part
    )


def compare(before: Manifest, after: Manifest, workdir: str) -> list[Change]:
    """Differences in path order."""
    found: dict[str, Kind] = {}
    for path, (digest, runs) in after.files.items():
        known = before.files.get(path)
        if known is None:
            found[path] = "added"
        elif known[0] != digest:
            found[path] = "modified"
        elif known[1] != runs:
            found[path] = "mode"
    for path, target in after.links.items():
        if before.links.get(path) != target:
            found[path] = "link" if stays_inside(path, target, workdir) else "escape"
    for path in after.others - before.others:
        found[path] = "special"
    for path in after.dirs - before.dirs:
        found[path] = "dir"
    here = {*after.files, *after.links, *after.dirs, *after.others}
    for path in {*before.files, *before.links, *before.dirs} - here:
        found[path] = "deleted"
    return [Change(path, found[path]) for path in sorted(found)]


def stays_inside(path: str, target: str, workdir: str) -> bool:
    """Whether a link at `path` leads into the work directory or to the system's own files, whatever links lie on the
    way: `..` is allowed at the beginning only."""
    parts = [p for p in target.split("/") if p not in ("", ".")]
    if target.startswith("/"):
        if ".." in parts:
            return False
        plain = "/" + "/".join(parts)
        return plain == workdir or plain.startswith((f"{workdir}/", *SYSTEM))
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return ".." not in parts[ups:] and ups <= path.count("/")


def fits(path: str, patterns: Sequence[str]) -> bool:
    """See `Carry`."""
    whole = tuple(pattern.removeprefix("./") for pattern in patterns if "/" in pattern)
    parts = tuple(pattern for pattern in patterns if "/" not in pattern)
    return any(fnmatchcase(path, pattern) for pattern in whole) or any(_fits(p, parts) for p in path.split("/"))


@lru_cache(1 << 17)
def _fits(part: str, patterns: tuple[str, ...]) -> bool:
    """Remembered, for a tree has far fewer names than its paths have parts."""
    return any(fnmatchcase(part, pattern) for pattern in patterns)


def odd(path: str) -> bool:
    """Whether a name cannot be handed to every tool: a line end, a backslash, bytes that are no UTF-8."""
    return bool(set(path) & set("\n\r\\")) or any("\ud800" <= c <= "\udfff" for c in path)


def encoded(changes: Sequence[Change]) -> bytes:
    """JSON; bytes of names that are no UTF-8 as escapes."""
    return msgspec.json.encode(
        [Change(c.path.encode("utf-8", "backslashreplace").decode(), c.kind) if odd(c.path) else c for c in changes]
    )


def carried(changes: Sequence[Change], carry: Carry | None) -> tuple[list[Change], list[Change]]:
    """(what goes into the judging box, what is left behind). Escaping links and special files never go, nor what lies
    below a path that does not."""
    taken: list[Change] = []
    left: list[Change] = []
    behind = "\0"
    """What is below a path comes right after it, in the order of the paths' parts."""
    for change in sorted(changes, key=lambda c: c.path.split("/")):
        never = change.kind in ("escape", "special") or odd(change.path) or change.path.startswith(behind)
        never = never or (carry is not None and fits(change.path, carry.restore))
        if never and not change.path.startswith(behind):
            behind = f"{change.path}/"
        ours = never or (carry is not None and not fits(change.path, carry.accept))
        (left if ours else taken).append(change)
    return taken, left
