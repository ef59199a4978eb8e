"""Running pytest on code that wants to be told that it is right, and believing only what our own parent saw.

Test files are written into the box from the task, with canaries; one worker per file runs them; the results come
through a pipe that the worker's parent owns (`inside`). See docs/security.md for what each part stops.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import importlib.util
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Mount, Sandbox
from tugline.core.errors import VerifierError
from tugline.verifiers import canaries, results
from tugline.verifiers.contradict import contradict
from tugline.verifiers.harbor import LOG_NAME, PATH

INSIDE = "/tugline/judge"
TOOLS = "/opt/tugline/pytest"
"""Our own pytest, for a box that has none."""
PARTS = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
PROGRAMS = Path(__file__).parent / "inside"
REPORT_NAME = "report.json"
OUTCOMES_NAME = "outcomes.json"
CHANGES_NAME = "changes.json"
"""In `out`, where the caller knows it: what the agent changed in the work directory."""
PYTHONS = ("/opt/miniconda3/envs/testbed/bin/python", "python3", "python")
FIND = (
    'for p in $PYTHONS; do if command -v "$p" >/dev/null 2>&1; then exec "$p" -I -B "$0/parent.py"; fi; done; exit 90'
)
NO_PYTHON = 90
AGAIN_NAME, AGAIN_SECONDS = "again", 30.0
"""Of a second run, which nobody but we have asked for: its folder, and its time beside twice the first one's."""
MARGIN = 0.85
"""Of the judge's time, for the tests: theirs ends first, so that a test that hangs is a failed one."""


@dataclass(frozen=True, slots=True)
class TestPlan:
    """`files`: path below the work directory -> content, as the task has them; `run`: those that hold tests."""

    files: Mapping[str, bytes]
    run: tuple[str, ...]
    args: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    """Directories below the work directory that are importable, beside itself."""
    env: Mapping[str, str] | None = None
    hidden: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Test file -> tests (`f` or `C::f`) that no agent has seen, which may be contradicted."""
    runner: Literal["pytest", "runtests"] = "pytest"
    """runtests: Django's tests/runtests.py."""


class Change(msgspec.Struct):
    """One changed path."""

    path: str
    kind: str


async def run_proven(
    box: Sandbox, plan: TestPlan, deadline: Deadline, out: Path, won: Callable[[results.Results], bool]
) -> results.Results:
    """The tests' results. When they amount to success, the same again in a twin of the sandbox, with some hidden tests
    contradicted: those must fail and the other hidden ones pass, or the success is not the work's. See `contradict`.

    Raises VerifierError when a runner gave no report, SandboxError when a sandbox fails.
    """
    twin = await box.clone()
    try:
        found = await run_tests(box, plan, deadline, out)
        if found.flags or not won(found):
            return found
        files, picked = dict(plan.files), dict[str, frozenset[str]]()
        rng = Random(secrets.token_bytes(16))
        for path, names in plan.hidden.items():
            files[path], picked[path] = contradict(files[path], names, rng)
        if not any(picked.values()):
            found.marks.add("not_contradicted")
            return found
        again = Deadline.after(2 * found.seconds + AGAIN_SECONDS)
        await asyncio.to_thread(_hand_on, out, out / AGAIN_NAME)
        second = await run_tests(twin, replace(plan, files=files), again, out / AGAIN_NAME)
        if second.timed_out:
            raise VerifierError("the tests ran out of time when they were run again")
        _compare(found, second, plan.hidden, picked)
        return found
    finally:
        await twin.close()


def _hand_on(out: Path, again: Path) -> None:
    again.mkdir(parents=True, exist_ok=True)
    if (out / CHANGES_NAME).is_file():
        shutil.copyfile(out / CHANGES_NAME, again / CHANGES_NAME)


def _compare(
    found: results.Results,
    second: results.Results,
    hidden: Mapping[str, frozenset[str]],
    picked: Mapping[str, frozenset[str]],
) -> None:
    """Take into `found` what the second run says of the first."""
    found.flags |= second.flags
    for path, names in hidden.items():
        for name in sorted(names):
            outcomes = second.of(path, name)
            if name in picked[path]:
                if results.PASSED in outcomes:
                    found.flags.add("passes_either_way")
                    found.details.append(f"passes_either_way: {path}::{name} and its contradiction both passed")
            elif found.of(path, name) == {results.PASSED} and outcomes != {results.PASSED}:
                found.marks.add("unstable")
                found.unstable = True
                found.details.append(f"unstable: {path}::{name} passed, and then {sorted(outcomes) or 'was not there'}")


