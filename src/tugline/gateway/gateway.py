"""The gateway as one object: opens and closes sessions, owns listeners and workers."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from tugline.core.contracts import Access, CallLog, Dialect, Engine, Measured, Observed, Policy, RoleRule, SessionCalls
from tugline.core.errors import ConfigError, EngineError, RunError
from tugline.forest.forest import Forest
from tugline.gateway.app import GatewayApp, Router
from tugline.gateway.delivery import Delivery
from tugline.gateway.egress import Proxy
from tugline.gateway.metrics import Metrics
from tugline.gateway.prompt import Deps
from tugline.gateway.restored import remember
from tugline.gateway.running import Timing
from tugline.gateway.secrets import SecretTable
from tugline.gateway.server import Listener, bind, listen
from tugline.gateway.session import Lane, OpenSession
from tugline.gateway.upstream import RetryPolicy
from tugline.tokens.model import ChatModel

EVERY_ADDRESS = ("", "0.0.0.0", "::")
ENDED = 4096
"""Ended sessions whose call counts are kept for whoever closes them again."""


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """How a gateway listens. `advertise` is the host name given to agents outside an isolating sandbox."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str | None = None
    """None: `host`, or this machine's own name where `host` means every address."""
    max_body: int = 32 << 20
    timing: Timing = field(default_factory=Timing)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    workers: int = 2
    rerender: bool = False
    streaming: Literal["buffered", "live"] = "buffered"
    """Whether streams begin when a reply is whole, or show it while it is sampled."""
    look: float = 5.0
    """Seconds between two questions to an engine how busy it is."""


@dataclass(frozen=True, slots=True)
class Seat:
    """An engine beside the policy and its chat model: a teacher, a judge, a utility model."""

    engine: Engine
    model: ChatModel


