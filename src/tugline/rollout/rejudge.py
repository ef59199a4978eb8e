"""Scoring the sessions of a stored run again, from what their agents left. No model runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from tugline.core.contracts import Verdict
from tugline.core.errors import RunError, TuglineError, describe
from tugline.core.session import FAILURE_OF, Ended, Judging, Outcome, SessionState
from tugline.core.task import Task
from tugline.core.trace import Trajectory
from tugline.rollout import submission
from tugline.rollout.judging import Judged
from tugline.rollout.judging import Judging as Judges
from tugline.rollout.transitions import last_attempts


class Run(Protocol):
    """The slice of a run store that is read."""

    def sessions(self) -> list[tuple[SessionState, float]]: ...
    def states(self, session_id: str) -> list[SessionState]: ...


class Writable(Run, Protocol):
    """And the slice that is written when the new verdicts are to stand."""

    def trajectory(self, session_id: str) -> Trajectory | None: ...
    async def put_session(self, state: SessionState) -> None: ...
    async def put_trajectory(self, trajectory: Trajectory) -> None: ...
    async def put_verdict(self, session_id: str, verdict: Verdict) -> None: ...


@dataclass(frozen=True, slots=True)
class Again:
    """One session. `skipped`: why it was not judged, or why there was no verdict."""

    session_id: str
    task_id: str
    before: float | None
    after: float | None
    marks: tuple[str, ...] = ()
    skipped: str | None = None
    judged: Judged | None = None

    def as_json(self) -> dict[str, object]:
        """Part of `tugline rejudge --json`."""
        parts = dict(self.judged.verdict.parts) if self.judged else {}
        return {
            "session": self.session_id, "task": self.task_id, "before": self.before, "after": self.after,
            "parts": parts, "marks": list(self.marks), "skipped": self.skipped,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rejudge:
    """`seconds`: the judge's time where a task sets none. `name`: of the folder below each session's that gets the
    verifier's files."""

    judges: Judges
    tasks: Mapping[str, Task]
    sessions_dir: Path
    seconds: float
    name: str
    jobs: int = 2

    async def run(self, store: Run, seen: Callable[[Again], None]) -> list[Again]:
        """The newest attempts that ended, in the store's order."""
        states = [s for s in last_attempts([state for state, _ in store.sessions()]).values() if isinstance(s, Ended)]
        slots = asyncio.Semaphore(self.jobs)

        async def one(state: Ended) -> Again:
            async with slots:
                again = await self._one(state)
            seen(again)
            return again

        return list(await asyncio.gather(*(one(state) for state in states)))

    async def _one(self, state: Ended) -> Again:
        key = state.key
        made = Again(key.session_id, key.task_id, state.reward, None)
        task = self.tasks.get(key.task_id)
        if task is None:
            return replace(made, skipped="its task was not given and is not where it was")
        folder = self.sessions_dir / key.session_id
        try:
            work = await asyncio.to_thread(submission.stored, folder / "submission")
            judged = await self.judges.again(task, work, task.budgets.judge or self.seconds, folder / self.name)
        except RunError:
            return replace(made, skipped=f"{state.outcome.value}: nothing was kept of its work")
        except TuglineError as err:
            return replace(made, skipped=describe(err))
        return replace(made, after=judged.verdict.reward, marks=judged.marks, judged=judged)


async def make_stand(store: Writable, agains: Sequence[Again]) -> int:
    """Replace the rewards of what was judged again, in the sessions and in their rows. Returns how many changed."""
    changed = 0
    for again in agains:
        if again.judged is None:
            continue
        states = store.states(again.session_id)
        ended = states[-1]
        if not isinstance(ended, Ended):
            continue
        verdict = again.judged.verdict
        parts = tuple(sorted(verdict.parts.items()))
        outcome = ended.outcome
        if outcome is Outcome.JUDGE_FAILED:
            outcome = next((s.agent_outcome for s in reversed(states) if isinstance(s, Judging)), Outcome.COMPLETED)
        fresh = Ended(ended.key, outcome, verdict.reward, parts, ended.reason if outcome is ended.outcome else None,
                      again.marks)  # fmt: skip
        if fresh == ended:
            continue
        changed += 1
        trajectory = store.trajectory(again.session_id)
        if trajectory is not None:
            await store.put_trajectory(_with_reward(trajectory, fresh))
        await store.put_verdict(again.session_id, verdict)
        await store.put_session(fresh)
    return changed


def _with_reward(trajectory: Trajectory, state: Ended) -> Trajectory:
    return replace(
        trajectory,
        outcome=state.outcome,
        failure=FAILURE_OF[state.outcome],
        reward=state.reward,
        reward_parts=dict(state.reward_parts),
    )
