"""Gateways under test: how a session of one is opened, reached and closed, and what it shows of its records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import msgspec

from tugline.core.errors import RunError, boundary
from tugline.core.trace import Trace
from tugline.rollout.control_client import ControlClient
from tugline.testing.exactness.agent import Line
from tugline.testing.exactness.clients import CLIENTS
from tugline.testing.exactness.reach import ask, not_json, refusal
from tugline.testing.exactness.records import Kept, harvest, of_trace

RECORD_TRIES = 5
"""Gateways may write their records a moment after the reply."""


class Subject(Protocol):
    """A gateway."""

    async def open(self, session: str) -> Line:
        """A new session of that name. Raises TuglineError."""
        ...

    async def close(self, session: str) -> Sequence[Kept] | None:
        """End it: what was recorded; None = this gateway shows no records."""
        ...


@dataclass(slots=True)
class AnyGateway:
    """A gateway behind a URL. `{session}` in any text stands for the session, `{dialect}` for the API's name.

    `opener` is posted to for a new session; what its reply calls `session_id` or `id` is the session. Without it the
    suite's own name is. `records` is asked with GET at the end; any JSON that holds calls or rows with ids will do.
    """

    http: httpx.AsyncClient
    url: str
    model: str
    key: str = "none"
    records: str | None = None
    opener: str | None = None
    patience: float = 30.0
    _names: dict[str, str] = field(default_factory=dict)

    async def open(self, session: str) -> Line:
        """Raises RunError when the opener gives no session."""
        name = self._names[session] = session if self.opener is None else await self._opened(self.opener)
        bases = {api: self.url.replace("{session}", name).replace("{dialect}", api) for api in CLIENTS}
        return Line(bases, self.key.replace("{session}", name), self.model, self.patience)

    async def close(self, session: str) -> Sequence[Kept] | None:
        """Raises RunError when the records cannot be read."""
        if self.records is None:
            return None
        url = self.records.replace("{session}", self._names[session])
        found: list[Kept] = []
        for _ in range(RECORD_TRIES):
            told = await self._json("GET", url, self._names[session])
            with boundary(RunError, f"{url}: records of a shape of their own"):
                found = list(harvest(told))
            if found:
                break
            await asyncio.sleep(0.1)
        return found

    async def _opened(self, url: str) -> str:
        reply = await self._json("POST", url)
        name = (reply.get("session_id") or reply.get("id")) if isinstance(reply, dict) else None
        if not isinstance(name, str):
            raise RunError(f"{url} gave no session_id: {reply!r}"[:300])
        return name

    async def _json(self, method: str, url: str, name: str = "") -> Any:
        key = self.key.replace("{session}", name)
        headers = {"authorization": f"Bearer {key}"} if key else {}
        got = await ask(self.http, method, url, headers=headers, seconds=self.patience)
        if not 200 <= got.status < 300:
            raise RunError(refusal(method, url, got))
        try:
            return msgspec.json.decode(got.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as err:
            raise RunError(f"{method} {url}: {not_json(got) or f'no JSON: {err}'}") from err


class TuglineGateway:
    """A running `tugline gateway`, through its control plane."""

    def __init__(self, run: Path, model: str = "policy", patience: float = 30.0) -> None:
        """Raises RunError when no gateway runs on that directory."""
        self._control = ControlClient.of_run(run)
        self._model, self._patience = model, patience
        self._ids: dict[str, str] = {}

    @classmethod
    async def when_there(cls, run: Path, model: str, *, patience: float, wait: float) -> TuglineGateway:
        """As soon as a gateway answers on that directory, `wait` seconds at most. Raises RunError."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        while True:
            try:
                made = await asyncio.to_thread(cls, run, model, patience)
                await asyncio.to_thread(made._control.metrics)
            except RunError:
                if loop.time() >= end:
                    raise
                await asyncio.sleep(0.3)
            else:
                return made

    async def open(self, session: str) -> Line:
        """A session without limits of turns."""
        opened = await asyncio.to_thread(self._control.open, name=session, max_tokens=4000)
        self._ids[session] = opened["session"]
        openai = opened["openai"]
        bases = {"chat": openai, "responses": openai, "anthropic": opened["anthropic"], "gemini": opened["gemini"]}
        return Line(bases, opened["key"], self._model, self._patience)

    async def close(self, session: str) -> Sequence[Kept] | None:
        """The rows that train."""
        own = self._ids[session]
        await asyncio.to_thread(self._control.end, own, 1.0)
        found = await asyncio.to_thread(self._control.trajectory, own)
        return rows(found.traces)


def rows(traces: Sequence[Trace]) -> list[Kept]:
    """Rows of ours."""
    return [of_trace(trace) for trace in traces]
