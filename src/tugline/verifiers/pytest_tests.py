"""A task's own pytest files as its verifier, for tasks of Tugline's: every test of theirs must pass.

tests/ of the task is laid over the work directory (below `into`), so that whatever the agent did to files of those
names is undone. Options: `into` (default "tests"), `paths`, `args`, `expected` (test ids; default: every test function
that the files hold).
"""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import msgspec

from tugline.core.clock import Deadline
from tugline.core.contracts import Sandbox, Verdict
from tugline.core.errors import VerifierError
from tugline.core.task import Task
from tugline.verifiers.pytest_runner import TestPlan, run_proven
from tugline.verifiers.results import Results

MAX_FILE = 8 << 20


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """[metadata.tugline.options]."""

    into: str = "tests"
    paths: list[str] = []
    args: list[str] = []
    expected: list[str] = []


class PytestVerifier:
    """Implements core Verifier."""

    name = "pytest"

    async def judge(self, task: Task, box: Sandbox, deadline: Deadline, out: Path) -> Verdict:
        """Reward 1 when every expected test passed and nothing was flagged, else 0; `passed` is their share.

        Raises VerifierError when there is no valid verdict, SandboxError when the sandbox itself fails.
        """
        if task.verifier_dir is None:
            raise VerifierError("the task has no tests/")
        try:
            options = msgspec.convert(dict(task.verifier_options), Options)
        except msgspec.ValidationError as err:
            raise VerifierError(f"the task's verifier options: {err}") from err
        files = await asyncio.to_thread(read_files, task.verifier_dir, options.into)
        run = tuple(p for p in files if is_test_file(p))
        expected = options.expected or [i for p in run for i in static_ids(p, files[p])]
        if not expected:
            raise VerifierError("the task's tests/ hold no test")
        hidden = {p: frozenset(i.removeprefix(f"{p}::") for i in static_ids(p, files[p])) for p in run}
        env = {**task.environment.env}
        plan = TestPlan(files, run, tuple(options.args), tuple(options.paths), env, hidden)
        found = await run_proven(box, plan, deadline, out, lambda seen: verdict(seen, expected).reward > 0)
        return verdict(found, expected)


def verdict(found: Results, expected: list[str]) -> Verdict:
    """An expected id without parameters stands for all of its parameters' tests."""
    good = [_passed(found, test) for test in expected]
    share = sum(good) / len(good)
    reward = 1.0 if all(good) and not found.flags and not found.unstable else 0.0
    return Verdict(reward, {"reward": reward, "passed": share}, tuple(sorted(found.flags)), tuple(sorted(found.marks)))


def _passed(found: Results, test: str) -> bool:
    if found.passed(test):
        return True
    cases = [i for i in found.outcomes if i.startswith(f"{test}[")]
    return bool(cases) and all(found.passed(i) for i in cases)


def is_test_file(path: str) -> bool:
    """By pytest's own default names."""
    name = path.rpartition("/")[2]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


def static_ids(path: str, data: bytes) -> list[str]:
    """Ids of the test functions and methods in a file, by pytest's default names, without parameters."""
    found = []
    for node in ast.parse(data).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            found.append(f"{path}::{node.name}")
        elif isinstance(node, ast.ClassDef) and _test_class(node):
            found += [
                f"{path}::{node.name}::{n.name}"
                for n in node.body
                if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name.startswith("test")
            ]
    return list(dict.fromkeys(found))


def _test_class(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
    return node.name.startswith("Test") or bool(bases & {"TestCase", "IsolatedAsyncioTestCase"})


def read_files(top: Path, into: str) -> dict[str, bytes]:
    """Regular files of a directory, by their path below the work directory."""
    prefix = f"{into.strip('/')}/" if into.strip("/.") else ""
    found = {}
    for path in sorted(top.rglob("*")):
        if path.is_file() and not path.is_symlink():
            if path.stat().st_size > MAX_FILE:
                raise VerifierError(f"{path.name} in tests/ has more than {MAX_FILE} bytes")
            found[prefix + path.relative_to(top).as_posix()] = path.read_bytes()
    return found
