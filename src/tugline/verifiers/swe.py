"""FAIL_TO_PASS and PASS_TO_PASS of SWE-bench-like rows, by structured results.

The box has the task's own tree with the agent's changes to anything but tests and configuration. The row's test patch
is applied to the task's test files outside, so no program of the box decides what is tested; each test file runs in a
worker of its own. Absent, skipped and unreported tests have not passed.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec

from tugline.core.clock import Deadline
from tugline.core.contracts import Sandbox, Verdict
from tugline.core.errors import VerifierError
from tugline.core.task import Task
from tugline.verifiers import unified
from tugline.verifiers.pytest_runner import TestPlan, run_proven
from tugline.verifiers.pytest_tests import is_test_file
from tugline.verifiers.results import Results

MAX_FILE = 8 << 20
_DJANGO = re.compile(r"^\w+ \(([\w.]+)\)$")


class Options(msgspec.Struct):
    """The part of a row that judges."""

    fail_to_pass: list[str]
    pass_to_pass: list[str] = []
    test_patch: str = ""
    repo: str = ""


class SweVerifier:
    """Implements core Verifier."""

    name = "swe"

    async def judge(self, task: Task, box: Sandbox, deadline: Deadline, out: Path) -> Verdict:
        """Reward 1 when every test of both lists passed and nothing was flagged, else 0. Parts: `fail_to_pass` and
        `pass_to_pass`, the shares that passed (the second only where the row has such tests).

        Raises VerifierError when there is no valid verdict, SandboxError when the sandbox itself fails.
        """
        try:
            row = msgspec.convert(dict(task.verifier_options), Options)
        except msgspec.ValidationError as err:
            raise VerifierError(f"the row: {err}") from err
        if not row.fail_to_pass:
            raise VerifierError("the row has no FAIL_TO_PASS: doing nothing would solve it")
        await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
        try:
            files = await test_files(row, box)
        except unified.PatchError as err:
            raise VerifierError(f"the row's test patch: {err}") from err
        named = set(named_files(row))
        run = tuple(p for p in files if p in named or (is_test_file(p) and not with_runtests(row)))
        if not run:
            raise VerifierError("the row names no test file")
        ours = with_runtests(row)
        args = ("--settings=test_sqlite",) if ours else ()
        env = {**task.environment.env}
        plan = TestPlan(files, run, args, (), env, hidden_tests(row, run), "runtests" if ours else "pytest")
        found = await run_proven(box, plan, deadline, out, lambda seen: verdict(row, seen).reward > 0)
        return verdict(row, found)


def verdict(row: Options, found: Results) -> Verdict:
    """From outcomes to reward."""
    first = [passed(found, test) for test in row.fail_to_pass]
    second = [passed(found, test) for test in row.pass_to_pass]
    reward = 1.0 if all(first) and all(second) and not found.flags and not found.unstable else 0.0
    parts = {"reward": reward, "fail_to_pass": sum(first) / len(first)}
    if second:
        parts["pass_to_pass"] = sum(second) / len(second)
    return Verdict(reward, parts, tuple(sorted(found.flags)), tuple(sorted(found.marks)))


def hidden_tests(row: Options, run: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """The tests that must begin to pass, by file: agents have not seen them as they are."""
    found: dict[str, set[str]] = {}
    for test in row.fail_to_pass:
        match = _DJANGO.match(test)
        if match:
            module, _, cls = match[1].rpartition(".")
            path, name = f"tests/{module.replace('.', '/')}.py", f"{cls}::{test.partition(' ')[0]}"
        else:
            path, _, name = test.partition("[")[0].partition("::")
        if path in run and name:
            found.setdefault(path, set()).add(name)
    return {path: frozenset(names) for path, names in found.items()}


def passed(found: Results, test: str) -> bool:
    """An id without a file (some rows have function names only) means all tests of that name."""
    if "::" in test or test in found.outcomes:
        return found.passed(test)
    fits = [i for i in found.outcomes if i.rpartition("::")[2].partition("[")[0] == test]
    return bool(fits) and all(found.passed(i) for i in fits)


def with_runtests(row: Options) -> bool:
    """Whether the ids are Django's: `method (module.Class)`."""
    return any(_DJANGO.match(i) for i in row.fail_to_pass + row.pass_to_pass)


def named_files(row: Options) -> list[str]:
    """Files that the ids name; for Django the modules, and what the test patch touches of tests/."""
    ids = (*row.fail_to_pass, *row.pass_to_pass)
    if not with_runtests(row):
        return list(dict.fromkeys(i.partition("::")[0] for i in ids if "::" in i))
    modules = [match[1].rpartition(".")[0] for i in ids if (match := _DJANGO.match(i))]
    touched = [p for p in unified.touched(row.test_patch) if p.startswith("tests/") and p.endswith(".py")]
    files = [f"tests/{m.replace('.', '/')}.py" for m in modules]
    return list(dict.fromkeys((*files, *(p for p in touched if p.rpartition("/")[2].startswith("test")))))


async def test_files(row: Options, box: Sandbox) -> dict[str, bytes]:
    """Every file that tests, as the task has it behind its test patch. Raises PatchError, SandboxError."""
    found: dict[str, bytes] = {}
    for path in dict.fromkeys((*named_files(row), *unified.touched(row.test_patch))):
        data = await box.read(f"{box.workdir}/{path}", MAX_FILE)
        if data is not None:
            found[path] = data
    for path, after in unified.apply(row.test_patch, found).items():
        if after is None:
            found.pop(path, None)
        else:
            found[path] = after
    return found
