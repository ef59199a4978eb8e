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
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Literal

import msgspec

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Exit, Mount, Sandbox
from tugline.core.errors import VerifierError
from tugline.verifiers import canaries, results
from tugline.verifiers.contradict import contradictable, edited
from tugline.verifiers.harbor import LOG_NAME, PATH

INSIDE = "/tugline/judge"
TOOLS = "/opt/tugline/pytest"
"""Our own pytest, for a box that has none."""
PARTS = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments")
WATCH = "tugline.verifiers.inside.watch"
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
ODDS = 3
"""Coins that code which only speaks for the judge must guess, at least."""
MARGIN, GRACE = 0.85, 20.0
"""Of the judge's time, for the tests: theirs ends first, so that a test that hangs is a failed one. And seconds that
the runner has beyond: one that is late even then was stopped by what it runs."""
BEGUN = b"begun\n"
"""What the runner says before any code that is judged runs."""


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
    """The tests' results. When they amount to success, the same again in twins of the sandbox, with some hidden tests
    contradicted: those must fail and the other hidden ones pass, or the success is not the work's. See `contradict`.

    Raises VerifierError when a runner gave no report, SandboxError when a sandbox fails.
    """
    twin = await box.clone()
    try:
        found = await run_tests(box, plan, deadline, out)
        if found.flags or not won(found):
            return found
        rng = Random(secrets.token_bytes(16))
        possible = {path: contradictable(plan.files[path], names) for path, names in plan.hidden.items()}
        plans = rounds(possible, rng)
        if not plans:
            found.marks.add("not_contradicted")
        for number, picked in enumerate(plans, 1):
            again = out / (AGAIN_NAME if number == 1 else f"{AGAIN_NAME}-{number}")
            async with _another(twin, last=number == len(plans)) as fresh:
                await _again(fresh, plan, found, (picked, again, rng))
            if found.flags:
                break
        return found
    finally:
        await twin.close()


@asynccontextmanager
async def _another(twin: Sandbox, *, last: bool) -> AsyncIterator[Sandbox]:
    """The twin itself where no other run needs it, else a twin of it."""
    if last:
        yield twin
        return
    fresh = await twin.clone()
    try:
        yield fresh
    finally:
        await fresh.close()


async def _again(
    box: Sandbox, plan: TestPlan, found: results.Results, given: tuple[Mapping[str, frozenset[str]], Path, Random]
) -> None:
    """One more run, with the tests `picked` contradicted; `found` takes in what it says."""
    picked, out, rng = given
    files = {**plan.files, **{path: edited(plan.files[path], names, rng) for path, names in picked.items()}}
    await asyncio.to_thread(_hand_on, out.parent, out)
    limit = Deadline.after(2 * found.seconds + AGAIN_SECONDS)
    second = await run_tests(box, replace(plan, files=files), limit, out)
    if second.timed_out:
        raise VerifierError("the tests ran out of time when they were run again")
    _compare(found, second, plan.hidden, picked)


def rounds(possible: Mapping[str, frozenset[str]], rng: Random) -> list[dict[str, frozenset[str]]]:
    """Which tests are contradicted in which further run: each by a coin of its own, and at least one. As many runs as
    make ODDS coins: judged code can know by the clock that it is not the first run, so the coins are all that it
    cannot know."""
    tests = [(path, name) for path, names in sorted(possible.items()) for name in sorted(names)]
    if not tests:
        return []
    count = max(1, -(-ODDS // len(tests)))
    while True:
        plans = [
            {path: frozenset(n for p, n in tests if p == path and rng.random() < 0.5) for path in possible}
            for _ in range(count)
        ]
        if any(names for picked in plans for names in picked.values()):
            return plans


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
    changes = await asyncio.to_thread(known_changes, out)
    job = {
        "runner": plan.runner,
        "workdir": box.workdir, "limit": max(1.0, deadline.left() * MARGIN), "args": plan.args, "paths": plan.paths,
        "restored": {path: hashlib.sha256(data).hexdigest() for path, data in files.items()},
        "sizes": {path: len(data) for path, data in files.items()},
        "files": [{"path": path} for path in plan.run], "tools": TOOLS, "trusted": [TOOLS, INSIDE],
        "changed": None if changes is None else [change.path for change in changes],
        "added": [change.path for change in changes or () if change.kind == "added"],
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
    ended = await box.run(command, Deadline.after(deadline.left() + GRACE))
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
        return None if node.module in ("__future__", "collections.abc", WATCH) else node


def _programs(folder: Path) -> None:
    """The programs that run inside, without annotations and each in one piece."""
    folder.mkdir()
    for name, parts in (("parent.py", ("parent.py",)), ("worker.py", ("watch.py", "worker.py"))):
        trees = [_Plain().visit(ast.parse((PROGRAMS / part).read_text("utf-8"))) for part in parts]
        tree = ast.Module([node for each in trees for node in each.body], [])
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
    found = _found(ended, (out / REPORT_NAME).read_bytes(), planted)
    (out / OUTCOMES_NAME).write_bytes(msgspec.json.encode(found.outcomes))
    with (out / LOG_NAME).open("a") as log:
        log.write("".join(f"{line}\n" for line in found.details))
    return found


def _found(ended: Exit, said: bytes, planted: Mapping[str, frozenset[str]]) -> results.Results:
    """What the runner's end and its words amount to. Raises VerifierError for one that never began."""
    if ended.code == NO_PYTHON and not ended.timed_out:
        raise VerifierError(f"the judging sandbox has no Python ({', '.join(PYTHONS)})")
    if not said.startswith(BEGUN):
        how = "took too long to start" if ended.timed_out else f"could not start ({ended.code})"
        raise VerifierError(f"the test runner {how}; see verifier/{LOG_NAME}")
    marks = {"tests_memory"} if ended.oom else set[str]()
    if ended.timed_out:
        return results.Results(marks=marks | {"tests_timeout"}, timed_out=True, details=["no report in time"])
    if ended.code != 0 and ended.oom:
        return results.Results(marks=marks, details=["the tests took all memory, the runner's too"])
    if ended.code != 0:  # nobody but the code that is judged runs in there
        return results.Results(flags={"judge_killed"}, details=[f"the test runner was brought down ({ended.code})"])
    lines = said.splitlines()
    if len(lines) != 2:
        return results.Results(flags={"forged_results"}, details=["the report is not the runner's alone"])
    report = results.decode(lines[1])
    found = results.judge(report, planted)
    found.marks |= marks
    began = any(m.get("t") == "tools" for run in report.runs for m in run.messages)
    if not began and not found.flags and not ended.oom:
        raise VerifierError(f"no pytest in the judging sandbox; see verifier/{LOG_NAME}")
    return found


def known_changes(out: Path) -> list[Change] | None:
    """What the agent changed, as the caller left it in `out`; None: not known, so nothing is trusted."""
    file = out / CHANGES_NAME
    if not file.is_file():
        return None
    return msgspec.json.decode(file.read_bytes(), type=list[Change])


def tool_mounts() -> tuple[Mount, ...]:
    """Our own pytest's parts, as far as they are installed here."""
    found = []
    for name in PARTS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            source = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
            found.append(Mount(source, f"{TOOLS}/{source.name}"))
    return tuple(found)
