"""The last step of every session: its rows become durable before its end does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tugline.core.session import Ended
from tugline.core.trace import Trajectory
from tugline.core.turn import CallRecord, Turn
from tugline.rollout.spec import RunState

Build = Callable[[Ended, Sequence[Turn], Sequence[CallRecord]], Trajectory]


async def finish(store: RunState, build: Build | None, state: Ended) -> None:
    """Build the rows, then make the end durable: a session that has ended always has its rows.

    Raises StoreError, and VerifyError when the records cannot be read; the session has then not ended.
    """
    if build is not None:
        session_id = state.key.session_id
        turns = await store.load_turns(session_id)
        calls = await asyncio.to_thread(store.iter_calls, session_id)
        trajectory = await asyncio.to_thread(build, state, turns, calls)
        await store.put_trajectory(trajectory)
    await store.put_session(state)