async def run_tests(box: Sandbox, plan: TestPlan, deadline: Deadline, out: Path) -> results.Results:
    """Raises VerifierError when the runner itself gave no report, SandboxError when the sandbox fails."""
    await asyncio.to_thread(out.mkdir, parents=True, exist_ok=True)
    files, planted = dict(plan.files), dict[str, frozenset[str]]()
    rng = Random(secrets.token_bytes(16))
    for path in plan.run:
        try:
            one = canaries.plant(files[path], rng)
        except (SyntaxError, ValueError) as err:
            raise VerifierError(f"the task's test file {path} is no Python: {err}") from err
        files[path] = one.data
        planted[path] = one.names if plan.runner == "pytest" else frozenset({one.case})
    with tempfile.TemporaryDirectory(prefix="tugline-tests-") as folder:
        await asyncio.to_thread(_lay_out, Path(folder) / "tests", files)
        await box.upload(Path(folder) / "tests", box.workdir)
        await asyncio.to_thread(_programs, Path(folder) / "judge")
        await box.upload(Path(folder) / "judge", INSIDE)
    job = {
        "runner": plan.runner,
        "workdir": box.workdir, "limit": max(1.0, deadline.left() * MARGIN), "args": plan.args, "paths": plan.paths,
        "restored": {path: hashlib.sha256(data).hexdigest() for path, data in files.items()},
        "files": [{"path": path} for path in plan.run], "tools": TOOLS, "trusted": [TOOLS, INSIDE],
        "changed": await asyncio.to_thread(known_changes, out),
    }  # fmt: skip
    command = Command(
        argv=("/bin/sh", "-c", FIND, INSIDE),
        env={"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/tmp", "PYTHONS": " ".join(PYTHONS), **(plan.env or {})},
        cwd="/",
        stdin=msgspec.json.encode(job),
        stdout=out / REPORT_NAME,
        stderr=out / LOG_NAME,
        mounts=await asyncio.to_thread(tool_mounts) if box.isolated else (),
    )
    ended = await box.run(command, deadline)
    return await asyncio.to_thread(_read, ended, out, planted)


class _Plain(ast.NodeTransformer):
    """Takes annotations away, so that old Pythons read what checkers here have checked."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        for arg in (*node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg):
            if arg is not None:
                arg.annotation = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        return None if node.module == "__future__" else node


def _programs(folder: Path) -> None:
    """The programs that run inside, without annotations."""
    folder.mkdir()
    for name in ("parent.py", "worker.py"):
        tree = _Plain().visit(ast.parse((PROGRAMS / name).read_text("utf-8")))
        (folder / name).write_text(ast.unparse(ast.fix_missing_locations(tree)), "utf-8")


def _lay_out(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir()
    for path, data in files.items():
        at = folder / path
        if not at.resolve().is_relative_to(folder.resolve()):
            raise VerifierError(f"the task's test file {path} lies outside the work directory")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(data)
        at.chmod(0o644)


def _read(ended: Exit, out: Path, planted: Mapping[str, frozenset[str]]) -> results.Results:
    if ended.timed_out:
        raise VerifierError(f"the test runner ran into the judge's time limit; see verifier/{LOG_NAME}")
    if ended.oom:
        raise VerifierError(f"the tests ran out of memory; see verifier/{LOG_NAME}")
    if ended.code == NO_PYTHON:
        raise VerifierError(f"the judging sandbox has no Python ({', '.join(PYTHONS)})")
    if _signal(ended.code):
        # nobody but the code that is judged sends signals in there
        return results.Results(flags={"judge_killed"}, details=[f"the test runner was killed ({ended.code})"])
    if ended.code != 0:
        raise VerifierError(f"the test runner ended with {ended.code}; see verifier/{LOG_NAME}")
    report = results.decode((out / REPORT_NAME).read_bytes())
    found = results.judge(report, planted)
    began = any(m.get("t") == "tools" for run in report.runs for m in run.messages)
    if not began and not found.flags:
        raise VerifierError(f"no pytest in the judging sandbox; see verifier/{LOG_NAME}")
    (out / OUTCOMES_NAME).write_bytes(msgspec.json.encode(found.outcomes))
    with (out / LOG_NAME).open("a") as log:
        log.write("".join(f"{line}\n" for line in found.details))
    return found


def _signal(code: int) -> bool:
    return code < 0 or 128 < code < 160


def known_changes(out: Path) -> list[str] | None:
    """Paths that the agent changed, as the caller left them in `out`; None: not known, so nothing is trusted."""
    file = out / CHANGES_NAME
    if not file.is_file():
        return None
    return [change.path for change in msgspec.json.decode(file.read_bytes(), type=list[Change])]


def tool_mounts() -> tuple[Mount, ...]:
    """Our own pytest's parts, as far as they are installed here."""
    found = []
    for name in PARTS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            source = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
            found.append(Mount(source, f"{TOOLS}/{source.name}"))
    return tuple(found)
