"""Our own gateway under test, in this process, with the driver of vLLM servers over the fake engine's wire."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tugline.cli.wiring import make_trajectory
from tugline.core.contracts import Policy
from tugline.core.session import Ended, Outcome, SessionKey
from tugline.core.turn import Sampling
from tugline.dialects import DIALECTS
from tugline.engines import make_engine
from tugline.engines.modeldir import Asked
from tugline.gateway.gateway import GatewayOptions, LocalGateway
from tugline.harnesses.roles import RULES
from tugline.store import RunStore
from tugline.testing.exactness.agent import Line
from tugline.testing.exactness.clients import CLIENTS
from tugline.testing.exactness.fake import FakeEngine
from tugline.testing.exactness.records import Kept
from tugline.testing.exactness.subjects import rows


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
    with tempfile.TemporaryDirectory(prefix="tugline-exactness-") as scratch:
        run, asked = Path(scratch) / "run", Asked(context=fake.files.context)
        store = RunStore.create(run, "")
        engine = make_engine(f"vllm:{url}", model=fake.files.path, journal_dir=run / "engine", asked=asked)
        fake.model.probe()
        gateway = LocalGateway(engine, fake.model, store, DIALECTS, options or GatewayOptions(), roles=RULES)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(store.close)
            await engine.start()
            stack.push_async_callback(engine.close)
            await gateway.start()
            stack.push_async_callback(gateway.stop)
            yield OwnGateway(gateway, store)
