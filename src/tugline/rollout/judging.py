"""Scoring what an agent left, in a sandbox that it has never seen.

The agent is dead. Its work directory is frozen; what changed in it is listed with clean tools and compared with the
task's own. Either the frozen directory is judged as it stands, without links that lead out of it, or a fresh sandbox
gets what the task carries over. The same procedure scores a stored submission again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tugline.core.clock import Deadline
from tugline.core.contracts import Command, Limits, Sandbox, SandboxProvider, Verdict, Verifier
from tugline.core.errors import SandboxError, TuglineError, VerifierError, describe
from tugline.core.task import Task
from tugline.rollout import submission
from tugline.rollout.detectors import change_marks
from tugline.rollout.manifest import EMPTY, Change, Manifest, carried, compare, encoded
from tugline.rollout.submission import CHANGES, Submission, TooLarge

CLOSE_SECONDS = 30.0
PREPARE_SECONDS = 600.0
"""For the sandboxes of one judgement, and for carrying the work over."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, and names of what looks like cheating; those that begin with `!` are the verifier's proofs."""

    verdict: Verdict
    marks: tuple[str, ...]


class Judging:
    """Judges sessions of a run. Lists of unchanged work directories are made once per environment."""

    def __init__(
        self,
        sandboxes: SandboxProvider,
        verifier_for: Callable[[Task], Verifier],
        limits: Limits,
        say: Callable[[str], None],
    ) -> None:
        self._sandboxes = sandboxes
        self._verifier_for = verifier_for
        self._limits = limits
        self._say = say
        self._pristine: dict[str, asyncio.Task[Manifest]] = {}

    async def judge(self, task: Task, box: Sandbox, seconds: float, folder: Path) -> Judged:
        """Score what lies in an agent's box; the submission and the verifier's files go below `folder`.

        `seconds` are the verifier's own; what comes before has a limit of its own. Raises VerifierError (infra) when
        there is no verdict.
        """
        try:
            async with asyncio.timeout(PREPARE_SECONDS + seconds + CLOSE_SECONDS), contextlib.AsyncExitStack() as stack:
                outside = await self._collect(task, box, folder)
                clone = await stack.enter_async_context(self._open(box.clone()))
                after = await submission.manifest(clone, folder)
                before = await self._before(task, folder)
                changes = await asyncio.to_thread(compare, before, after, task.environment.workdir)
                whole = task.verifier_environment is not None
                empty = (EMPTY, after, task.environment.workdir)
                given = await asyncio.to_thread(compare, *empty) if whole else changes
                work = await self._keep(clone, given, outside, folder)
                if task.carry is not None:
                    return await self._fresh(task, (work, changes), seconds, folder / "verifier")
                bad = [c.path for c in changes if c.kind in ("escape", "special")]
                await submission.remove(clone, bad, folder)
                return await self._verdict(task, clone, (changes, seconds), folder / "verifier")
        except TimeoutError as err:
            raise VerifierError(f"no verdict within {seconds:g} s and the time to prepare it") from err
        except TooLarge:
            return await self._fresh(task, (None, ()), seconds, folder / "verifier")
        except SandboxError as err:
            raise VerifierError(f"the judging sandbox failed: {err.message}") from err

    async def again(self, task: Task, work: Submission, seconds: float, out: Path) -> Judged:
        """Score a stored submission in a fresh sandbox. Raises VerifierError."""
        try:
            async with asyncio.timeout(PREPARE_SECONDS + seconds + CLOSE_SECONDS):
                return await self._fresh(task, (work, work.changes), seconds, out)
        except TimeoutError as err:
            raise VerifierError(f"no verdict within {seconds:g} s and the time to prepare it") from err
        except SandboxError as err:
            raise VerifierError(f"the judging sandbox failed: {err.message}") from err

    # --------------------------------------------------------------------------------------------- inside

    async def _fresh(
        self, task: Task, given: tuple[Submission | None, Sequence[Change]], seconds: float, out: Path
    ) -> Judged:
        work, changes = given
        if work is None:
            return Judged(Verdict(0.0, {"reward": 0.0}, ("work_too_large",)), ("!work_too_large",))
        taken, _ = await asyncio.to_thread(carried, work.changes, task.carry)
        tar = await asyncio.to_thread(submission.only, work.tar, {c.path for c in taken})
        start = self._sandboxes.start(
            task.verifier_environment or task.environment, f"judge_{task.task_id}", self._limits
        )
        async with self._open(start) as first, contextlib.AsyncExitStack() as stack:
            chosen = Submission(tuple(taken), tar, work.outside)
            await submission.put(first, chosen, task.environment.workdir, out)
            box = first if first.isolated else await stack.enter_async_context(self._open(first.clone()))
            return await self._verdict(task, box, (changes, seconds), out)

    async def _collect(self, task: Task, box: Sandbox, folder: Path) -> bytes:
        """What the task's collect commands make, and the artifacts outside the work directory."""
        for number, step in enumerate(task.collect):
            log = folder / f"collect-{number}.log"
            await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
            env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **task.environment.env}
            command = Command(("/bin/sh", "-c", step.command), env, box.workdir, stdout=log, stderr=log)
            ended = await box.run(command, Deadline.after(step.seconds))
            if ended.code != 0 or ended.timed_out:
                self._say(f"{folder.name}: collect step `{step.command[:80]}` ended with {ended.code}")
        if not task.verifier_separate:
            return b""
        paths = submission.outside_of(task.artifacts, task.environment.workdir)
        return await submission.take_outside(box, paths, folder)

    async def _verdict(self, task: Task, box: Sandbox, given: tuple[Sequence[Change], float], out: Path) -> Judged:
        changes, seconds = given
        await asyncio.to_thread(_write, out / CHANGES, encoded(changes))
        verdict = await self._verifier_for(task).judge(task, box, Deadline.after(seconds), out)
        numbers = (verdict.reward, *verdict.parts.values())
        if not all(isinstance(n, float | int) and math.isfinite(n) for n in numbers):
            raise VerifierError(f"the verdict holds a number that is not finite: {verdict}")
        if verdict.flags and verdict.reward > 0:
            verdict = replace(verdict, reward=0.0, parts={**verdict.parts, "claimed": verdict.reward, "reward": 0.0})
        seen = await asyncio.to_thread(change_marks, changes)
        marks = (*(f"!{flag}" for flag in verdict.flags), *verdict.marks, *seen)
        return Judged(verdict, tuple(sorted(set(marks))))

    async def _before(self, task: Task, scratch: Path) -> Manifest:
        key = task.environment.digest or repr(task.environment)
        found = self._pristine.get(key)
        if found is None or (found.done() and (found.cancelled() or found.exception() is not None)):
            found = asyncio.create_task(self._list(task, scratch.parent / f".{scratch.name}.pristine"))
            self._pristine[key] = found
        return await asyncio.shield(found)

    async def _list(self, task: Task, scratch: Path) -> Manifest:
        start = self._sandboxes.start(task.environment, f"list_{task.task_id}", self._limits)
        async with self._open(start) as box:
            try:
                return await submission.manifest(box, scratch)
            except TooLarge as err:  # the task's own tree, which is no agent's doing
                raise SandboxError(err.message) from err
            finally:
                await asyncio.to_thread(_rmdir, scratch)

    async def _keep(self, clone: Sandbox, changes: Sequence[Change], outside: bytes, folder: Path) -> Submission | None:
        """The submission, stored; None when it is too large to be."""
        takeable, _ = await asyncio.to_thread(carried, changes, None)
        try:
            taken = await submission.take(clone, takeable, folder)
        except TooLarge as err:
            self._say(f"{folder.name}: {err.message}; it cannot be judged again later")
            return None
        work = Submission(tuple(changes), taken.tar, outside)
        await asyncio.to_thread(submission.keep, work, folder / "submission")
        return work

    @asynccontextmanager
    async def _open(self, making: object) -> AsyncIterator[Sandbox]:
        box: Sandbox = await making  # type: ignore[misc]
        try:
            yield box
        finally:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await asyncio.shield(box.close())
            except (TimeoutError, TuglineError) as err:
                self._say(f"a sandbox could not be removed ({describe(err)}); `tugline gc` will try again")


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _rmdir(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()
