"""Gateways under test: how a session of one is opened, reached and closed, and what it shows of its records."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import httpx
import msgspec

from tugline.core.errors import RunError, TuglineError, describe
from tugline.core.trace import Trace
from tugline.rollout.control_client import ControlClient
from tugline.testing.exactness.agent import Line
from tugline.testing.exactness.clients import CLIENTS
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


@dataclass(frozen=True, slots=True)
class AnyGateway:
    """A gateway behind a URL. `{session}` in any text stands for the session's name, `{dialect}` for the API's.

    `records` is asked with GET at the end; any JSON that holds calls or rows with ids will do.
    """

    http: httpx.AsyncClient
    url: str
    model: str
    key: str = "none"
    records: str | None = None
    patience: float = 30.0

    async def open(self, session: str) -> Line:
        """Nothing is to be opened."""
        bases = {name: self.url.replace("{session}", session).replace("{dialect}", name) for name in CLIENTS}
        return Line(bases, self.key.replace("{session}", session), self.model, self.patience)

    async def close(self, session: str) -> Sequence[Kept] | None:
        """Raises RunError when the records cannot be read."""
        if self.records is None:
            return None
        url = self.records.replace("{session}", session)
        found: list[Kept] = []
        for _ in range(RECORD_TRIES):
            try:
                response = await self.http.get(url, headers={"authorization": f"Bearer {self.key}"})
                response.raise_for_status()
                found = list(harvest(msgspec.json.decode(response.content)))
            except (httpx.HTTPError, msgspec.DecodeError) as err:
                raise RunError(f"no records at {url}: {describe(err)}") from err
            if found:
                break
            await asyncio.sleep(0.1)
        return found


class TuglineGateway:
    """A running `tugline gateway`, through its control plane."""

    def __init__(self, run: Path, model: str = "policy", patience: float = 30.0) -> None:
        """Raises RunError when no gateway runs on that directory."""
        self._control = ControlClient.of_run(run)
        self._model, self._patience = model, patience
        self._ids: dict[str, str] = {}

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


@asynccontextmanager
async def http_client() -> AsyncIterator[httpx.AsyncClient]:
    """No proxy of the environment stands between the suite and a gateway given by address."""
    limits = httpx.Limits(max_keepalive_connections=8)
    async with httpx.AsyncClient(timeout=None, trust_env=False, limits=limits) as client:
        yield client


async def wait_for(http: httpx.AsyncClient, url: str, seconds: float) -> None:
    """Until somebody answers at a URL, whatever he says. Raises RunError."""
    base = url.replace("{session}", "none").replace("{dialect}", "chat")
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        try:
            await http.get(base, timeout=5.0)
        except httpx.InvalidURL as err:
            raise RunError(f"{url!r} is no URL: {err}") from err
        except httpx.HTTPError as err:
            if loop.time() >= end:
                raise RunError(f"nobody answers at {base} ({describe(err)})") from err
            await asyncio.sleep(0.3)
        else:
            return


__all__ = ["AnyGateway", "Subject", "TuglineError", "TuglineGateway", "http_client", "rows", "wait_for"]
