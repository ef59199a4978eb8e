"""A gateway over a driver over a server that speaks an engine's schema, all in the test's own loop."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from service.wire_kit import Wire, wire
from tugline.core.contracts import Engine
from tugline.engines.modeldir import read_model_dir
from tugline.engines.remote.client import Remote
from tugline.engines.remote.driver import RemoteEngine
from tugline.engines.sglang import SglangEngine
from tugline.engines.vllm import VllmEngine
from tugline.testing.engine_server import EngineServer
from tugline.testing.sglang_server import SglangServer
from tugline.testing.vllm_server import VllmServer

DRIVERS: dict[str, tuple[type[EngineServer], type[RemoteEngine]]] = {
    "vllm": (VllmServer, VllmEngine),
    "sglang": (SglangServer, SglangEngine),
}


class Served:
    """A started server and its driver as one `StreamingEngine`."""

    def __init__(self, kind: str, inner: Engine, records: Path, remote: dict[str, Any], /, **behaviour: Any) -> None:
        self._server, self._driver = DRIVERS[kind]
        self.server = self._server(inner, **behaviour)
        self._records, self._remote = records, remote
        self.info = inner.info

    async def start(self) -> None:
        await self.server.inner.start()
        await self.server.up()
        where = Remote(self.server.url, **({"reply": 20.0, "patience": 5.0} | self._remote))
        self.driver = self._driver(where, read_model_dir(self.info.model_dir), self._records)  # type: ignore[call-arg]
        await self.driver.start()
        self.info = self.driver.info
        self.generate = self.driver.generate
        self.generate_stream = self.driver.generate_stream
        self.abort, self.release = self.driver.abort, self.driver.release

    async def close(self) -> None:
        await self.driver.close()
        await self.server.down()
        await self.server.inner.close()


@dataclass
class At:
    """One session over it."""

    run: Wire
    served: Served
    http: aiohttp.ClientSession
    key: str
    keys: dict[str, str] = field(default_factory=dict)
    """Of further sessions, by name."""

    async def say(self, dialect: str, text: str = "go", **more: Any) -> tuple[int, Any]:
        """(status, decoded body) of a whole reply."""
        path, body, headers = request_of(dialect, text, self.key)
        async with self.http.post(self.run.gateway.url + path, json=body | more, headers=headers) as response:
            return response.status, json.loads(await response.read())

    def faults(self) -> dict[str, int]:
        """What the gateway counted, by name."""
        counted = self.run.gateway.metrics.faults.collect()
        return {
            s.labels["fault"]: int(s.value) for m in counted for s in m.samples if s.name.endswith("_total") and s.value
        }


def request_of(dialect: str, text: str, key: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    """(path, body, headers) of a request that says one thing."""
    said = {"role": "user", "content": text}
    match dialect:
        case "chat":
            return "/v1/chat/completions", {"model": "m", "messages": [said]}, {"authorization": f"Bearer {key}"}
        case "responses":
            return "/v1/responses", {"model": "m", "input": [said]}, {"authorization": f"Bearer {key}"}
        case "anthropic":
            body = {"model": "m", "max_tokens": 400, "messages": [said]}
            return "/v1/messages", body, {"x-api-key": key, "anthropic-version": "2023-06-01"}
    parts = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
    return "/v1beta/models/m:generateContent", parts, {"x-goog-api-key": key}


def is_error(dialect: str, status: int, body: Any) -> bool:
    """Whether a body is an error in the dialect's own shape."""
    if status < 400 or not isinstance(body.get("error"), dict):
        return False
    error = body["error"]
    if dialect == "gemini":
        return {"code", "message", "status"} <= set(error)
    if dialect == "anthropic":
        return body.get("type") == "error" and {"type", "message"} <= set(error)
    return {"message", "type"} <= set(error)


@asynccontextmanager
async def engine(
    tmp_path: Path, kind: str, script: list[object], remote: dict[str, Any] | None = None, /, **behaviour: Any
) -> AsyncIterator[At]:
    """A gateway whose engine is `kind`, over the script."""
    made: list[Served] = []

    def around(inner: Engine) -> Engine:
        made.append(Served(kind, inner, tmp_path / "run" / "engine", remote or {}, **behaviour))
        return made[0]  # type: ignore[return-value]

    async with wire(tmp_path, script, engine=around) as run, aiohttp.ClientSession() as http:
        access = await run.session()
        yield At(run, made[0], http, access.secret)
