"""The part of Dockerfiles that a sandbox without images can follow: FROM, ARG, ENV, WORKDIR, COPY, ADD, RUN, SHELL.

What only matters to a container runtime (USER, LABEL, EXPOSE, CMD, ENTRYPOINT, ...) is passed over. Everything else,
more than one stage, here-documents, build mounts and downloads are refused by name and line. Without a WORKDIR the
work directory is /app: a sandbox cannot work in /.
"""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tugline.core.errors import TaskError
from tugline.core.task import Copy, Environment
from tugline.tasks import copies
from tugline.tasks.digest import environment_digest
from tugline.tasks.dockerlines import DockerfileProblem, Instruction, Lines, expand, has_here_document, parse, words
from tugline.tasks.problems import Findings
from tugline.tasks.texts import read_text

PASSED_OVER = ("USER", "LABEL", "EXPOSE", "CMD", "ENTRYPOINT", "MAINTAINER", "STOPSIGNAL")
DEFAULT_WORKDIR = "/app"
MAX_BYTES = 1 << 20


@dataclass(slots=True)
class _State:
    """What the instructions so far add up to."""

    context: Path
    escape: str
    image: str = ""
    begun: bool = False
    """A FROM has been met, good or bad."""
    workdir: str = "/"
    shell: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    outer_args: dict[str, str] = field(default_factory=dict)
    """ARGs before FROM: seen by FROM, and by a later `ARG name` without a value."""
    steps: list[Copy | str] = field(default_factory=list)
    folders: set[str] = field(default_factory=lambda: set(copies.STANDARD))

    def fill(self, word: str) -> str:
        """Quotes removed, variables filled in. ENV wins over ARG."""
        return expand(word, {**self.args, **self.env}, self.escape)


def read_dockerfile(file: Path, where: str) -> Environment:
    """The environment that a Dockerfile describes. Raises TaskError (BrokenTasks for several) naming the line."""
    lines = _lines(file, where)
    state = _State(file.parent, lines.escape)
    findings = Findings()
    for each in lines.instructions:
        try:
            _apply(state, each)
        except DockerfileProblem as err:
            findings.add(str(err), where=where, field=f"line {each.line}")
    if not state.begun:
        findings.add("has no FROM", where=where)
    findings.settle(where)
    workdir = DEFAULT_WORKDIR if state.workdir == "/" else state.workdir
    steps = tuple(s for s in state.steps if not _makes(s, workdir))
    return Environment(
        image=state.image,
        workdir=workdir,
        env=dict(state.env),
        steps=steps,
        digest=environment_digest(state.image, workdir, state.env, steps),
    )


def _lines(file: Path, where: str) -> Lines:
    try:
        return parse(read_text(file, where, MAX_BYTES))
    except DockerfileProblem as err:
        raise TaskError(str(err), where=where) from err


def _apply(state: _State, each: Instruction) -> None:
    if each.name == "ONBUILD" or (each.name not in _INSTRUCTIONS and each.name not in PASSED_OVER):
        raise DockerfileProblem(f"{each.name[:40]} is not supported by sandboxes without images")
    if not state.begun and each.name not in ("FROM", "ARG"):
        raise DockerfileProblem(f"{each.name} before FROM")
    if each.name in _INSTRUCTIONS:
        _INSTRUCTIONS[each.name](state, each.rest)


def _from(state: _State, rest: str) -> None:
    state.begun = True
    found = words(rest, state.escape)
    while found and found[0].startswith("--"):
        if not found[0].startswith("--platform="):
            raise DockerfileProblem(f"FROM {found[0][:40]} is not supported")
        found.pop(0)
    if state.image:
        raise DockerfileProblem("only one build stage is supported")
    if len(found) not in (1, 3) or (len(found) == 3 and found[1].upper() != "AS"):
        raise DockerfileProblem("FROM must name one image")
    state.image = state.fill(found[0])
    if not state.image:
        raise DockerfileProblem(f"FROM {found[0][:80]} names no image")
    state.outer_args, state.args = state.args, {}


def _arg(state: _State, rest: str) -> None:
    if not rest:
        raise DockerfileProblem("ARG names no variable")
    for word in words(rest, state.escape):
        key, given, value = word.partition("=")
        if given:
            state.args[key] = state.fill(value)
        elif key in state.outer_args:
            state.args[key] = state.outer_args[key]


