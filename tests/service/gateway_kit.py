"""A gateway over HTTP with a scripted engine and a real run store, in the test's own loop."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from service.wire_kit import STREAMING, Streaming
from tugline.cli.wiring import PILOT, chat_model
from tugline.core.contracts import Access, CallLog, Engine, Policy
from tugline.core.turn import Sampling
from tugline.dialects import DIALECTS
from tugline.engines.scripted import ScriptedEngine
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.gateway.running import Timing
from tugline.gateway.upstream import RetryPolicy
from tugline.harnesses.roles import RULES
from tugline.store import RunStore

CALL = {"name": "bash", "arguments": '{"command" :  "ls"}'}
WRITE = {"name": "write", "arguments": '{"path": "a.txt", "content": "x", "n": 1.0}'}


@dataclass
class Kit:
    """What a test talks to."""

    store: RunStore
    engine: Engine
    gateway: LocalGateway
    http: aiohttp.ClientSession
    run: Path
    access: dict[str, Access] = field(default_factory=dict)

    async def session(self, name: str = "ses_a", **policy: Any) -> Access:
        self.access[name] = await self.gateway.open(name, Policy(Sampling(max_tokens=400), **policy))
        return self.access[name]

    async def post(
        self, body: Any, *, key: str | None = None, path: str = "/v1/chat/completions", **headers: str
    ) -> tuple[int, Any]:
        """(status, decoded JSON body) of a non-streamed call."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        sent = io.BytesIO(data) if len(data) > 1 << 20 else data
        async with self.http.post(self.gateway.url + path, data=sent, headers=headers) as response:
            text = await response.read()
            return response.status, json.loads(text) if text else None

    async def stream(self, body: dict[str, Any], key: str) -> tuple[dict[str, Any], list[str]]:
        """(assembled message, raw event payloads) of a streamed call."""
        headers = {"authorization": f"Bearer {key}"}
        events: list[str] = []
        message: dict[str, Any] = {"role": "assistant", "content": None}
        async with self.http.post(
            self.gateway.url + "/v1/chat/completions", json=body | {"stream": True}, headers=headers
        ) as r:
            assert r.status == 200, await r.text()
            async for line in r.content:
                if line.startswith(b"data: "):
                    events.append(line[6:].decode().strip())
        for event in events[:-1]:
            merge(message, json.loads(event))
        return message, events


def merge(message: dict[str, Any], event: dict[str, Any]) -> None:
    """Add one chunk to a message, as clients do."""
    for choice in event["choices"]:
        delta = choice["delta"]
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = (message.get(key) or "") + delta[key]
        for piece in delta.get("tool_calls") or []:
            calls = message.setdefault("tool_calls", [])
            if piece["index"] == len(calls):
                calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
            function = calls[piece["index"]]["function"]
            function["name"] += piece["function"].get("name") or ""
            function["arguments"] += piece["function"].get("arguments") or ""


def tools(*names: str) -> list[dict[str, Any]]:
    """Tool list with the given names."""
    return [{"type": "function", "function": {"name": n, "parameters": {"type": "object"}}} for n in names]


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A request with tools bash and write."""
    return {"model": "any", "messages": list(messages), "tools": tools("bash", "write"), **more}


def user(text: str) -> dict[str, Any]:
    """A user message."""
    return {"role": "user", "content": text}


@asynccontextmanager
async def gateway(
    tmp_path: Path,
    script: list[object],
    *,
    log: CallLog | None = None,
    timing: Timing = Timing(),
    engine: Engine | None = None,
    streaming: Streaming = STREAMING,
) -> AsyncIterator[Kit]:
    """A running gateway. `log` replaces the store for fault injection."""
    store = RunStore.create(tmp_path / "run", "")
    made = engine or ScriptedEngine(script, PILOT, tmp_path / "run" / "engine")
    await made.start()
    options = GatewayOptions(timing=timing, retry=RetryPolicy(3, 0.01, 0.02), max_body=1 << 20, streaming=streaming)
    model = chat_model(PILOT)
    model.probe()
    running = LocalGateway(made, model, log or store, DIALECTS, options, roles=RULES)
    await running.start()
    async with aiohttp.ClientSession() as http:
        try:
            yield Kit(store, made, running, http, tmp_path / "run")
        finally:
            await running.stop()
            await made.close()
            await store.close()
