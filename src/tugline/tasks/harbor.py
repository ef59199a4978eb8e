"""Harbor task directories to core tasks. Our own reader: Harbor's package needs Python 3.12.

Everything that is wrong with a task is found in one pass and said together.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from tugline.core.errors import TaskError
from tugline.core.task import (
    PYTHON_RESTORE,
    Budgets,
    Carry,
    Collect,
    Environment,
    Health,
    ModelRoute,
    Step,
    Task,
)
from tugline.tasks import schema
from tugline.tasks.digest import environment_digest, task_digest
from tugline.tasks.dockerfile import read_dockerfile
from tugline.tasks.problems import Findings
from tugline.tasks.refusals import below, refuse
from tugline.tasks.schema import EnvironmentTable, TaskFile, TuglineTable
from tugline.tasks.texts import read_text

MAX_BYTES = 1 << 20
"""Of task.toml and of instruction.md."""
PYTHON_VERIFIERS = ("pytest", "swe")
_HOST_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
_AT = re.compile(r" - at `\$?\.?(.*)`$", re.DOTALL)
_CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)


def is_task(path: Path) -> bool:
    """Whether a directory claims to be a task."""
    return (path / "task.toml").is_file()


def read_task(path: Path, env: Mapping[str, str]) -> Task:
    """A task from its directory. `env` resolves ${VAR} of the host.

    Raises TaskError naming the file (below the task's own name) and the field; BrokenTasks for several at once.
    """
    root = path.resolve()
    name = root.name
    findings = Findings()
    with findings.gather():
        _no_way_out(root, name, findings)
    instruction, spec, box, judge = "", TaskFile(), Environment(image=""), None
    with findings.gather():
        spec = _task_file(root, name)
    with findings.gather():
        instruction = _instruction(root, name) if not spec.steps else ""
    own = TuglineTable()
    with findings.gather():
        own = _own(spec.metadata, f"{name}/task.toml")
    with findings.gather():
        if own.verifier == "harbor" and not spec.steps and not (root / "tests" / "test.sh").is_file():
            raise TaskError("is missing", where=f"{name}/tests/test.sh")
    refuse(spec, root, name, findings)
    with findings.gather():
        box = _environment(spec, root, name, env)
    with findings.gather():
        judge = judge_environment(spec, root, name, env)
    verifier_env: dict[str, str] = {}
    with findings.gather():
        verifier_env = _resolved(spec.verifier.env, env, f"{name}/task.toml", "verifier.env")
    artifacts = tuple(a if isinstance(a, str) else a.source for a in spec.artifacts)
    apart = separate(spec)
    with findings.gather():
        _check_separate(artifacts, name, apart=apart)
    steps = read_steps(spec, root, name, env, findings) if spec.steps else ()
    findings.settle(name)
    solution = root / "solution"
    return Task(
        task_id=safe_id(name),
        name=spec.task.name if spec.task else name,
        instruction=steps[0].instruction if steps else instruction,
        environment=box,
        path=root,
        verifier_dir=steps[0].verifier_dir if steps else root / "tests",
        verifier_env=verifier_env,
        verifier_separate=apart,
        verifier_environment=judge,
        collect=tuple(Collect(c.command, c.timeout_sec) for c in spec.verifier.collect),
        steps=steps,
        step_reward=spec.multi_step_reward_strategy or "mean",
        solution_dir=solution if solution.is_dir() else None,
        solution_env=dict(spec.solution.env),
        artifacts=artifacts,
        budgets=Budgets(
            boot=spec.environment.build_timeout_sec,
            agent=spec.agent.timeout_sec,
            judge=spec.verifier.timeout_sec,
        ),
        routes=tuple(ModelRoute(pattern, engine) for pattern, engine in own.models.items()),
        verifier=own.verifier,
        verifier_options=own.options,
        carry=_carry(own, artifacts if apart else None, box.workdir),
        metadata=dict(spec.metadata),
        digest=task_digest(root),
    )


def separate(spec: TaskFile) -> bool:
    """Whether the verifier has a sandbox of its own; a table for it says so too."""
    return spec.verifier.environment_mode == "separate" or (
        spec.verifier.environment_mode is None and spec.verifier.environment is not None
    )


def read_steps(spec: TaskFile, root: Path, name: str, env: Mapping[str, str], findings: Findings) -> tuple[Step, ...]:
    """The steps in the order of task.toml; problems go to `findings`."""
    steps = []
    for table in spec.steps:
        folder, where = root / "steps" / table.name, f"{name}/steps/{table.name}"
        with findings.gather():
            if not folder.is_dir():
                raise TaskError("is missing", where=where)
            tests = folder / "tests" if (folder / "tests").is_dir() else root / "tests"
            if not (tests / "test.sh").is_file():
                raise TaskError("is missing", where=f"{where}/tests/test.sh")
            least = table.min_reward
            steps.append(
                Step(
                    name=table.name,
                    instruction=_instruction(folder, where),
                    verifier_dir=tests,
                    solution_dir=folder / "solution" if (folder / "solution").is_dir() else None,
                    setup=folder / "workdir" if (folder / "workdir").is_dir() else None,
                    agent_seconds=table.agent.timeout_sec,
                    judge_seconds=table.verifier.timeout_sec,
                    verifier_env=_resolved(table.verifier.env, env, f"{name}/task.toml", f"steps.{table.name}"),
                    min_reward={"reward": least} if isinstance(least, int | float) else dict(least or {}),
                )
            )
    return tuple(steps)


def _own(metadata: Mapping[str, Any], where: str) -> TuglineTable:
    try:
        return msgspec.convert(metadata.get("tugline", {}), TuglineTable)
    except msgspec.ValidationError as err:
        raise TaskError(_AT.sub("", str(err)), where=where, field="metadata.tugline") from err


def _carry(own: TuglineTable, artifacts: tuple[str, ...] | None, workdir: str) -> Carry | None:
    """A fresh box for separate verifiers, for our own verifiers of Python, and where the task says what is carried."""
    ours = own.verifier.partition(":")[0] in PYTHON_VERIFIERS
    if not (ours or own.accept or own.restore or artifacts is not None):
        return None
    accept = tuple(own.accept) or (below(artifacts, workdir) if artifacts is not None else ("*",))
    return Carry(accept, (*(PYTHON_RESTORE if ours else ()), *own.restore))


def with_verifier(task: Task, name: str) -> Task:
    """The task judged by another verifier."""
    ours = name.partition(":")[0] in PYTHON_VERIFIERS
    carry = task.carry or (Carry(restore=PYTHON_RESTORE) if ours else None)
    return replace(task, verifier=name, carry=carry)


def safe_id(name: str) -> str:
    """A task's directory name as an id that is safe in file names."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:120] or "task"


def _instruction(root: Path, name: str) -> str:
    """Without a canary's lines at the top (Harbor hides them from agents) and without the last line end."""
    where = f"{name}/instruction.md"
    lines = read_text(root / "instruction.md", where, MAX_BYTES).split("\n")
    while lines and _CANARY.match(lines[0].strip()):
        del lines[0]
        while lines and not lines[0].strip():
            del lines[0]
    text = "\n".join(lines).rstrip("\n")
    if not text.strip():
        raise TaskError("is empty", where=where)
    return text


def _task_file(root: Path, name: str) -> TaskFile:
    where = f"{name}/task.toml"
    text = read_text(root / "task.toml", where, MAX_BYTES)
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as err:
        raise TaskError(f"is not valid TOML: {err}", where=where) from err
    try:
        return msgspec.convert(tree, TaskFile)
    except msgspec.ValidationError:
        findings = _field_errors(tree, text, where)
        findings.settle(where)
        raise


def _field_errors(tree: dict[str, Any], text: str, where: str) -> Findings:
    """One problem for each table, so that a second run does not find the next."""
    findings = Findings()
    for key, value in tree.items():
        try:
            msgspec.convert({key: value}, TaskFile)
        except msgspec.ValidationError as err:
            said = str(err)
            match = _AT.search(said)
            unknown = re.search(r"unknown field `(.*?)`", said)
            field = ".".join(p for p in (match.group(1) if match else "", unknown.group(1) if unknown else "") if p)
            line = _line_of(text, field)
            findings.add(_AT.sub("", said), where=f"{where}:{line}" if line else where, field=field)
    return findings


def _line_of(text: str, field: str) -> int | None:
    """Where a field stands, for the usual spelling: `[table]` then `key =`. None when it is spelt otherwise."""
    table, _, key = field.rpartition(".")
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line)
        inside = header.group(1) if header else inside
        if header is None and inside == table and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return None


