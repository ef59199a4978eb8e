"""A gateway for agents that people run themselves: engine, data plane, sessions, control plane, in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from tugline.cli.wiring import (
    check_routes,
    engine_for,
    gateway_options,
    make_trajectory,
    other_engines,
    policy_of,
    served_dialects,
    text_model,
    verdicts_of,
)
from tugline.config.types import Settings
from tugline.core.contracts import Engine
from tugline.core.errors import RunError
from tugline.core.session import Ended
from tugline.core.trace import Trajectory
from tugline.core.turn import CallRecord, Turn
from tugline.gateway.gateway import LocalGateway
from tugline.gateway.server import bind, listen
from tugline.harnesses.roles import RULES
from tugline.rollout.api.app import ControlPlane
from tugline.rollout.api.token import create_token
from tugline.rollout.control_file import TOKEN, Control, remove_control, write_control
from tugline.rollout.manual import ManualSessions
from tugline.store import RunStore


@dataclass(frozen=True, slots=True)
class Serving:
    """What runs. `lost`: sessions that a dead process had left open."""

    store: RunStore
    engine: Engine
    gateway: LocalGateway
    sessions: ManualSessions
    lost: int


@asynccontextmanager
async def serving(settings: Settings, store: RunStore) -> AsyncIterator[Serving]:
    """Engine, gateway and sessions. At the end open sessions are cancelled, then everything stops, in order.

    Raises ConfigError, EngineError, RunError for a port that is taken.
    """
    async with AsyncExitStack() as stack:
        engine = engine_for(settings, store.path)
        path, verdicts = engine.info.model_dir, verdicts_of(settings)
        model = await asyncio.to_thread(text_model, settings.engine, path, "", verdicts)
        check_routes(settings, ())
        stack.push_async_callback(engine.close)
        await engine.start()
        others = await stack.enter_async_context(other_engines(settings, store.path))
        options = gateway_options(settings)
        gateway = LocalGateway(engine, model, store, served_dialects(), options, others=others, roles=RULES)
        stack.push_async_callback(gateway.stop)

        def build(state: Ended, turns: Sequence[Turn], calls: Sequence[CallRecord]) -> Trajectory:
            return make_trajectory(state, list(turns), list(calls), engine.info.logprob_kind)

        sessions = ManualSessions(gateway, store, build, policy_of(settings), engines=others)
        lost = await sessions.recover()
        await gateway.start()
        stack.push_async_callback(sessions.close)
        yield Serving(store, engine, gateway, sessions, lost)


@dataclass(frozen=True, slots=True)
class ControlAddress:
    """Where the control plane listens; port 0 picks a free one."""

    host: str = "127.0.0.1"
    port: int = 0


@asynccontextmanager
async def control_plane(serving: Serving, where: ControlAddress) -> AsyncIterator[Control]:
    """The control plane of what serves, with its token and RUN/control.json. Raises RunError."""
    run = serving.store.path
    try:
        sock = bind(where.host, where.port)
    except OSError as err:
        raise RunError(
            f"cannot listen on {where.host}:{where.port}: {os.strerror(err.errno or 0)}; "
            "another program may own the port (use --control-port 0 for a free one)"
        ) from err
    token_file = run / TOKEN
    token = await asyncio.to_thread(create_token, token_file)
    plane = ControlPlane(serving.sessions, token, serving.gateway.metrics.text)
    listener = await listen(plane.app, sock)
    control = Control(
        url=f"http://{where.host}:{listener.port}",
        gateway=serving.gateway.url,
        token_file=str(token_file),
        pid=os.getpid(),
    )
    try:
        await asyncio.to_thread(write_control, run, control)
        yield control
    finally:
        await listener.close()
        await asyncio.to_thread(remove_control, run)