def _env(state: _State, rest: str) -> None:
    found = words(rest, state.escape)
    if not found:
        raise DockerfileProblem("ENV names no variable")
    if "=" not in found[0]:
        _, _, text = rest.partition(found[0])
        if not text.strip():
            raise DockerfileProblem("ENV needs a name and a value")
        state.env[found[0]] = state.fill(text.strip())
        return
    fresh = {}
    for word in found:
        key, given, value = word.partition("=")
        if not key or not given:
            raise DockerfileProblem(f"ENV cannot be read at {word[:40]!r}")
        fresh[state.fill(key)] = state.fill(value)
    state.env.update(fresh)


def _workdir(state: _State, rest: str) -> None:
    if not rest:
        raise DockerfileProblem("WORKDIR names no directory")
    state.workdir = posixpath.normpath(posixpath.join("/", state.workdir, state.fill(rest)))
    if state.workdir not in state.folders:
        state.steps.append(_mkdir(state.workdir))
        copies.note_folder(state.folders, state.workdir)


def _mkdir(path: str) -> str:
    return f"mkdir -p {shlex.quote(path)}"


def _makes(step: Copy | str, workdir: str) -> bool:
    """Whether a step only makes what the sandbox makes anyway: the work directory or a parent of it."""
    return isinstance(step, str) and any(step == _mkdir(p) for p in _parents(workdir))


def _parents(path: str) -> list[str]:
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def _copy(name: str) -> Callable[[_State, str], None]:
    def apply(state: _State, rest: str) -> None:
        if has_here_document(rest):
            raise DockerfileProblem(f"{name} of a here-document is not supported")
        flags, rest = _flags(rest)
        found = _json_list(rest, name) if rest.startswith("[") else rest.split()
        order = copies.order(name, [state.fill(w) for w in found], {k: state.fill(v) for k, v in flags.items()})
        state.steps += copies.steps_of(order, state.context, state.workdir, state.folders)

    return apply


def _flags(rest: str) -> tuple[dict[str, str], str]:
    flags = {}
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        key, _, value = flag.partition("=")
        flags[key] = value
        rest = rest.lstrip()
    return flags, rest


def _json_list(rest: str, name: str) -> list[str]:
    try:
        found = json.loads(rest)
    except (ValueError, RecursionError) as err:
        raise DockerfileProblem(f"{name} is not a JSON list: {err}") from err
    if not isinstance(found, list) or not found or not all(isinstance(w, str) for w in found):
        raise DockerfileProblem(f"{name} must be a JSON list of strings")
    return found


def _run(state: _State, rest: str) -> None:
    if has_here_document(rest):
        raise DockerfileProblem("RUN with a here-document is not supported")
    flags, rest = _flags(rest)
    for flag in flags:
        raise DockerfileProblem(f"RUN {flag[:40]} is not supported")
    if not rest:
        raise DockerfileProblem("RUN names no command")
    exec_form = rest.startswith("[") and rest.endswith("]") and _is_json(rest)
    if exec_form:
        command = f"exec {shlex.join(_json_list(rest, 'RUN'))}"
    else:
        command = f"exec {shlex.join([*state.shell, rest])}" if state.shell else rest
    values = {**state.args, **state.env}
    exports = "".join(f"export {k}={shlex.quote(v)}; " for k, v in values.items() if k.isidentifier())
    state.steps.append(f"cd {shlex.quote(state.workdir)} || exit 1; {exports}{command}")


def _is_json(text: str) -> bool:
    """Docker takes what is not a JSON list for a shell command, e.g. `[ -f x ]`."""
    try:
        return isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


def _shell(state: _State, rest: str) -> None:
    state.shell = tuple(_json_list(rest, "SHELL"))


def _healthcheck(state: _State, rest: str) -> None:
    if rest.strip().upper() != "NONE":
        raise DockerfileProblem("HEALTHCHECK is not supported")


_INSTRUCTIONS: Mapping[str, Callable[[_State, str], None]] = {
    "FROM": _from,
    "ARG": _arg,
    "ENV": _env,
    "WORKDIR": _workdir,
    "COPY": _copy("COPY"),
    "ADD": _copy("ADD"),
    "RUN": _run,
    "SHELL": _shell,
    "HEALTHCHECK": _healthcheck,
}