def _environment(spec: TaskFile, root: Path, name: str, env: Mapping[str, str]) -> Environment:
    table, file = spec.environment, root / "environment" / "Dockerfile"
    if file.exists():
        made = read_dockerfile(file, f"{name}/environment/Dockerfile")
    elif table.docker_image:
        made = Environment(image=table.docker_image)
    else:
        raise TaskError("is missing (and task.toml names no docker_image)", where=f"{name}/environment/Dockerfile")
    found = _with_table(made, table, (f"{name}/task.toml", "environment"), env)
    mode, hosts = _network(spec)
    return replace(found, network=mode, hosts=hosts)


def judge_environment(spec: TaskFile, root: Path, name: str, env: Mapping[str, str]) -> Environment | None:
    """The separate verifier's own: tests/Dockerfile, the image of [verifier.environment], else the task's with that
    table's settings. None: the task's as it is."""
    table, file = spec.verifier.environment, root / "tests" / "Dockerfile"
    if not separate(spec) or (table is None and not file.exists()):
        return None
    table = table or EnvironmentTable()
    if file.exists():
        made = read_dockerfile(file, f"{name}/tests/Dockerfile")
    elif table.docker_image:
        made = Environment(image=table.docker_image)
    else:
        made = replace(_environment(spec, root, name, env), health=None)
    found = _with_table(made, table, (f"{name}/task.toml", "verifier.environment"), env)
    return replace(found, network="no-network")


