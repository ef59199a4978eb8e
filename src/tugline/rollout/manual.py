"""Sessions of agents that people run themselves: opened and ended by whoever holds the control token.

Owns the open sessions of one gateway process. What has ended is only in the store, so nothing grows with time. Secrets
pass through once, to the opener.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tugline.core.contracts import Policy, SessionCalls, SessionGate
from tugline.core.errors import BadRequest, Conflict, NotFound, Overloaded, TuglineError, describe
from tugline.core.ident import new_id
from tugline.core.session import FAILURE_OF, Ended, Failure, Outcome, Running, SessionKey, SessionState, state_name
from tugline.core.trace import Trajectory
from tugline.core.turn import Turn
from tugline.rollout.endpoints import OpenedSession, opened
from tugline.rollout.finish import Build, finish
from tugline.rollout.options import Ending, SessionOptions, check_ending, check_options, policy_for
from tugline.rollout.spec import RunState
from tugline.rollout.transitions import recover, told_end
from tugline.rollout.views import Page, SessionReport, SessionView, usage_of, view_of, wants

GROUPS = 4096
"""Groups whose next index is remembered; of others it is read from the store."""
PAGE = 1000
RETRY_SECONDS = 5.0
"""After which an end that nobody waits for is tried again when it could not be stored."""


class SessionStore(RunState, Protocol):
    """The slice of the run store that these sessions use."""

    def session(self, session_id: str) -> tuple[SessionState, float] | None: ...
    def page(
        self, limit: int, after: str = "", group: str | None = None, keep: Callable[[SessionState], bool] | None = None
    ) -> list[tuple[SessionState, float]]: ...
    def history(self, session_id: str) -> list[tuple[str, float]]: ...
    def trajectory(self, session_id: str) -> Trajectory | None: ...
    def about(self, session_id: str) -> Any: ...
    async def put_about(self, session_id: str, value: object) -> None: ...
    async def delete_session(self, session_id: str) -> None: ...


@dataclass(eq=False, slots=True)
class _Open:
    """One open session. `calls` is known from the moment its gate was closed."""

    key: SessionKey
    about: dict[str, object]
    timer: asyncio.TimerHandle | None = None
    ending: asyncio.Task[Ended] | None = None
    asked: Ending | None = None
    calls: SessionCalls | None = None


@dataclass(slots=True)
class _Group:
    task: str
    next: int = 0


@dataclass(slots=True)
class _Groups:
    """The next index of each group. Asked one at a time, so that two sessions never get the same."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    known: OrderedDict[str, _Group] = field(default_factory=OrderedDict)


