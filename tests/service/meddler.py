"""A relay of chat completions that changes requests and replies: gateways with a fault of our choice."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from tugline.cli.wiring import PILOT
from tugline.gateway.server import bind, listen
from tugline.testing.exactness.fake import FakeEngine
from tugline.testing.exactness.reach import http_client
from tugline.testing.exactness.subjects import AnyGateway
from tugline.testing.exactness.suite import Plan, Report, fake_server, run_suite

Body = dict[str, Any]
Change = Callable[[Body], Body]


def same(body: Body) -> Body:
    """No fault."""
    return body


@dataclass
class Meddler:
    """`asks` changes requests, `tells` whole replies, `streams` the chunks of a stream."""

    engine: str
    asks: Change = same
    tells: Change = same
    streams: Callable[[list[Body]], list[Body]] = list

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        asked = json.loads(raw or b"{}")
        content = json.dumps(self.asks(asked)) if raw else None
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            reply = await http.request(scope["method"], self.engine + scope["path"], content=content)
        body = reply.content
        if reply.status_code == 200 and asked.get("stream"):
            chunks = [json.loads(line[6:]) for line in reply.text.split("\n") if line.startswith("data: {")]
            body = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in self.streams(chunks))
            body += b"data: [DONE]\n\n"
        elif reply.status_code == 200 and raw:
            body = json.dumps(self.tells(reply.json())).encode()
        await send({"type": "http.response.start", "status": reply.status_code, "headers": []})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def meddler(url: str, **how: Any) -> AsyncIterator[str]:
    """Its address; `url`: the engine's."""
    listener = await listen(Meddler(url, **how), bind("127.0.0.1", 0))
    try:
        yield f"http://127.0.0.1:{listener.port}"
    finally:
        await listener.close()


async def judged(*scenes: str, noncanonical: float = 0.3, mode: str = "whole", **how: Any) -> Report:
    """The suite beside a relay of chat completions."""
    engine = FakeEngine(PILOT, noncanonical=noncanonical)
    plan = Plan(("chat",), scenes, (mode,))
    async with fake_server(engine) as url, meddler(url, **how) as at, http_client() as http:
        return await run_suite(engine, AnyGateway(http, at, "m"), http, plan)


def with_ids(body: Body) -> Body:
    """Asks the engine for ids and log-probabilities: a relay that is exact."""
    return body | {"return_token_ids": True, "logprobs": True}


def broken(report: Report) -> dict[str, str]:
    """First finding of each promise."""
    found = report.verdicts["chat"].findings
    return {f.promise: f.message for f in reversed(found)}
