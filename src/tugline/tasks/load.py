"""From what the command line names to tasks; everything wrong is said at once, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tugline.core.errors import ConfigError, TaskError
from tugline.core.task import Task
from tugline.tasks.harbor import is_task, read_task

SHIPPED = Path(__file__).parent / "shipped"
SUITES = ("files", "quickstart")
"""`files` = all shipped tasks; `quickstart` = one of each family."""
MAX_SHOWN = 20


def shipped_names() -> list[str]:
    """Names of the shipped tasks."""
    return sorted(p.name for p in SHIPPED.iterdir() if is_task(p))


def load_tasks(specs: Sequence[str], *, env: Mapping[str, str]) -> list[Task]:
    """Tasks in the order named. Raises ConfigError (unknown name) or one TaskError that lists every problem."""
    paths = [path for spec in specs for path in _expand(spec)]
    tasks: list[Task] = []
    problems: list[TaskError] = []
    for path in paths:
        try:
            tasks.append(read_task(path, env))
        except TaskError as err:
            problems.append(err)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        lines = "\n".join(f"  {p.message}" for p in problems[:MAX_SHOWN])
        more = f"\n  and {len(problems) - MAX_SHOWN} more" if len(problems) > MAX_SHOWN else ""
        raise TaskError(f"{len(problems)} of {len(paths)} tasks are broken:\n{lines}{more}", where="tasks")
    return _unique(tasks)


def _expand(spec: str) -> list[Path]:
    """A task directory, a directory of them, a shipped task, a family or a suite."""
    names = shipped_names()
    if spec == "files":
        return [SHIPPED / n for n in names]
    if spec == "quickstart":
        firsts: dict[str, str] = {}
        for n in names:
            firsts.setdefault(n.rpartition("-")[0], n)
        return [SHIPPED / n for n in firsts.values()]
    path = Path(spec).expanduser()
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
    if path.suffix in (".jsonl", ".parquet") and path.exists():
        raise ConfigError(f"{spec}: task rows are not read yet; give Harbor task directories", where="TASKS")
    raise ConfigError(f"{spec!r} is neither a directory nor a shipped task; see `tugline tasks list`", where="TASKS")


def _unique(tasks: list[Task]) -> list[Task]:
    """Equal directory names from different places get a suffix."""
    seen: dict[str, int] = {}
    out = []
    for task in tasks:
        n = seen.get(task.task_id, 0)
        seen[task.task_id] = n + 1
        out.append(replace(task, task_id=f"{task.task_id}.{n + 1}") if n else task)
    return out
