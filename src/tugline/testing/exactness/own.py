"""Our own gateway under test, in this process, over the fake engine's wire."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tugline.cli.wiring import make_trajectory
from tugline.core.columns import NO_FLOATS, count, floats, ids, ids_list
from tugline.core.contracts import EngineInfo, Generation, Policy, Sample
from tugline.core.errors import EngineError, describe
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.turn import Sampling
from tugline.dialects import DIALECTS
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.harnesses.roles import RULES
from tugline.store import RunStore
from tugline.testing.exactness.agent import Line
from tugline.testing.exactness.clients import CLIENTS
from tugline.testing.exactness.fake import FakeEngine
from tugline.testing.exactness.records import Kept
from tugline.testing.exactness.subjects import rows


class WireEngine:
    """Core `Engine` over HTTP: ids to /inference/v1/generate, ids and log-probabilities back. Nothing more: for real
    servers there are engines of their own."""

    def __init__(self, url: str, fake: FakeEngine) -> None:
        files = fake.files
        self._url = url
        self._http = httpx.AsyncClient(base_url=url, timeout=60.0, trust_env=False)
        self._info = EngineInfo(
            kind="wire",
            model=files.name,
            model_dir=files.path,
            context=files.context,
            vocab=files.vocab,
            stop_ids=files.stop_ids,
            capacity=16,
        )

    @property
    def info(self) -> EngineInfo:
        return self._info

    async def start(self) -> None:
        """Nothing to start."""

    async def generate(self, request: Generation) -> Sample:
        """Raises EngineError."""
        s = request.sampling
        body = {
            "request_id": request.request_id,
            "token_ids": ids_list(request.prompt_ids),
            "sampling_params": {"max_tokens": s.max_tokens, "temperature": s.temperature, "logprobs": 0},
            "return_token_ids": True,
        }
        try:
            response = await self._http.post("/inference/v1/generate", content=msgspec.json.encode(body))
            reply: dict[str, Any] = msgspec.json.decode(response.content)
            if response.status_code != httpx.codes.OK:
                raise EngineError(f"the engine at {self._url} refuses: {reply}", retryable=False)
            choice = reply["choices"][0]
            rows_ = choice["logprobs"]["content"]
            sampled = ids(choice["token_ids"])
        except (httpx.HTTPError, msgspec.DecodeError, KeyError) as err:
            raise EngineError(f"the engine at {self._url} failed: {describe(err)}") from err
        return Sample(
            ids=sampled,
            logprobs=floats(row["logprob"] for row in rows_) if rows_ else NO_FLOATS,
            finish=choice["finish_reason"],
            version_runs=((0, 0),) if count(sampled) else (),
            prompt_ids=ids(reply["prompt_token_ids"]),
            engine_ref=reply["request_id"],
        )

    async def abort(self, request_id: str) -> None:
        """The fake engine's generations are over at once."""

    async def release(self, session_id: str) -> None:
        """Nothing is held."""

    async def close(self) -> None:
        """Idempotent."""
        await self._http.aclose()


class OwnGateway:
    """A `Subject`."""

    def __init__(self, gateway: LocalGateway, store: RunStore) -> None:
        self._gateway, self._store = gateway, store

    async def open(self, session: str) -> Line:
        """A session with room for long turns."""
        access = await self._gateway.open(session, Policy(Sampling(max_tokens=4000)))
        return Line(dict.fromkeys(CLIENTS, access.url), access.secret, "policy")

    async def close(self, session: str) -> Sequence[Kept] | None:
        """Rows, built from the run store."""
        await self._gateway.close(session)
        ended = Ended(SessionKey(session, f"grp_{session}", "exactness", 0), Outcome.COMPLETED, 1.0)
        turns, calls = list(self._store.iter_turns(session)), list(self._store.iter_calls(session))
        return rows(make_trajectory(ended, turns, calls).traces)


@asynccontextmanager
async def own_gateway(url: str, fake: FakeEngine, options: GatewayOptions | None = None) -> AsyncIterator[OwnGateway]:
    """Ours, with a run store in a scratch directory. `url`: the fake engine's."""
    engine = WireEngine(url, fake)
    with tempfile.TemporaryDirectory(prefix="tugline-exactness-") as scratch:
        store = RunStore.create(Path(scratch) / "run", "")
        fake.model.probe()
        gateway = LocalGateway(engine, fake.model, store, DIALECTS, options or GatewayOptions(), roles=RULES)
        await gateway.start()
        try:
            yield OwnGateway(gateway, store)
        finally:
            await gateway.stop()
            await engine.close()
            await store.close()
