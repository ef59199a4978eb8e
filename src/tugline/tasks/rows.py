"""Rows of SWE-bench, SWE-bench Verified, SWE-Gym and SkyRL-v0-293 as tasks for the `swe` verifier.

A row is one JSON object (JSONL) or one row of a Parquet file; SkyRL's are nested under `instance`. Beside the known
columns, `image_name` names an image and `source` a local git repository, relative to the file, to take the tree from.
"""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec

from tugline.core.errors import ConfigError, TaskError, boundary
from tugline.core.task import PYTHON_RESTORE, Carry, Copy, Environment, Task
from tugline.tasks.digest import environment_digest

WORKDIR = "/testbed"
BENCH = frozenset(
    (
        "astropy/astropy", "django/django", "matplotlib/matplotlib", "mwaskom/seaborn", "pallets/flask",
        "psf/requests", "pydata/xarray", "pylint-dev/pylint", "pytest-dev/pytest", "scikit-learn/scikit-learn",
        "sphinx-doc/sphinx", "sympy/sympy", "marshmallow-code/marshmallow", "pydicom/pydicom", "pylint-dev/astroid",
        "pvlib/pvlib-python", "pyvista/pyvista", "sqlfluff/sqlfluff",
    )
)  # fmt: skip
"""Repositories whose images SWE-bench publishes; the others are SWE-Gym's."""
FRESH = (
    "rm -rf .git && git init -q && git add -A && "
    "git -c user.name=task -c user.email=task@localhost commit -q --no-verify -m base"
)
"""One commit, and no object of what came later."""


class Row(msgspec.Struct):
    """The columns that mean something here."""

    instance_id: str
    repo: str
    problem_statement: str
    FAIL_TO_PASS: list[str] | str
    PASS_TO_PASS: list[str] | str = []
    base_commit: str = ""
    patch: str = ""
    test_patch: str = ""
    version: str | None = None
    image_name: str | None = None
    docker_image: str | None = None
    source: str | None = None


def read_rows(path: Path) -> list[Task]:
    """All rows of a file. Raises TaskError naming the row, ConfigError for a file that cannot be read."""
    if path.suffix == ".parquet":
        return [task_of(row, path, n) for n, row in enumerate(_parquet(path), 1)]
    with boundary(ConfigError, f"{path} cannot be read"):
        lines = path.read_bytes().splitlines()
    tasks = []
    for n, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = msgspec.json.decode(line)
            except (msgspec.DecodeError, RecursionError) as err:
                raise TaskError(f"is not valid JSON: {err}", where=f"{path.name}:{n}") from err
            tasks.append(task_of(row, path, n))
    return tasks


def task_of(given: Any, path: Path, number: int = 1) -> Task:
    """One row as a task. Raises TaskError."""
    where = f"{path.name}:{number}"
    inner = given.get("instance") if isinstance(given, dict) else None
    if isinstance(inner, str | bytes):
        with boundary(TaskError, where):  # a JSON text in a column
            inner = msgspec.json.decode(inner)
    try:
        row = msgspec.convert(inner if isinstance(inner, dict) else given, Row)
    except msgspec.ValidationError as err:
        raise TaskError(str(err), where=where) from err
    first, second = _ids(row.FAIL_TO_PASS, where, "FAIL_TO_PASS"), _ids(row.PASS_TO_PASS, where, "PASS_TO_PASS")
    if not first:
        raise TaskError("is empty: doing nothing would solve it", where=where, field="FAIL_TO_PASS")
    environment = _environment(row, path, where)
    tests = {i.partition("::")[0] for i in (*first, *second) if "::" in i} | set(_touched(row.test_patch))
    django = [m[1].rpartition(".")[0] for i in (*first, *second) if (m := re.match(r"^\w+ \(([\w.]+)\)$", i))]
    tests |= {f"tests/{module.replace('.', '/')}.py" for module in django}
    tests |= {"tests/runtests.py", "tests/test_sqlite.py"} if django else set()
    options = {
        "fail_to_pass": first, "pass_to_pass": second, "test_patch": row.test_patch, "repo": row.repo,
    }  # fmt: skip
    return Task(
        task_id=re.sub(r"[^A-Za-z0-9._-]+", "-", row.instance_id)[:120] or "row",
        name=row.instance_id,
        instruction=row.problem_statement,
        environment=environment,
        path=path.resolve(),
        verifier_dir=None,
        solution_patch=row.patch,
        metadata={"repo": row.repo, "base_commit": row.base_commit, "version": row.version},
        verifier="swe",
        verifier_options=options,
        carry=Carry(restore=(*PYTHON_RESTORE, *(f"./{p}" for p in sorted(tests)))),
        digest=environment_digest(repr(options), row.instance_id, {}, ()),
    )


def image_of(row: Row) -> str:
    """The image that a row names, or the name that its benchmark gives it."""
    named = row.image_name or row.docker_image
    if named:
        return named
    known = row.repo in BENCH
    owner, mark = ("swebench", "_1776_") if known else ("xingyaoww", "_s_")
    return f"{owner}/sweb.eval.x86_64.{row.instance_id.replace('__', mark).lower()}:latest"


def _environment(row: Row, path: Path, where: str) -> Environment:
    steps: tuple[Copy | str, ...] = (f"cd {WORKDIR} && if [ -e .git ]; then {FRESH}; fi",)
    if row.source is not None:
        source = (path.parent / row.source).resolve()
        if not source.is_dir():
            raise TaskError(f"{row.source} is no directory", where=where, field="source")
        trust = "git config --global --add safe.directory '*'"
        out = f"git checkout -q -f {shlex.quote(row.base_commit)}" if row.base_commit else "true"
        steps = (Copy(source, WORKDIR), f"export HOME=/tmp; cd {WORKDIR} && {trust} && {out} && {FRESH}")
    image = image_of(row)
    return Environment(image=image, workdir=WORKDIR, steps=steps, digest=environment_digest(image, WORKDIR, {}, steps))


def _ids(value: list[str] | str, where: str, field: str) -> list[str]:
    """A list, or a list as JSON text. Ids are never split."""
    if isinstance(value, list):
        return value
    try:
        return msgspec.json.decode(value, type=list[str])
    except (msgspec.DecodeError, RecursionError) as err:
        raise TaskError(f"is no list of test ids: {err}", where=where, field=field) from err


def _touched(patch: str) -> list[str]:
    """Paths in a diff's headers."""
    found = re.findall(r"^(?:---|\+\+\+) (?:a|b)/([^\t\n]+)", patch, re.MULTILINE)
    return list(dict.fromkeys(p.strip() for p in found))


def _parquet(path: Path) -> list[Any]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as err:
        raise ConfigError(f"{path}: reading Parquet needs pip install pyarrow", where="TASKS") from err
    with boundary(ConfigError, f"{path} cannot be read"):
        rows: list[Any] = parquet.read_table(path).to_pylist()
    return rows
