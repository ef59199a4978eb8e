"""From what the command line names to tasks; everything wrong is said at once, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tugline.core.errors import ConfigError
from tugline.core.paths import expanded
from tugline.core.task import Task
from tugline.tasks.harbor import is_task, read_task
from tugline.tasks.problems import Findings
from tugline.tasks.rows import read_rows

ROWS = (".jsonl", ".parquet")
SHIPPED = Path(__file__).parent / "shipped"


def shipped_names() -> list[str]:
    """Names of the shipped tasks."""
    return sorted(p.name for p in SHIPPED.iterdir() if is_task(p))


def load_tasks(specs: Sequence[str], *, env: Mapping[str, str]) -> list[Task]:
    """Tasks in the order named. `env` resolves ${VAR} in tasks.

    Raises ConfigError (no tasks, an unknown name), TaskError (one problem) or BrokenTasks (all of several).
    """
    paths = [path for spec in specs for path in _expand(spec)]
    if not paths:
        raise ConfigError("no tasks named", where="TASKS")
    tasks: list[Task] = []
    findings = Findings()
    for path in paths:
        with findings.gather():
            tasks += read_rows(path) if path.suffix in ROWS else [read_task(path, env)]
    findings.settle("tasks")
    return _unique(tasks)


def _expand(spec: str) -> list[Path]:
    """A task directory, a directory of them, a shipped task, a family, `files` (all), `quickstart` (one of each)."""
    names = shipped_names()
    if spec == "files":
        return [SHIPPED / n for n in names]
    if spec == "quickstart":
        firsts: dict[str, str] = {}
        for n in names:
            firsts.setdefault(n.rpartition("-")[0], n)
        return [SHIPPED / n for n in firsts.values()]
    path = expanded(spec, "tasks")
    if path.is_dir():
        if is_task(path):
            return [path]
        inner = sorted(p for p in path.iterdir() if p.is_dir() and is_task(p))
        if inner:
            return inner
        raise ConfigError(f"{spec} holds no task (no task.toml in it or one level below)", where="TASKS")
    if spec in names:
        return [SHIPPED / spec]
    family = [n for n in names if n.rpartition("-")[0] == spec]
    if family:
        return [SHIPPED / n for n in family]
    if path.suffix in ROWS and path.is_file():
        return [path]
    raise ConfigError(f"{spec!r} is neither a directory nor a shipped task; see `tugline tasks list`", where="TASKS")


def _unique(tasks: list[Task]) -> list[Task]:
    """Equal directory names from different places get a suffix."""
    taken = {task.task_id for task in tasks}
    seen: set[str] = set()
    out = []
    for task in tasks:
        name, n = task.task_id, 1
        while name in seen or (n > 1 and name in taken):
            n += 1
            name = f"{task.task_id}.{n}"
        seen.add(name)
        out.append(task if n == 1 else replace(task, task_id=name))
    return out
