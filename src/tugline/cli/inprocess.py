"""`tugline.local_gateway`: engine, gateway and sessions in the caller's own process and event loop, for trainers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Unpack

from tugline.cli.flags import RunFlags, load_settings
from tugline.cli.runner import run_dir
from tugline.cli.serving import Serving, serving
from tugline.config.load import dump_toml
from tugline.core.contracts import EngineInfo, ModelRoute
from tugline.core.errors import ConfigError
from tugline.core.session import Outcome
from tugline.core.trace import Trajectory
from tugline.engines import LiveWeights
from tugline.engines.api import InFlight
from tugline.rollout.client import Options
from tugline.rollout.endpoints import OpenedSession
from tugline.rollout.gateway_process import StartOptions
from tugline.rollout.options import Ending, SessionOptions
from tugline.rollout.views import SessionView
from tugline.store import RunStore


class LocalGateway:
    """What `local_gateway` gives. Agents reach it over HTTP like any other gateway; you reach it by method."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    @property
    def run(self) -> Path:
        """The run directory."""
        return self._serving.store.path

    @property
    def engine(self) -> EngineInfo:
        """What samples, with its model directory."""
        return self._serving.engine.info

    async def open(self, **options: Unpack[Options]) -> OpenedSession:
        """A new session: id, key, URLs and environment. Raises BadRequest naming the option."""
        plain = {("engine" if name == "engine_name" else name): value for name, value in options.items()}
        routes: Any = plain.pop("routes", ())
        made = tuple(ModelRoute(route["pattern"], route["engine"]) for route in routes)
        return await self._serving.sessions.open(SessionOptions(**plain, routes=made))  # type: ignore[arg-type]  # checked there

    async def end(
        self,
        session: str,
        reward: float | None = None,
        *,
        parts: Mapping[str, float] | None = None,
        outcome: str = "completed",
        reason: str | None = None,
    ) -> SessionView:
        """End a session. Raises BadRequest, NotFound, Conflict, StoreError."""
        known = [o for o in Outcome if o.value == outcome]
        ending = Ending(reward, dict(parts or {}), known[0] if known else outcome, reason)  # type: ignore[arg-type]  # refused by name
        return await self._serving.sessions.end(session, ending)

    async def trajectory(self, session: str) -> Trajectory:
        """Rows and reward of an ended session."""
        return await self._serving.sessions.trajectory(session)

    async def load_weights(self, path: Path | str, version: int, in_flight: InFlight = "recompute") -> None:
        """From the next token on, sample with the weights at `path` (safetensors file or directory); the rows say from
        which token on the version is this one. Raises EngineError; ConfigError when the engine cannot."""
        if not isinstance(self._serving.engine, LiveWeights):
            raise ConfigError(f"the {self.engine.kind} engine takes no new weights", where="engine")
        await self._serving.engine.load_weights(Path(path), version, in_flight)


@asynccontextmanager
async def local_gateway(**start: Unpack[StartOptions]) -> AsyncIterator[LocalGateway]:
    """Everything `tugline gateway` runs, here. At the end open sessions are cancelled and the run is closed.

    Options as the flags of `tugline gateway`: engine, model, out, config, sampling, seed, set={"dotted.name": value}.
    """
    settings = await asyncio.to_thread(_load, start)
    store = await asyncio.to_thread(RunStore.open_or_create, run_dir(settings), dump_toml(settings.settings))
    async with store, serving(settings.settings, store) as parts:
        yield LocalGateway(parts)


def _load(start: StartOptions) -> Any:
    model, out, config = start.get("model"), start.get("out"), start.get("config")
    flags = RunFlags(
        engine=start.get("engine"),
        model=None if model is None else str(model),
        out=None if out is None else Path(out),
        sampling=start.get("sampling"),
        seed=start.get("seed"),
        extra=tuple(f"{key}={value}" for key, value in (start.get("set") or {}).items()),
    )
    return load_settings(None if config is None else Path(config), flags, name="gateway")
