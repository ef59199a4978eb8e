"""What every verifier must do. Run it on your own: `await run_suite(subject)`.

A subject supplies four tasks whose outcome is known and a sandbox for each judgement. The checks then ask for the
promises that training depends on: a failed judgement is an error, never a reward.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tugline.core.clock import Deadline
from tugline.core.contracts import Sandbox, Verdict, Verifier
from tugline.core.errors import VerifierError, describe
from tugline.core.task import Task

LIMIT = 30.0
SHORT = 1.0
SLACK = 15.0


class Subject(Protocol):
    """A verifier with tasks that show what it does."""

    scratch: Path
    """A host directory; every judgement gets a folder below it."""

    def verifier(self) -> Verifier:
        """The verifier under test; called once per judgement."""
        ...

    async def box(self) -> Sandbox:
        """A fresh sandbox, as an agent left it."""
        ...

    def solved(self) -> Task:
        """A task whose verdict is its best reward."""
        ...

    def unsolved(self) -> Task:
        """A task with a valid verdict below that of `solved`."""
        ...

    def crashing(self) -> Task:
        """A task whose judgement dies without a verdict."""
        ...

    def hanging(self) -> Task:
        """A task whose judgement never ends by itself."""
        ...


@dataclass(frozen=True, slots=True)
class Check:
    """One promise."""

    run: Callable[[Subject], Awaitable[None]]

    @property
    def name(self) -> str:
        """The promise in words."""
        return self.run.__name__.removeprefix("check_")


async def run_suite(subject: Subject) -> list[str]:
    """All checks, one after the other. One line per failure; empty = the verifier keeps the contract."""
    failures = []
    for check in CHECKS:
        try:
            await check.run(subject)
        except (AssertionError, VerifierError, TimeoutError) as err:
            failures.append(f"{check.name}: {describe(err)}")
    return failures


async def judge(subject: Subject, task: Task, name: str, limit: float = LIMIT) -> Verdict:
    """One judgement in a sandbox of its own."""
    box = await subject.box()
    try:
        return await subject.verifier().judge(task, box, Deadline.after(limit), subject.scratch / name)
    finally:
        await box.close()


async def check_gives_finite_rewards(subject: Subject) -> None:
    """Solved beats unsolved, and all numbers are finite."""
    good = await judge(subject, subject.solved(), "good")
    bad = await judge(subject, subject.unsolved(), "bad")
    _expect(good.reward > bad.reward, f"solved got {good.reward}, unsolved {bad.reward}")
    for verdict in (good, bad):
        numbers = [verdict.reward, *verdict.parts.values()]
        _expect(not verdict.flags or verdict.reward == 0, f"flagged as a cheat, and yet worth {verdict.reward}")
        _expect(all(type(n) is float and math.isfinite(n) for n in numbers), f"not all finite floats: {numbers}")


async def check_says_the_same_twice(subject: Subject) -> None:
    """A second judgement of the same work does not differ."""
    first = await judge(subject, subject.solved(), "first")
    second = await judge(subject, subject.solved(), "second")
    _expect(first == second, f"{first} then {second}")


async def check_writes_a_log(subject: Subject) -> None:
    """People can see what the verifier said."""
    await judge(subject, subject.solved(), "log")
    found = await asyncio.to_thread(lambda: [p for p in (subject.scratch / "log").rglob("*") if p.is_file()])
    _expect(bool(found), "nothing was written to `out`")


async def check_a_crash_is_no_verdict(subject: Subject) -> None:
    """A verifier that dies raises VerifierError; a reward of 0 would train the policy on our fault."""
    await _refuses(judge(subject, subject.crashing(), "crash"), "a crash")


async def check_the_deadline_holds(subject: Subject) -> None:
    """A verifier that hangs ends at the deadline with VerifierError."""
    async with asyncio.timeout(SHORT + SLACK):
        await _refuses(judge(subject, subject.hanging(), "hang", SHORT), "a hang")


async def check_cancelling_ends_it(subject: Subject) -> None:
    """Cancellation goes through, and soon."""
    running = asyncio.create_task(judge(subject, subject.hanging(), "cancelled"))
    folder = subject.scratch / "cancelled"
    async with asyncio.timeout(SLACK):
        while not await asyncio.to_thread(folder.exists):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the verifier under test owns the folder; nothing tells us when it is made
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=SLACK)
    _expect(bool(done), "still running after cancellation")
    _expect(running.cancelled(), "cancellation was swallowed")


async def _refuses(judging: Awaitable[Verdict], what: str) -> None:
    try:
        verdict = await judging
    except VerifierError:
        return
    raise AssertionError(f"{what} gave {verdict}")


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)


CHECKS = tuple(
    Check(run)
    for run in (
        check_gives_finite_rewards,
        check_says_the_same_twice,
        check_writes_a_log,
        check_a_crash_is_no_verdict,
        check_the_deadline_holds,
        check_cancelling_ends_it,
    )
)