class ManualSessions:
    """Opens, ends, shows and removes sessions. Use from one event loop."""

    def __init__(
        self,
        gate: SessionGate,
        store: SessionStore,
        build: Build,
        policy: Policy,
        *,
        engines: Collection[str] = (),
        on_state: Callable[[SessionState], None] = lambda _state: None,
    ) -> None:
        """`policy` is what sessions get that ask for nothing; `engines` are those that calls can be routed to."""
        self._gate = gate
        self._store = store
        self._build = build
        self._policy = policy
        self._engines = frozenset(engines)
        self._on_state = on_state
        self._open: dict[str, _Open] = {}
        self._groups = _Groups()
        self._stopping = False

    @property
    def open_count(self) -> int:
        """Sessions open now."""
        return len(self._open)

    async def recover(self) -> int:
        """End what a dead process left open as node_lost, and as it was being ended where that had been noted; how many
        were lost. Call before the first `open`."""
        lost = 0
        for state, _ in await asyncio.to_thread(
            self._store.page, 1 << 31, "", None, lambda s: not isinstance(s, Ended)
        ):
            lost_end = recover(state)
            if lost_end is not None:
                await self._store.seal(state.key.session_id)
                about = await asyncio.to_thread(self._store.about, state.key.session_id) or {}
                noted = _noted_end(state.key, about)
                await self._finish(noted or lost_end)
                lost += noted is None
        return lost

    async def open(self, options: SessionOptions | None = None) -> OpenedSession:
        """Start a session under a fresh id and secret. Raises BadRequest, Conflict, StoreError, Overloaded."""
        options = options or SessionOptions()
        check_options(options, self._engines)
        if self._stopping:
            raise Overloaded("the gateway is stopping")
        key = await self._new_key(options)
        about: dict[str, object] = {
            "name": options.name,
            "metadata": dict(options.metadata),
            "options": _asked(options),
        }
        live = _Open(key, about)
        self._open[key.session_id] = live
        try:
            await asyncio.gather(self._store.put_about(key.session_id, about), self._store.put_session(Running(key)))
            access = await self._gate.open(key.session_id, policy_for(options, self._policy))
        except BaseException as err:
            await asyncio.shield(self._abandon(live, describe(err)))
            raise
        if key.session_id not in self._open:  # everything was closed meanwhile
            await self._gate.close(key.session_id)
            raise Overloaded("the gateway is stopping")
        self._on_state(Running(key))
        if options.ttl is not None:
            self._later(live, options.ttl, Ending(outcome=Outcome.AGENT_TIMEOUT, reason=f"open for {options.ttl:g} s"))
        return opened(access, key.group_id, key.task_id, key.index, options.name)

    async def end(self, session_id: str, ending: Ending | None = None) -> SessionView:
        """End a session: running calls are aborted, rows are built, then the end is durable. Saying the same again is
        nothing. Raises BadRequest, NotFound, Conflict (it has ended otherwise), StoreError (try again)."""
        ending = ending or Ending()
        check_ending(ending)
        live = self._open.get(session_id)
        if live is not None:
            await self._end(live, ending)
        return await asyncio.to_thread(self._ended_view, session_id, ending)

    async def delete(self, session_id: str) -> bool:
        """Cancel an open session (False), or remove the records of one that has ended (True). Raises NotFound."""
        live = self._open.get(session_id)
        if live is not None and live.ending is None:
            await self._end(live, Ending(outcome=Outcome.CANCELLED, reason="cancelled by request"))
            return False
        if live is not None and live.ending is not None:
            await asyncio.shield(live.ending)
        state, _ = await asyncio.to_thread(self._state, session_id)
        if not isinstance(state, Ended):
            raise Conflict(_foreign(state), code="session_open")
        await self._store.delete_session(session_id)
        return True

    async def trajectory(self, session_id: str) -> Trajectory:
        """Rows and reward of an ended session. Raises NotFound, Conflict while it is open."""
        return await asyncio.to_thread(self._trajectory, session_id)

    async def show(self, session_id: str) -> SessionReport:
        """State, calls by outcome, turns and tokens. Raises NotFound."""
        turns = await self._store.load_turns(session_id)
        return await asyncio.to_thread(self._report, session_id, turns)

    async def list(
        self, *, state: str | None = None, group: str | None = None, limit: int = 100, after: str = ""
    ) -> Page:
        """Sessions in order of creation, behind the id `after`. `state`: open, ended, or a state's own name.
        Raises BadRequest."""
        if not 1 <= limit <= PAGE:
            raise BadRequest(f"{limit} is outside 1 .. {PAGE}", path="limit")
        keep = wants(state)
        return await asyncio.to_thread(self._page, limit, after, group, keep)

    async def close(self) -> int:
        """End every open session as cancelled and open no more; how many there were. Idempotent."""
        self._stopping = True
        left = list(self._open.values())
        cancel = Ending(outcome=Outcome.CANCELLED, reason="the gateway was stopped")
        ends = await asyncio.gather(*(self._end(live, cancel) for live in left), return_exceptions=True)
        failed = [e for e in ends if isinstance(e, BaseException) and not isinstance(e, Conflict)]
        if failed:
            raise failed[0]
        return len(left)

    # ------------------------------------------------------------------------------------------------- inside

    async def _new_key(self, options: SessionOptions) -> SessionKey:
        session_id = new_id("ses")
        if options.group is None:
            return SessionKey(session_id, session_id.replace("ses_", "grp_"), options.task or "manual", 0)
        async with self._groups.lock:
            known = self._groups.known.get(options.group)
            if known is None:
                known = await asyncio.to_thread(self._stored_group, options.group)
            if known is None:
                known = _Group(options.task or "manual")
            if options.task is not None and options.task != known.task:
                raise Conflict(f"group {options.group} is of task {known.task!r}: sessions of one group try one task")
            self._groups.known[options.group] = known
            self._groups.known.move_to_end(options.group)
            while len(self._groups.known) > GROUPS:
                self._groups.known.popitem(last=False)
            known.next += 1
            return SessionKey(session_id, options.group, known.task, known.next - 1)

    def _stored_group(self, group: str) -> _Group | None:
        keys = [state.key for state, _ in self._store.page(1 << 31, "", group)]
        return _Group(keys[0].task_id, 1 + max(key.index for key in keys)) if keys else None

    async def _abandon(self, live: _Open, why: str) -> None:
        """A session that could not be opened: nobody has its secret."""
        await self._gate.close(live.key.session_id)
        try:
            await self._finish(Ended(live.key, Outcome.BOOT_FAILED, reason=why))
        except TuglineError:
            pass  # the store that refused the session refuses its end too; the next start finds it, if it is there
        finally:
            self._open.pop(live.key.session_id, None)

    async def _end(self, live: _Open, ending: Ending) -> Ended:
        """The one end of a session: whoever comes second waits for it, and is refused by its result."""
        if live.ending is None:
            live.asked = ending
            live.ending = asyncio.ensure_future(self._run_end(live, ending))
        elif live.asked is not None and not live.asked.same(ending):
            await asyncio.shield(live.ending)
            raise Conflict(_differs(live.key.session_id, live.asked))
        return await asyncio.shield(live.ending)

    async def _run_end(self, live: _Open, ending: Ending) -> Ended:
        if live.timer is not None:
            live.timer.cancel()
        session_id = live.key.session_id
        try:
            if live.calls is None:
                live.calls = await self._gate.close(session_id)
            end = told_end(ending.outcome, ending.reason, live.calls)
            parts = tuple(sorted((name, float(value)) for name, value in ending.parts.items()))
            reward = None if ending.reward is None else float(ending.reward)
            judged = end.judge
            state = Ended(live.key, end.outcome, reward if judged else None, parts if judged else (), end.reason)
            await self._store.put_about(session_id, {**live.about, "asked": _told(ending), "end": _end_note(state)})
            await self._finish(state)
        except BaseException:
            live.ending = live.asked = None  # the calls are over, the end can be said again
            raise
        self._open.pop(session_id, None)
        return state

    async def _finish(self, state: Ended) -> None:
        await finish(self._store, self._build, state)
        self._on_state(state)

    def _later(self, live: _Open, seconds: float, ending: Ending) -> None:
        def due() -> None:
            live.timer = None
            if live.key.session_id in self._open and live.ending is None:
                task = asyncio.ensure_future(self._end(live, ending))
                task.add_done_callback(settled)

        def settled(task: asyncio.Task[Ended]) -> None:
            if not task.cancelled() and task.exception() is not None and not self._stopping:
                self._later(live, RETRY_SECONDS, ending)

        live.timer = asyncio.get_running_loop().call_later(seconds, due)

    def _state(self, session_id: str) -> tuple[SessionState, float]:
        found = self._store.session(session_id)
        if found is None:
            raise NotFound(f"no session {session_id[:100]!r}")
        return found

    def _ended_view(self, session_id: str, ending: Ending) -> SessionView:
        """An ended session, if it ended the way that is asked for."""
        state, wall = self._state(session_id)
        if not isinstance(state, Ended):
            raise Conflict(_foreign(state), code="session_open")
        about = self._store.about(session_id) or {}
        asked = _from_told(about.get("asked")) or Ending(state.reward, dict(state.reward_parts), state.outcome)
        if not asked.same(ending):
            raise Conflict(_differs(session_id, asked), code="session_ended")
        return view_of(state, wall, about)

    def _report(self, session_id: str, turns: Sequence[Turn]) -> SessionReport:
        state, wall = self._state(session_id)
        about = self._store.about(session_id) or {}
        return SessionReport(
            view=view_of(state, wall, about),
            usage=usage_of(self._store.iter_calls(session_id), turns),
            history=tuple(self._store.history(session_id)),
            options=about.get("options") or {},
        )

    def _trajectory(self, session_id: str) -> Trajectory:
        state, _ = self._state(session_id)
        if not isinstance(state, Ended):
            raise Conflict(f"session {session_id} is open: end it first", code="session_open")
        found = self._store.trajectory(session_id)
        if found is None:
            raise NotFound(f"session {session_id} has no rows")
        return found

    def _page(self, limit: int, after: str, group: str | None, keep: Callable[[SessionState], bool]) -> Page:
        found = self._store.page(limit + 1, after, group, keep)
        views = tuple(view_of(s, wall, self._store.about(s.key.session_id) or {}) for s, wall in found[:limit])
        return Page(views, views[-1].session if len(found) > limit else None)


