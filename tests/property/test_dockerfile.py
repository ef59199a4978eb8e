"""Whatever a task's author types: an environment or a TaskError, never another exception."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tugline.core.errors import TaskError
from tugline.core.task import Copy
from tugline.tasks.dockerfile import read_dockerfile
from tugline.tasks.harbor import read_task
from unit.tasks.kit import make

NAMES = [
    "FROM",
    "RUN",
    "COPY",
    "ADD",
    "ENV",
    "ARG",
    "WORKDIR",
    "SHELL",
    "USER",
    "LABEL",
    "CMD",
    "HEALTHCHECK",
    "ONBUILD",
    "VOLUME",
    "#",
]
PIECES = [
    *(
        "a.txt",
        "d",
        "d/",
        "*",
        "?.txt",
        "[a",
        "..",
        "/",
        "/app",
        "/app/",
        ".",
        "--chown=1",
        "--chmod=755",
        "--from=x",
        "AS",
    ),
    *(
        "x=1",
        "x='1",
        'x="1"',
        "${x}",
        "${x:-y}",
        "${x",
        "$",
        "\\",
        "`",
        "<<EOF",
        '["a.txt", "/b/"]',
        "[",
        "https://x/y",
        "\0",
    ),
]
line = st.builds(lambda n, p: " ".join([n, *p]), st.sampled_from(NAMES), st.lists(st.sampled_from(PIECES), max_size=5))
same_place = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)


@pytest.fixture
def context(tmp_path):
    """A build context with a file and a folder."""
    (tmp_path / "d").mkdir()
    for name in ("a.txt", "d/b.txt"):
        (tmp_path / name).write_text("x")
    return tmp_path


@same_place
@given(st.lists(line, max_size=6), st.booleans())
def test_lines_made_of_dockerfile_words(context, lines, started):
    (context / "Dockerfile").write_text("\n".join(["FROM x"] * started + lines))
    try:
        made = read_dockerfile(context / "Dockerfile", "Dockerfile")
    except TaskError:
        return
    assert made.image and made.workdir.startswith("/")
    for step in made.steps:
        if isinstance(step, Copy):
            assert step.source.resolve().is_relative_to(context.resolve())
            assert step.target.startswith("/") and ".." not in step.target.split("/")


@same_place
@given(st.binary(max_size=200))
def test_any_bytes(context, data):
    (context / "Dockerfile").write_bytes(data)
    try:
        read_dockerfile(context / "Dockerfile", "Dockerfile")
    except TaskError:
        return
    assert b"FROM" in data.upper()


TABLES = ["agent", "verifier", "environment", "task", "metadata", "solution", "other"]
KEYS = ["timeout_sec", "env", "user", "network_mode", "cpus", "memory", "name", "os", "workdir", "artifacts"]
VALUES = [
    "1",
    "-1",
    "nan",
    "inf",
    "true",
    "'x'",
    "[]",
    "{}",
    "{A = '${B}'}",
    "1e400",
    "'1G'",
    "'/x'",
    "1979-05-27",
    "''",
]


@settings(same_place, max_examples=60)
@given(st.dictionaries(st.sampled_from(TABLES), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES))))
def test_tables_of_task_toml(tmp_path, tables):
    text = "".join(f"[{t}]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items()) for t, keys in tables.items())
    root = make(tmp_path / "t", {"task.toml": text})
    try:
        task = read_task(root, {})
    except TaskError as err:
        assert err.where.startswith("t")
        return
    assert repr(task.metadata) == repr(tomllib.loads(text).get("metadata", {}))  # by text: NaN is allowed there
    assert all(b is None or 0 < b < float("inf") for b in (task.budgets.boot, task.budgets.agent, task.budgets.judge))
