"""The rollout service of one machine: bounded stages, durable transitions, retries, resumption."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tugline.core.contracts import Bundle, Sandbox
from tugline.core.errors import SandboxError, TuglineError, VerifierError, describe
from tugline.core.ident import new_id
from tugline.core.session import (
    Booting,
    Ended,
    Judging,
    Outcome,
    Queued,
    Ready,
    Running,
    SessionKey,
    SessionState,
)
from tugline.core.task import Task
from tugline.rollout import stages
from tugline.rollout.finish import finish
from tugline.rollout.spec import Parts, RolloutSpec
from tugline.rollout.transitions import last_attempts, next_attempt, recover


@dataclass(frozen=True, slots=True)
class Group:
    """The finished sessions of one task, in index order."""

    group_id: str
    task: Task
    sessions: tuple[Ended, ...]


class RolloutService:
    """Runs a spec to its end. Owns nothing durable: the store does, so a new process can go on."""

    def __init__(self, spec: RolloutSpec, parts: Parts) -> None:
        self._spec = spec
        self._parts = parts
        self._boot = asyncio.Semaphore(spec.concurrency.boot)
        self._run = asyncio.Semaphore(spec.concurrency.run)
        self._judge = asyncio.Semaphore(spec.concurrency.judge)
        self._held = asyncio.Semaphore(spec.concurrency.run + spec.concurrency.boot)
        """Sandboxes that exist at once: what runs, and a few ready ones behind it."""
        self._tasks = {task.task_id: task for task in spec.tasks}

    async def run(self) -> AsyncIterator[Group]:
        """Yield each group when its last session has ended. Sessions that had ended in an earlier process are kept."""
        bundle = await self._parts.harness.install(self._parts.cache, self._parts.say)
        open_slots, done = await self._plan()
        waiting: dict[str, list[Ended]] = defaultdict(list)
        for state in done:
            waiting[state.key.group_id].append(state)
        for group_id in list(waiting):
            if len(waiting[group_id]) == self._spec.n:
                yield self._group(waiting.pop(group_id))
        running = [asyncio.ensure_future(self._session(key, bundle)) for key in open_slots]
        try:
            for next_done in asyncio.as_completed(running):
                state = await next_done
                waiting[state.key.group_id].append(state)
                if len(waiting[state.key.group_id]) == self._spec.n:
                    yield self._group(waiting.pop(state.key.group_id))
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _plan(self) -> tuple[list[SessionKey], list[Ended]]:
        """(sessions to run, sessions already ended). Unfinished ones of a dead process are lost and tried again."""
        newest = last_attempts([state for state, _ in await asyncio.to_thread(self._parts.store.sessions)])
        todo: list[SessionKey] = []
        done: list[Ended] = []
        for task in self._spec.tasks:
            group_id = f"grp_{task.task_id}"
            for index in range(self._spec.n):
                state = newest.get((group_id, index))
                if state is None:
                    key = SessionKey(new_id("ses"), group_id, task.task_id, index)
                    await self._enter(Queued(key))
                    todo.append(key)
                elif isinstance(state, Ended):
                    again = next_attempt(state, self._spec.max_attempts)
                    if again is None:
                        done.append(state)
                    else:
                        todo.append(again)
                else:
                    lost = recover(state)
                    if lost is not None:
                        await self._finish(lost)
                        # a lost process says nothing about the attempt: it does not use up the retry budget
                        todo.append(SessionKey(new_id("ses"), group_id, task.task_id, index, state.key.attempt + 1))
        return todo, done

    async def _session(self, key: SessionKey, bundle: Bundle) -> Ended:
        """One slot of a group, with its infra retries."""
        while True:
            state = await self._attempt(key, bundle)
            await self._finish(state)
            again = next_attempt(state, self._spec.max_attempts)
            if again is None:
                return state
            await asyncio.sleep(min(5.0, 0.2 * 2**key.attempt))
            key = again

    async def _attempt(self, key: SessionKey, bundle: Bundle) -> Ended:
        task = self._tasks[key.task_id]
        box: Sandbox | None = None
        async with self._held:
            try:
                async with self._boot:
                    await self._enter(Booting(key))
                    box = await stages.boot(self._spec, self._parts, task, key)
                await self._enter(Ready(key))
                async with self._run:
                    await self._enter(Running(key))
                    ran = await stages.run(self._spec, self._parts, task, key, box, bundle)
                return await self._score(task, key, box, ran)
            except VerifierError as err:
                return Ended(key, Outcome.JUDGE_FAILED, reason=describe(err))
            except SandboxError as err:
                return Ended(key, Outcome.BOOT_FAILED, reason=describe(err))
            except TuglineError as err:
                return Ended(key, Outcome.ENGINE_FAILED, reason=describe(err))
            finally:
                if box is not None:
                    await stages.dispose(self._parts, box)

    async def _score(self, task: Task, key: SessionKey, box: Sandbox, ran: stages.Ran) -> Ended:
        if not ran.end.judge:
            return stages.ended(key, ran.end, None)
        async with self._judge:
            await self._enter(Judging(key, ran.end.outcome))
            judged = ran.judged
            if judged is None:
                judged = await stages.judge(self._spec, self._parts, task, key, box)
        return stages.ended(key, ran.end, judged)

    async def _enter(self, state: SessionState) -> None:
        await self._parts.store.put_session(state)
        self._parts.on_state(state)

    async def _finish(self, state: Ended) -> None:
        await finish(self._parts.store, self._parts.build, state)
        self._parts.on_state(state)

    def _group(self, sessions: list[Ended]) -> Group:
        ordered = tuple(sorted(sessions, key=lambda s: s.key.index))
        return Group(ordered[0].key.group_id, self._tasks[ordered[0].key.task_id], ordered)
