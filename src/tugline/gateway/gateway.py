"""The gateway as one object: opens and closes sessions, owns listeners and workers."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tugline.core.contracts import Access, CallLog, Dialect, Engine, Policy, SessionCalls
from tugline.core.errors import RunError
from tugline.forest.forest import Forest
from tugline.gateway.app import GatewayApp, Router
from tugline.gateway.delivery import Delivery, Timing
from tugline.gateway.exchange import Deps
from tugline.gateway.metrics import Metrics
from tugline.gateway.secrets import SecretTable
from tugline.gateway.server import Listener, bind, listen
from tugline.gateway.session import OpenSession
from tugline.gateway.upstream import RetryPolicy
from tugline.tokens.model import ChatModel


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """How a gateway listens. `advertise` is the host name given to agents outside an isolating sandbox."""

    host: str = "127.0.0.1"
    port: int = 0
    max_body: int = 32 << 20
    timing: Timing = field(default_factory=Timing)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    workers: int = 2
    rerender: bool = False


class LocalGateway:
    """Implements core SessionGate in this process."""

    def __init__(
        self,
        engine: Engine,
        model: ChatModel,
        log: CallLog,
        dialects: Sequence[Dialect],
        options: GatewayOptions = GatewayOptions(),
    ) -> None:
        self.metrics = Metrics()
        self._options = options
        self._log = log
        self._model = model
        self._pool = ThreadPoolExecutor(options.workers, thread_name_prefix="tugline-tokens")
        deps = Deps(engine, model, log, self.metrics, self._pool, options.retry, options.rerender)
        self._engine = engine
        self._secrets = SecretTable()
        self._sessions: dict[str, OpenSession] = {}
        self._closed: dict[str, SessionCalls] = {}
        self._delivery = Delivery(deps, options.timing)
        self._app = GatewayApp(
            Router(tuple(dialects)),
            self._secrets,
            self._sessions,
            self._delivery,
            lambda: (engine.info.model, engine.info.context),
            options.max_body,
        )
        self._listener: Listener | None = None
        self._lag: asyncio.Task[None] | None = None

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
        self._lag = asyncio.ensure_future(self._watch_loop())
        return self._listener.port

    @property
    def url(self) -> str:
        """Base URL without secret."""
        if self._listener is None:
            raise RunError("the gateway has not been started")
        return f"http://{self._options.host}:{self._listener.port}"

    async def open(self, session_id: str, policy: Policy) -> Access:
        """Start a session; turns already stored under this id are restored."""
        turns = await self._log.load_turns(session_id)
        forest = Forest.restore(session_id, self._model.digest, turns)
        self._sessions[session_id] = OpenSession(session_id, policy, forest)
        self.metrics.sessions.set(len(self._sessions))
        secret = self._secrets.issue(session_id)
        return Access(session_id, secret, self.url, f"{self.url}/s/{secret}")

    async def serve(self, session_id: str, listener: socket.socket) -> Callable[[], Awaitable[None]]:
        """Whoever connects through this socket is `session_id`."""
        served = await listen(self._app.bound(session_id), listener, one_agent=True)
        return served.close

    async def close(self, session_id: str) -> SessionCalls:
        """End a session: refuse new calls, abort running ones, seal its record."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return self._closed.get(session_id, SessionCalls({}, 0, 0, 0, None))
        session.closing = True
        self._secrets.revoke(session_id)
        for task in list(session.tasks):
            task.cancel()
        if session.tasks:
            await asyncio.wait(list(session.tasks), timeout=5)
        self._delivery.forget(session)
        await self._engine.release(session_id)
        await self._log.seal(session_id)
        self.metrics.sessions.set(len(self._sessions))
        self._closed[session_id] = summary = session.summary()
        return summary

    async def stop(self) -> None:
        """Close every session, listener and worker. Idempotent."""
        for session_id in list(self._sessions):
            await self.close(session_id)
        if self._lag:
            self._lag.cancel()
            self._lag = None
        if self._listener:
            await self._listener.close()
            self._listener = None
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _watch_loop(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.1)
            self.metrics.loop_lag.observe(max(0.0, time.perf_counter() - begun - 0.1))