def _with_table(made: Environment, table: EnvironmentTable, at: tuple[str, str], env: Mapping[str, str]) -> Environment:
    where, field = at
    merged = {**made.env, **_resolved(table.env, env, where, f"{field}.env")}
    workdir = table.workdir or made.workdir
    if not workdir.startswith("/"):
        raise TaskError("must be absolute", where=where, field=f"{field}.workdir")
    image, check = table.docker_image or made.image, table.healthcheck
    return replace(
        made,
        image=image,
        env=merged,
        workdir=workdir,
        cpus=table.cpus or made.cpus,
        memory_mb=_size(table.memory_mb, table.memory, "memory", where) or made.memory_mb,
        storage_mb=_size(table.storage_mb, table.storage, "storage", where) or made.storage_mb,
        health=made.health if check is None else Health(
            check.command, check.interval_sec, check.timeout_sec, check.start_period_sec, check.start_interval_sec,
            check.retries,
        ),
        digest=environment_digest(image, workdir, merged, made.steps),
    )  # fmt: skip


def _size(megabytes: int | None, older: str | None, name: str, where: str) -> int | None:
    if older is None:
        return megabytes
    found = schema.megabytes(older)
    if found < 1:
        raise TaskError("is less than a megabyte", where=where, field=f"environment.{name}")
    if megabytes not in (None, found):
        raise TaskError(f"contradicts {name}_mb", where=where, field=f"environment.{name}")
    return found


def _network(spec: TaskFile) -> tuple[Literal["public", "no-network", "allowlist"], tuple[str, ...]]:
    """What the agent may have, and the hosts of its list: its own phase first, then the environment, then the old
    switch."""
    agent, box = spec.agent, spec.environment
    mode = agent.network_mode or ("allowlist" if agent.allowed_hosts else _baseline(box))
    if mode == "allowlist":
        hosts = agent.allowed_hosts if agent.allowed_hosts is not None else box.allowed_hosts
        return "allowlist", tuple(hosts or ())
    return ("no-network" if mode == "no-network" else "public"), ()


def _baseline(table: EnvironmentTable) -> str:
    if table.network_mode is not None:
        return table.network_mode
    return "no-network" if table.allow_internet is False else "public"


def _check_separate(artifacts: tuple[str, ...], name: str, *, apart: bool) -> None:
    """A separate verifier sees the artifacts alone."""
    if apart and not artifacts:
        raise TaskError(
            "a separate verifier sees `artifacts` alone, and there are none",
            where=f"{name}/task.toml",
            field="verifier.environment_mode",
        )


def _resolved(table: Mapping[str, str], env: Mapping[str, str], where: str, field: str) -> dict[str, str]:
    """Values that are one whole ${VAR} or ${VAR:-default} come from the host; all others are literal."""
    out = {}
    for key, value in table.items():
        match = _HOST_VARIABLE.fullmatch(value)
        found = env.get(match.group(1), match.group(2)) if match else value
        if found is None:
            raise TaskError(f"{value} is not set on this machine", where=where, field=f"{field}.{key}")
        out[key] = found
    return out


def _no_way_out(root: Path, name: str, findings: Findings) -> None:
    """A task directory may hold no link that leads out of it: its content is copied and shown to agents."""
    for path in sorted(root.rglob("*")):
        if not path.is_symlink():
            continue
        where = f"{name}/{path.relative_to(root).as_posix()}"
        try:
            inside = path.resolve().is_relative_to(root)
        except (OSError, RuntimeError):
            findings.add("is a link that leads in a circle", where=where)
            continue
        if not inside:
            findings.add("is a link that leaves the task", where=where)
