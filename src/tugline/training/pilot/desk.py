"""Where actions happen: on paper, for teaching, and on a bench, for measuring.

`Paper` is a dictionary that knows the few commands the strategies use; it makes conversations by the thousand.
`Bench` is a real directory, shown as /app, with a real shell in bubblewrap; it takes whatever a model samples. Both
tell the same outcomes.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tugline.training.pilot.actions import Action, Edit, Outcome, Read, Run, Write

_COMMAND_TIMEOUT_S = 10.0
_TIMED_OUT = 124

_ECHO = re.compile(r"echo '([^']*)' (>>?) '([^']*)'")
_COPY = re.compile(r"(cp|mv) '([^']*)' '([^']*)'")
_REMOVE = re.compile(r"rm '([^']*)'")
_COUNT = re.compile(r"wc -l (< )?'([^']*)' > '([^']*)'")
_SHOW = re.compile(r"grep '([^']*)' '([^']*)'")
_FIND = re.compile(r"grep -l '([^']*)' \*")


class Paper:
    """Files in memory. `files` maps a path in the working directory to its text."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files: dict[str, str] = dict(files)

    def do(self, action: Action) -> Outcome:
        """The outcome of one action. Raises ValueError for a command that no strategy uses."""
        match action:
            case Read(path):
                return Outcome("text", self.files[path]) if path in self.files else Outcome("missing")
            case Write(path, text):
                self.files[path] = text
                return Outcome("wrote")
            case Edit(path, old, new):
                before = self.files.get(path)
                outcome, after = edited(before, old, new)
                if after is not None:
                    self.files[path] = after
                return outcome
            case Run(command):
                return self._run(command)

    def _run(self, command: str) -> Outcome:
        if command == "ls":
            return Outcome("ran", "".join(f"{name}\n" for name in sorted(self.files)))
        if command == "rm *":
            self.files.clear()
            return Outcome("ran")
        if found := _FIND.fullmatch(command):
            hits = [name for name in sorted(self.files) if found[1] in self.files[name]]
            return Outcome("ran", "".join(f"{name}\n" for name in hits), 0 if hits else 1)
        if echo := _ECHO.fullmatch(command):
            before = self.files.get(echo[3], "") if echo[2] == ">>" else ""
            self.files[echo[3]] = f"{before}{echo[1]}\n"
            return Outcome("ran")
        return self._run_on_file(command)

    def _run_on_file(self, command: str) -> Outcome:
        if copy := _COPY.fullmatch(command):
            if copy[2] not in self.files:
                return Outcome("ran", f"{copy[1]}: cannot stat '{copy[2]}': No such file or directory\n", 1)
            self.files[copy[3]] = self.files[copy[2]]
            if copy[1] == "mv":
                del self.files[copy[2]]
            return Outcome("ran")
        if remove := _REMOVE.fullmatch(command):
            if self.files.pop(remove[1], None) is None:
                return Outcome("ran", f"rm: cannot remove '{remove[1]}': No such file or directory\n", 1)
            return Outcome("ran")
        if show := _SHOW.fullmatch(command):
            hits = [line for line in self.files[show[2]].splitlines() if show[1] in line]
            return Outcome("ran", "".join(f"{line}\n" for line in hits), 0 if hits else 1)
        if count := _COUNT.fullmatch(command):
            lines = self.files[count[2]].count("\n")
            self.files[count[3]] = f"{lines}\n" if count[1] else f"{lines} {count[2]}\n"
            return Outcome("ran")
        raise ValueError(f"a command without a rule: {command}")


@dataclass(frozen=True, slots=True)
class Bench:
    """A real directory `work`, which commands see as /app and cannot leave: no network, read-only system."""

    work: Path
    bwrap: Path

    def do(self, action: Action) -> Outcome:
        """The outcome of one action, whatever a model made of it. Paths outside /app count as missing."""
        if isinstance(action, Run):
            return self._run(action.command)
        path = self._inside(action.path)
        match action:
            case Write(_, text):
                if path is None or path.is_dir():
                    return Outcome("missing")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
                return Outcome("wrote")
            case Read():
                if path is not None and path.is_dir():
                    return Outcome("directory")
                text_now = _text(path)
                return Outcome("missing") if text_now is None else Outcome("text", text_now)
            case Edit(_, old, new):
                outcome, after = edited(_text(path), old, new)
                if after is not None and path is not None:
                    path.write_text(after, encoding="utf-8")
                return outcome

    def _inside(self, path: str) -> Path | None:
        full = PurePosixPath("/app") / path
        if ".." in full.parts or not full.is_relative_to("/app") or "\0" in path:
            return None
        found = (self.work / full.relative_to("/app")).resolve()
        return found if found.is_relative_to(self.work.resolve()) else None

    def _run(self, command: str) -> Outcome:
        box = [
            str(self.bwrap),
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
        ]
        for system in ("/usr", "/bin", "/lib", "/lib64"):
            box += ["--ro-bind-try", system, system]
        box += ["--tmpfs", "/tmp", "--bind", str(self.work), "/app", "--chdir", "/app", "/bin/bash", "-c", command]
        env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        try:
            done = subprocess.run(
                box,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_COMMAND_TIMEOUT_S,
            )
        except (subprocess.TimeoutExpired, ValueError):
            return Outcome("ran", "", _TIMED_OUT)
        return Outcome("ran", done.stdout.decode("utf-8", "replace"), done.returncode)


def edited(before: str | None, old: str, new: str) -> tuple[Outcome, str | None]:
    """The outcome of replacing the one `old` in `before`, and the new text when there is one."""
    if before is None:
        return Outcome("missing"), None
    matches = before.count(old) if old else 0
    if matches == 0:
        return Outcome("no_match"), None
    if matches > 1:
        return Outcome("ambiguous", count=matches), None
    if old == new:
        return Outcome("unchanged"), None
    return Outcome("edited"), before.replace(old, new)


def _text(path: Path | None) -> str | None:
    """Text of a regular file; None when there is none, or when it is no text."""
    if path is None or not path.is_file():
        return None
    return path.read_text(encoding="utf-8", errors="replace")
