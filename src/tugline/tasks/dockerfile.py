"""The part of Dockerfiles that a sandbox without images can follow: FROM, WORKDIR, ENV, ARG, COPY, ADD, RUN.

Anything else that would change what the agent finds is refused by name and line; what only matters to a container
runtime (USER, LABEL, EXPOSE, CMD, ENTRYPOINT, SHELL, HEALTHCHECK NONE) is passed over.
"""

from __future__ import annotations

import glob
import json
import posixpath
import re
import shlex
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from tugline.core.errors import TaskError
from tugline.core.task import Copy, Environment

PASSED_OVER = ("USER", "LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "MAINTAINER", "STOPSIGNAL")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?:(:-|:\+)([^}]*))?\}|(\w+))")


@dataclass(slots=True)
class _State:
    context: Path
    where: str
    image: str = ""
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    steps: list[Copy | str] = field(default_factory=list)


def read_dockerfile(file: Path, where: str) -> Environment:
    """The environment that a Dockerfile describes. Raises TaskError naming the line."""
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise TaskError(f"cannot be read as text: {err}", where=where) from err
    state = _State(file.parent, where)
    for number, line in _logical_lines(text):
        _apply(state, line, f"line {number}")
    if not state.image:
        raise TaskError("has no FROM", where=where)
    workdir = "/app" if state.workdir == "/" else state.workdir
    return Environment(
        image=state.image,
        workdir=workdir,
        env=dict(state.env),
        steps=tuple(state.steps),
        digest=digest_of(state.image, workdir, state.env, state.steps),
    )


def digest_of(image: str, workdir: str, env: dict[str, str], steps: list[Copy | str]) -> str:
    """sha256 over everything that decides what a prepared sandbox holds."""
    hasher = sha256(json.dumps([image, workdir, sorted(env.items())]).encode())
    for step in steps:
        if isinstance(step, str):
            hasher.update(b"run\0" + step.encode() + b"\0")
            continue
        hasher.update(b"copy\0" + step.target.encode() + b"\0")
        files = [step.source] if step.source.is_file() else sorted(p for p in step.source.rglob("*") if p.is_file())
        for path in files:
            name = path.relative_to(step.source).as_posix()
            hasher.update(name.encode() + b"\0" + sha256(path.read_bytes()).digest())
    return hasher.hexdigest()


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """(first line number, instruction with its continuations joined); comments and blank lines dropped."""
    out: list[tuple[int, str]] = []
    parts: list[str] = []
    begun = 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#") or (not stripped and not parts):
            continue
        begun = begun if parts else number
        if stripped.endswith("\\"):
            parts.append(stripped[:-1].rstrip())
            continue
        parts.append(stripped)
        out.append((begun, " ".join(p for p in parts if p)))
        parts = []
    if parts:
        out.append((begun, " ".join(parts)))
    return out


def _apply(state: _State, line: str, at: str) -> None:
    word, _, rest = line.partition(" ")
    name, rest = word.upper(), rest.strip()
    if name == "FROM":
        _from(state, rest, at)
    elif name == "WORKDIR":
        state.workdir = posixpath.normpath(posixpath.join(state.workdir, _expand(state, rest)))
    elif name == "ENV":
        state.env.update(_pairs(state, rest, at))
    elif name == "ARG":
        key, _, value = rest.partition("=")
        state.args[key.strip()] = _expand(state, value.strip().strip("\"'"))
    elif name in ("COPY", "ADD"):
        _copy(state, rest, at, name)
    elif name == "RUN":
        state.steps.append(_command(state, rest, at))
    elif name not in PASSED_OVER:
        raise TaskError(f"{name[:40]} is not supported by sandboxes without images", where=state.where, field=at)


def _from(state: _State, rest: str, at: str) -> None:
    words = [w for w in rest.split() if not w.startswith("--")]
    if state.image:
        raise TaskError("only one build stage is supported", where=state.where, field=at)
    if not words:
        raise TaskError("FROM names no image", where=state.where, field=at)
    state.image = _expand(state, words[0])


def _pairs(state: _State, rest: str, at: str) -> dict[str, str]:
    try:
        words = shlex.split(rest)
    except ValueError as err:
        raise TaskError(f"ENV cannot be parsed: {err}", where=state.where, field=at) from err
    if words and "=" not in words[0]:
        return {words[0]: _expand(state, rest.partition(" ")[2].strip())}
    pairs = dict(w.partition("=")[::2] for w in words)
    return {k: _expand(state, v) for k, v in pairs.items()}


def _copy(state: _State, rest: str, at: str, name: str) -> None:
    if rest.startswith("["):
        try:
            words = [str(w) for w in json.loads(rest)]
        except ValueError as err:
            raise TaskError(f"{name} is not a JSON list", where=state.where, field=at) from err
    else:
        words = rest.split()
    flags = [w for w in words if w.startswith("--")]
    words = [_expand(state, w) for w in words if not w.startswith("--")]
    if any(f.startswith("--from") for f in flags) or "<<" in rest:
        raise TaskError(f"{name} from another stage or a here-document is not supported", where=state.where, field=at)
    if len(words) < 2:
        raise TaskError(f"{name} needs a source and a target", where=state.where, field=at)
    *sources, target = words
    to_directory = target.endswith("/") or target in (".", "./") or len(sources) > 1
    base = posixpath.normpath(posixpath.join(state.workdir, target))
    for source in sources:
        if "://" in source or (source.endswith((".tar", ".tar.gz", ".tgz")) and name == "ADD"):
            raise TaskError(f"{name} of {source[:80]!r}: only local files are supported", where=state.where, field=at)
        for found in _sources(state, source, at):
            inside = to_directory and found.is_file()
            state.steps.append(Copy(found, posixpath.join(base, found.name) if inside else base))


def _sources(state: _State, pattern: str, at: str) -> list[Path]:
    """Paths inside the build context that a COPY source names."""
    context = state.context.resolve()
    relative = pattern.lstrip("/") or "."
    matches = sorted(glob.glob(relative, root_dir=context)) if re.search(r"[*?\[]", relative) else [relative]
    found: list[Path] = []
    for match in matches:
        path = (context / match).resolve()
        if not path.is_relative_to(context):
            raise TaskError(f"{pattern[:80]!r} leaves the environment directory", where=state.where, field=at)
        if path.exists():
            found.append(path)
    if not found:
        raise TaskError(f"{pattern[:80]!r} does not exist in the environment directory", where=state.where, field=at)
    return found


def _command(state: _State, rest: str, at: str) -> str:
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        if flag.startswith("--mount"):
            raise TaskError("RUN --mount is not supported", where=state.where, field=at)
    if "<<" in rest and re.search(r"<<-?\s*['\"]?\w+", rest):
        raise TaskError("here-documents are not supported", where=state.where, field=at)
    if rest.startswith("["):
        try:
            return shlex.join(str(w) for w in json.loads(rest))
        except ValueError as err:
            raise TaskError("RUN is not a JSON list", where=state.where, field=at) from err
    if not rest:
        raise TaskError("RUN names no command", where=state.where, field=at)
    exports = "".join(f"export {k}={shlex.quote(v)}; " for k, v in (state.args | state.env).items())
    return f"mkdir -p {shlex.quote(state.workdir)}; cd {shlex.quote(state.workdir)}; {exports}{rest}"


def _expand(state: _State, text: str) -> str:
    known = state.args | state.env

    def value(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(4)
        found = known.get(name, "")
        if match.group(2) == ":-":
            return found or match.group(3)
        return match.group(3) if match.group(2) == ":+" and found else found

    return _VARIABLE.sub(value, text)
