"""Harbor task directories to core tasks. Our own reader: Harbor's package needs Python 3.12.

What we cannot honour and what would change a task's meaning is refused by name, never skipped.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from tugline.core.errors import TaskError
from tugline.core.task import Budgets, Environment, Task
from tugline.tasks.dockerfile import digest_of, read_dockerfile
from tugline.tasks.schema import EnvironmentTable, TaskFile

MAX_INSTRUCTION = 1 << 20
_HOST_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_AT = re.compile(r" - at `\$?\.?(.*)`$", re.DOTALL)


def is_task(path: Path) -> bool:
    """Whether a directory claims to be a task."""
    return (path / "task.toml").is_file()


def read_task(path: Path, env: Mapping[str, str]) -> Task:
    """Raises TaskError naming the file (relative to the task) and the field. `env` resolves ${VAR} of the host."""
    root = path.resolve()
    name = path.name
    _no_way_out(root, name)
    spec = _task_file(root, name)
    _refuse(spec, root, name)
    instruction = _text(root / "instruction.md", f"{name}/instruction.md")
    if not instruction.strip():
        raise TaskError("is empty", where=f"{name}/instruction.md")
    if not (root / "tests" / "test.sh").is_file():
        raise TaskError("is missing", where=f"{name}/tests/test.sh")
    solution = root / "solution"
    return Task(
        task_id=safe_id(name),
        name=spec.task.name if spec.task else name,
        instruction=instruction.rstrip("\n"),
        environment=_environment(spec, root, name),
        path=root,
        verifier_dir=root / "tests",
        verifier_env=_resolved(spec.verifier.env, env, f"{name}/task.toml", "verifier.env"),
        verifier_separate=_separate(spec, name),
        solution_dir=solution if solution.is_dir() else None,
        solution_env=_resolved(spec.solution.env, env, f"{name}/task.toml", "solution.env"),
        artifacts=tuple(a if isinstance(a, str) else a.source for a in spec.artifacts),
        budgets=Budgets(
            boot=spec.environment.build_timeout_sec,
            agent=spec.agent.timeout_sec,
            judge=spec.verifier.timeout_sec,
        ),
        metadata=dict(spec.metadata),
        digest=task_digest(root),
    )


def safe_id(name: str) -> str:
    """A task's directory name as an id that is safe in file names."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:120] or "task"


def task_digest(root: Path) -> str:
    """sha256 over sorted lines "relative path NUL sha256 of file", as Harbor identifies a task."""
    files = sorted(p for p in root.rglob("*") if p.is_file())
    lines = [f"{f.relative_to(root).as_posix()}\0{sha256(f.read_bytes()).hexdigest()}" for f in files]
    return sha256("\n".join(lines).encode()).hexdigest()


def _task_file(root: Path, name: str) -> TaskFile:
    where = f"{name}/task.toml"
    try:
        tree = tomllib.loads(_text(root / "task.toml", where))
    except tomllib.TOMLDecodeError as err:
        raise TaskError(f"is not valid TOML: {err}", where=where) from err
    try:
        return msgspec.convert(tree, TaskFile)
    except msgspec.ValidationError as err:
        match = _AT.search(str(err))
        raise TaskError(_AT.sub("", str(err)), where=where, field=match.group(1) if match else "") from err


def _refuse(spec: TaskFile, root: Path, name: str) -> None:
    """What would silently make another task of it."""
    where, box = f"{name}/task.toml", spec.environment
    refusals = [
        (spec.steps or (root / "steps").is_dir(), "steps", "multi-step tasks are not supported"),
        (box.os != "linux", "environment.os", f"only linux is supported, not {box.os!r}"),
        (box.gpus, "environment.gpus", "no sandbox here has a GPU"),
        (box.tpu, "environment.tpu", "no sandbox here has a TPU"),
        (box.mcp_servers, "environment.mcp_servers", "MCP servers are not supported"),
        (box.healthcheck, "environment.healthcheck", "health checks are not supported"),
        (box.network_mode == "allowlist", "environment.network_mode", "allow-lists are not supported"),
        (box.network_mode not in ("public", "no-network", "allowlist"), "environment.network_mode", "unknown mode"),
        (spec.verifier.environment, "verifier.environment", "a verifier's own environment is not supported"),
        (spec.verifier.collect, "verifier.collect", "collect steps are not supported"),
        ((root / "tests" / "Dockerfile").is_file(), "tests/Dockerfile", "a verifier's own image is not supported"),
    ]
    for bad, field, message in refusals:
        if bad:
            raise TaskError(message, where=where, field=field)
    for compose in ("docker-compose.yaml", "docker-compose.yml"):
        if (root / "environment" / compose).is_file():
            raise TaskError("compose files are not supported", where=f"{name}/environment/{compose}")


def _environment(spec: TaskFile, root: Path, name: str) -> Environment:
    table = spec.environment
    dockerfile = root / "environment" / "Dockerfile"
    if dockerfile.is_file():
        made = read_dockerfile(dockerfile, f"{name}/environment/Dockerfile")
    elif table.docker_image:
        made = Environment(image=table.docker_image)
    else:
        raise TaskError("is missing (and task.toml names no docker_image)", where=f"{name}/environment/Dockerfile")
    env = {**made.env, **table.env}
    workdir = table.workdir or made.workdir
    if not workdir.startswith("/"):
        raise TaskError("must be absolute", where=f"{name}/task.toml", field="environment.workdir")
    return replace(
        made,
        env=env,
        workdir=workdir,
        cpus=table.cpus,
        memory_mb=table.memory_mb,
        storage_mb=table.storage_mb,
        network=_network(table),
        digest=digest_of(made.image, workdir, env, list(made.steps)),
    )


def _network(table: EnvironmentTable) -> Literal["public", "no-network"]:
    closed = table.network_mode == "no-network" or table.allow_internet is False
    return "no-network" if closed else "public"


def _separate(spec: TaskFile, name: str) -> bool:
    mode = spec.verifier.environment_mode
    if mode not in (None, "shared", "separate"):
        raise TaskError("must be shared or separate", where=f"{name}/task.toml", field="verifier.environment_mode")
    return mode == "separate"


def _resolved(table: Mapping[str, str], env: Mapping[str, str], where: str, field: str) -> dict[str, str]:
    out = {}
    for key, value in table.items():

        def host(match: re.Match[str], key: str = key) -> str:
            found = env.get(match.group(1), match.group(2))
            if found is None:
                raise TaskError(
                    f"${{{match.group(1)}}} is not set on this machine", where=where, field=f"{field}.{key}"
                )
            return found

        out[key] = _HOST_VARIABLE.sub(host, value)
    return out


def _text(file: Path, where: str) -> str:
    try:
        if file.stat().st_size > MAX_INSTRUCTION:
            raise TaskError(f"is larger than {MAX_INSTRUCTION} bytes", where=where)
        return file.read_text("utf-8")
    except FileNotFoundError as err:
        raise TaskError("is missing", where=where) from err
    except UnicodeDecodeError as err:
        raise TaskError(f"is not UTF-8 text: {err.reason} at byte {err.start}", where=where) from err
    except OSError as err:
        raise TaskError(f"cannot be read: {err.strerror}", where=where) from err


def _no_way_out(root: Path, name: str) -> None:
    """A task directory may hold no link that leads out of it: its content is copied and shown to agents."""
    for path in root.rglob("*"):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise TaskError("is a link that leaves the task", where=f"{name}/{path.relative_to(root).as_posix()}")
