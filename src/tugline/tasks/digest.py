"""What identifies a task and a prepared environment: sha256 over what decides their meaning."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tugline.core.task import Copy

SINGLE = ("task.toml", "instruction.md", "README.md", "trajectory.json")
FOLDERS = ("environment", "tests", "solution", "steps")
IGNORED = ("__pycache__/", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")
"""Left out of a task's digest when the task has no .gitignore of its own."""


def task_digest(root: Path) -> str:
    """Harbor's content hash: sha256 over lines `path NUL sha256-of-file LF`, sorted by path."""
    files = [root / name for name in SINGLE if (root / name).is_file()]
    files += [file for folder in FOLDERS for file in _walk(root / folder) if file.is_file()]
    ignored = _ignored(root)
    names = {file.relative_to(root).as_posix(): file for file in files}
    outer = hashlib.sha256()
    for name in sorted(names):
        if not ignored(name):
            outer.update(f"{name}\0{_of_file(names[name])}\n".encode())
    return outer.hexdigest()


def environment_digest(image: str, workdir: str, env: Mapping[str, str], steps: Sequence[Copy | str]) -> str:
    """sha256 over everything that decides what a prepared sandbox holds: file contents, modes and links included."""
    hasher = hashlib.sha256(json.dumps([image, workdir, sorted(env.items())]).encode())
    for step in steps:
        if isinstance(step, str):
            hasher.update(json.dumps(["run", step]).encode())
            continue
        hasher.update(json.dumps(["copy", step.target]).encode())
        entries = sorted(_walk(step.source)) if step.source.is_dir() else [step.source]
        for entry in entries:
            facts = [entry.relative_to(step.source).as_posix(), *_facts(entry, follow=entry == step.source)]
            hasher.update(json.dumps(facts).encode())
    return hasher.hexdigest()


def _facts(entry: Path, *, follow: bool) -> tuple[str, ...]:
    info = entry.stat() if follow else entry.lstat()
    mode = f"{stat.S_IMODE(info.st_mode):o}"
    if stat.S_ISLNK(info.st_mode):
        return ("link", str(entry.readlink()))
    if stat.S_ISREG(info.st_mode):
        return ("file", mode, _of_file(entry))
    return ("folder", mode) if stat.S_ISDIR(info.st_mode) else ("other",)


def _of_file(file: Path) -> str:
    with file.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder; links are named, not entered."""
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            yield Path(at, name)


def _ignored(root: Path) -> Callable[[str], bool]:
    own = root / ".gitignore"
    lines = own.read_text("utf-8", "replace").splitlines() if own.is_file() else IGNORED
    rules = [rule for line in lines if (rule := _rule(line)) is not None]

    def ignored(name: str) -> bool:
        hits = [ignore for pattern, ignore in rules if pattern.search(name)]
        return bool(hits) and hits[-1]

    return ignored


def _rule(line: str) -> tuple[re.Pattern[str], bool] | None:
    """One line of a .gitignore as (pattern over a file's whole path, whether it ignores)."""
    text = line if line.endswith("\\ ") else line.rstrip()
    if not text or text.startswith("#"):
        return None
    ignore = not text.startswith("!")
    text = text.removeprefix("!").removeprefix("\\")
    folder = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    anchored = "/" in text
    inner = _glob(text.lstrip("/"))
    return re.compile(f"^{'' if anchored else '(?:.*/)?'}{inner}{'/' if folder else '(?:/|$)'}"), ignore


def _glob(text: str) -> str:
    out, at = [], 0
    for found in re.finditer(r"\*\*/|/\*\*$|\*+|\?|\[!?[^\]]+\]|\\(.)", text):
        out.append(re.escape(text[at : found.start()]))
        at = found.end()
        word = found.group()
        if word == "**/":
            out.append("(?:.*/)?")
        elif word == "/**":
            out.append("/.*")
        elif word.startswith("*"):
            out.append("[^/]*")
        elif word == "?":
            out.append("[^/]")
        elif word.startswith("["):
            out.append(f"(?!/)[{'^' if word[1] == '!' else ''}{word[1:-1].removeprefix('!')}]")
        else:
            out.append(re.escape(found.group(1)))
    return "".join([*out, re.escape(text[at:])])
