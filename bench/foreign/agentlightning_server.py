"""Serve the LLM proxy of `agentlightning` for the exactness suite. Run with a Python that has agentlightning 0.3.0:

    python agentlightning_server.py --port 9303 --door 9304 --engine http://127.0.0.1:8101 --name MODEL

On the door, POST /open begins a rollout and gives "ROLLOUT/attempt/ATTEMPT", which stands in the proxy's paths;
GET /records/ROLLOUT/attempt/ATTEMPT shows its calls, as the package's own adapter reads them from its spans.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

# The proxy looks after itself over /health, without a key: none may be asked for.
os.environ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"

from agentlightning import InMemoryLightningStore, LLMProxy
from agentlightning.adapter import LlmProxyTraceToTriplet
from aiohttp import web

SETTLE = 1.5


class Door:
    """Opens rollouts and shows their records."""

    def __init__(self, store: InMemoryLightningStore) -> None:
        self._store = store

    async def open(self, _request: web.Request) -> web.Response:
        begun = await self._store.start_rollout(input={"task": "exactness"})
        return web.json_response({"session_id": f"{begun.rollout_id}/attempt/{begun.attempt.attempt_id}"})

    async def records(self, request: web.Request) -> web.Response:
        rollout = request.match_info["rollout"]
        spans = await self._settled(rollout)
        found = [
            {
                "prompt_token_ids": one.prompt.get("token_ids", []),
                "completion_token_ids": one.response.get("token_ids", []),
                "logprobs": [row["logprob"] for row in one.response.get("logprobs") or ()],
            }
            for one in LlmProxyTraceToTriplet().adapt(spans)
        ]
        return web.json_response(found)

    async def _settled(self, rollout: str) -> list[Any]:
        """Spans, once no more of them came for a while: the proxy writes them behind its replies."""
        spans: list[Any] = []
        for _ in range(8):
            await asyncio.sleep(SETTLE)
            before, spans = len(spans), list(await self._store.query_spans(rollout))
            if spans and len(spans) == before:
                break
        return spans


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--door", type=int, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--name", required=True)
    asked = parser.parse_args()
    store = InMemoryLightningStore(thread_safe=True)
    engine = {"model": f"hosted_vllm/{asked.name}", "api_base": f"{asked.engine}/v1", "api_key": "none"}
    proxy = LLMProxy(
        port=asked.port,
        host="127.0.0.1",
        model_list=[{"model_name": asked.name, "litellm_params": engine}],
        store=store,
        litellm_config={"litellm_settings": {"drop_params": True}},
        launch_mode="thread",
        callbacks=["return_token_ids", "logprobs", "opentelemetry"],
    )
    door = Door(store)
    app = web.Application()
    app.router.add_post("/open", door.open)
    app.router.add_get("/records/{rollout}/attempt/{attempt}", door.records)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", asked.door).start()
    await proxy.start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
