"""Serve the interception server of `verifiers` for the exactness suite. Run with a Python that has verifiers 0.4.0:

    python verifiers_server.py --port 9301 --engine http://127.0.0.1:8101 --model DIR --client train|eval

`train` renders with the package's own renderers and asks /inference/v1/generate; `eval` relays to /v1.
POST /open begins a rollout session and gives its secret, the API key of that session; GET /records/SECRET shows every
sampled node of its graph with the ids of the path that leads to it.
"""

from __future__ import annotations

import argparse
import asyncio

from aiohttp import web
from renderers.configs import Qwen3RendererConfig
from verifiers.v1.clients.client import ModelContext
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.configs.client import EvalClientConfig, TrainClientConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Trace, TraceTask
from verifiers.v1.types import SamplingConfig


class Door:
    """Opens sessions on the server and shows their records."""

    def __init__(self, server: InterceptionServer, context: ModelContext) -> None:
        self._server, self._context = server, context
        self._traces: dict[str, Trace] = {}

    async def open(self, _request: web.Request) -> web.Response:
        trace = Trace(
            task=TraceTask(type="Task", data=TaskData(prompt="exactness")), agent=AgentInfo(config=AgentConfig())
        )
        secret, _ = self._server.register(RolloutSession(ctx=self._context, trace=trace))
        self._traces[secret] = trace
        return web.json_response({"session_id": secret})

    async def records(self, request: web.Request) -> web.Response:
        trace = self._traces[request.match_info["secret"]]
        found = []
        for node in trace.nodes:
            if not node.sampled:
                continue
            path: list[int] = []
            at = node.parent
            while at is not None:
                path = [*trace.nodes[at].token_ids, *path]
                at = trace.nodes[at].parent
            split = node.mask.index(True) if True in node.mask else len(node.mask)
            found.append(
                {
                    "prompt_token_ids": path + node.token_ids[:split],
                    "completion_token_ids": node.token_ids[split:],
                    "logprobs": node.logprobs,
                }
            )
        return web.json_response(found)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--client", choices=("train", "eval"), required=True)
    asked = parser.parse_args()
    if asked.client == "train":
        client = TrainClientConfig(
            base_url=f"{asked.engine}/v1",
            api_key_var="NO_KEY",
            renderer=Qwen3RendererConfig(),
            renderer_model_name=asked.model,
        )
    else:
        client = EvalClientConfig(base_url=f"{asked.engine}/v1", api_key_var="NO_KEY")
    context = ModelContext(model=asked.name, client=client, sampling=SamplingConfig(max_tokens=4000))
    async with InterceptionServer() as server:
        door = Door(server, context)
        app = web.Application()
        app.router.add_post("/open", door.open)
        app.router.add_get("/records/{secret}", door.records)
        app.router.add_get("/url", lambda _r: web.json_response({"url": server.base_url}))
        app.router.add_route("*", "/v1/{tail:.*}", Relay(server.base_url).handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", asked.port).start()
        await asyncio.Event().wait()


class Relay:
    """The server picks its own port; this hands its routes on from ours, byte for byte."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def handle(self, request: web.Request) -> web.StreamResponse:
        import aiohttp

        headers = {k: v for k, v in request.headers.items() if k.lower() not in ("host", "content-length")}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as http,
            http.request(request.method, self._url + request.path_qs, data=await request.read(), headers=headers) as r,
        ):
            kept = {k: v for k, v in r.headers.items() if k.lower() not in ("content-length", "transfer-encoding")}
            return web.Response(status=r.status, body=await r.read(), headers=kept)


if __name__ == "__main__":
    asyncio.run(main())