def _foreign(state: SessionState) -> str:
    return f"session {state.key.session_id} is {state_name(state)}, and not one that this gateway has opened"


def _asked(options: SessionOptions) -> dict[str, object]:
    """What was asked for and is not the default, for the record. Never a secret: there is none in the options."""
    plain = {name: getattr(options, name) for name in options.__slots__ if name not in ("name", "metadata", "routes")}
    plain["routes"] = [[r.pattern, r.engine] for r in options.routes] or None
    plain["edits"] = dict(options.edits) or None
    return {name: value for name, value in plain.items() if value is not None}


def _told(ending: Ending) -> dict[str, object]:
    return {"reward": ending.reward, "parts": dict(ending.parts), "outcome": ending.outcome.value}


def _from_told(told: Any) -> Ending | None:
    return None if told is None else Ending(told["reward"], told["parts"], Outcome(told["outcome"]))


def _end_note(state: Ended) -> dict[str, object]:
    """What an end comes to, noted before its rows are built: a process that dies in between has lost nothing."""
    return {
        "outcome": state.outcome.value,
        "reward": state.reward,
        "parts": dict(state.reward_parts),
        "reason": state.reason,
    }


def _noted_end(key: SessionKey, about: Mapping[str, Any]) -> Ended | None:
    note = about.get("end")
    if note is None:
        return None
    return Ended(key, Outcome(note["outcome"]), note["reward"], tuple(sorted(note["parts"].items())), note["reason"])


def _differs(session_id: str, asked: Ending) -> str:
    reward = "without a reward" if asked.reward is None else f"with reward {asked.reward:g}"
    judged = FAILURE_OF[asked.outcome] is not Failure.INFRA
    return f"session {session_id} has ended as {asked.outcome}{f' {reward}' if judged else ''}: it ends once"
