"""A control plane over a gateway with a scripted engine, in the test's own loop; and a gateway as a process."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.gateway_kit import Kit, gateway
from service.wire_kit import STREAMING, Streaming
from tugline.cli.wiring import make_trajectory
from tugline.core.contracts import Engine, Policy
from tugline.core.turn import Sampling
from tugline.gateway.server import bind, listen
from tugline.rollout.api.app import ControlPlane
from tugline.rollout.manual import ManualSessions

TOKEN = "tugctl-test"


@dataclass
class Control:
    """What a test talks to. `ask` gives (status, JSON)."""

    kit: Kit
    manual: ManualSessions
    url: str

    async def ask(
        self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN, **more: Any
    ) -> tuple[int, Any]:
        status, _, data = await self.raw(method, path, body, token=token, **more)
        return status, json.loads(data) if data else None

    async def raw(
        self, method: str, path: str, body: Any = None, *, token: str | None = TOKEN, **more: Any
    ) -> tuple[int, Any, bytes]:
        plain = body is None or isinstance(body, bytes | io.BytesIO)
        data = body if plain else json.dumps(body).encode()
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        url = path if path.startswith("http") else self.url + path
        async with self.kit.http.request(method, url, data=data, headers=headers, **more) as response:
            return response.status, response.headers, await response.read()

    async def open(self, **options: Any) -> dict[str, Any]:
        status, made = await self.ask("POST", "/api/v1/sessions", options)
        assert status == 201, made
        return made

    async def chat(self, key: str, *messages: dict[str, Any], text: str = "hi") -> tuple[int, Any]:
        talk = list(messages) or [{"role": "user", "content": text}]
        return await self.kit.post({"model": "m", "messages": talk}, key=key)


@asynccontextmanager
async def control(
    tmp_path: Path, script: list[object], *, engine: Engine | None = None, streaming: Streaming = STREAMING
) -> AsyncIterator[Control]:
    """Everything, started."""
    async with gateway(tmp_path, script, engine=engine, streaming=streaming) as kit:
        build = lambda state, turns, calls: make_trajectory(state, list(turns), list(calls))  # noqa: E731
        manual = ManualSessions(kit.gateway, kit.store, build, Policy(Sampling(max_tokens=64)))
        plane = ControlPlane(manual, TOKEN, kit.gateway.metrics.text)
        listener = await listen(plane.app, bind("127.0.0.1", 0))
        try:
            yield Control(kit, manual, f"http://127.0.0.1:{listener.port}")
        finally:
            await listener.close()
            await manual.close()


@contextmanager
def gateway_process(tmp_path: Path, *args: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """`tugline gateway --json ARGS` as a process, with the line it prints; killed at the end if it still runs."""
    with (tmp_path / "gateway.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tugline.cli.main", "gateway", "--json", *args],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (tmp_path / "gateway.log").read_text()
        yield process, json.loads(line)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