class LocalGateway:
    """Implements core SessionGate in this process."""

    def __init__(  # noqa: PLR0913 - the last two are asked for by name
        self,
        engine: Engine,
        model: ChatModel,
        log: CallLog,
        dialects: Sequence[Dialect],
        options: GatewayOptions = GatewayOptions(),
        *,
        others: Mapping[str, Seat] = MappingProxyType({}),
        roles: Sequence[RoleRule] = (),
    ) -> None:
        """`others`: engines that sessions may route model names to. The caller starts and closes every engine.
        `roles`: what is known of the requests of certain harnesses; without a rule their form alone decides."""
        self.metrics = Metrics()
        self._options = options
        self._log = log
        self._model = model
        self._pool = ThreadPoolExecutor(options.workers, thread_name_prefix="tugline-tokens")
        deps = Deps(engine, model, log, self.metrics, self._pool, options.retry, options.rerender)
        self._lanes = {"": deps, **{n: replace(deps, engine=s.engine, model=s.model) for n, s in others.items()}}
        self._secrets = SecretTable()
        self._sessions: dict[str, OpenSession] = {}
        self._closed: dict[str, SessionCalls] = {}
        timing = replace(options.timing, live=options.streaming == "live")
        self._delivery = Delivery(self._lanes, timing, roles)
        self._app = GatewayApp(
            Router(tuple(dialects)),
            self._secrets,
            self._sessions,
            self._delivery,
            lambda: (engine.info.model, engine.info.context),
            options.max_body,
        )
        engines = {name or "policy": lane.engine for name, lane in self._lanes.items()}
        self.metrics.readings.engines.update({n: each for n, each in engines.items() if isinstance(each, Observed)})
        self._listener: Listener | None = None
        self._watching: list[asyncio.Task[None]] = []

    async def start(self) -> int:
        """Listen for agents outside isolating sandboxes; the bound port. Raises RunError when it is taken."""
        try:
            sock = bind(self._options.host, self._options.port)
        except OSError as err:
            raise RunError(
                f"cannot listen on {self._options.host}:{self._options.port}: {os.strerror(err.errno or 0)}; "
                "another run may own the port (use --port 0 for a free one)"
            ) from err
        self._listener = await listen(self._app, sock)
        engines = {name or "policy": deps.engine for name, deps in self._lanes.items()}
        self._watching = [asyncio.ensure_future(self._watch_loop())]
        self._watching += [
            asyncio.ensure_future(self._watch_engine(name, engine))
            for name, engine in engines.items()
            if isinstance(engine, Measured)
        ]
        return self._listener.port

    @property
    def url(self) -> str:
        """Base URL without secret."""
        if self._listener is None:
            raise RunError("the gateway has not been started")
        host = self._options.advertise or self._options.host
        if host in EVERY_ADDRESS:
            host = socket.gethostname()
        return f"http://{f'[{host}]' if ':' in host else host}:{self._listener.port}"

    async def open(self, session_id: str, policy: Policy) -> Access:
        """Start a session; turns already stored under this id are restored. Raises ConfigError for a route to an
        engine that is not here."""
        for route in policy.routes:
            if route.engine not in self._lanes:
                known = ", ".join(sorted(name for name in self._lanes if name)) or "none"
                raise ConfigError(f"no engine {route.engine[:80]!r}; there are: {known}", where=route.pattern[:80])
        turns = await self._log.load_turns(session_id)
        lanes = {
            name: Lane(
                name, Forest.restore(session_id, deps.model.digest, [turn for turn in turns if turn.engine == name])
            )
            for name, deps in self._lanes.items()
        }
        self._sessions[session_id] = session = OpenSession(session_id, policy, lanes)
        if turns:
            session.waiting = remember(lanes, turns, await self._log.load_calls(session_id))
            self._delivery.forgotten(session.waiting.values())
        self.metrics.sessions.set(len(self._sessions))
        secret = self._secrets.issue(session_id)
        return Access(session_id, secret, self.url, f"{self.url}/s/{secret}")

    async def serve(self, session_id: str, listener: socket.socket) -> Callable[[], Awaitable[None]]:
        """Whoever connects through this socket is `session_id`."""
        session = self._sessions.get(session_id)
        egress = session.policy.egress if session is not None else None
        proxy = Proxy(egress) if egress is not None and egress.hosts else None
        served = await listen(self._app.bound(session_id), listener, one_agent=True, proxy=proxy)
        return served.close

    async def close(self, session_id: str) -> SessionCalls:
        """End a session: refuse new calls, abort running ones, seal its record. Again after an error: seals it, and
        tells the same. Raises EngineError, StoreError."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            known = self._closed.get(session_id)
            if known is not None:
                await self._log.seal(session_id)
            return known or SessionCalls({}, 0, 0, 0, None)
        session.closing = True
        self._secrets.revoke(session_id)
        for task in list(session.tasks):
            task.cancel()
        if session.tasks:
            await asyncio.wait(list(session.tasks), timeout=5)
        await self._delivery.settled(session)
        self._delivery.forget(session)
        self.metrics.sessions.set(len(self._sessions))
        self._closed[session_id] = summary = session.summary()  # before what may fail: whoever ends it asks again
        while len(self._closed) > ENDED:
            self._closed.pop(next(iter(self._closed)))
        for deps in self._lanes.values():
            await deps.engine.release(session_id)
        await self._log.seal(session_id)
        return summary

    async def stop(self) -> None:
        """Close every session, listener and worker. Idempotent."""
        for session_id in list(self._sessions):
            await self.close(session_id)
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._watching = []
        if self._listener:
            await self._listener.close()
            self._listener = None
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _watch_loop(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.1)
            self.metrics.loop_lag.observe(max(0.0, time.perf_counter() - begun - 0.1))

    async def _watch_engine(self, name: str, engine: Measured) -> None:
        """Ask an engine how busy it is, again and again, beside all calls."""
        loads = self.metrics.loads.known
        while True:
            try:
                loads[name] = await engine.load()
            except EngineError:
                loads.pop(name, None)
            await asyncio.sleep(self._options.look)
