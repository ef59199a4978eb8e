"""How busy engines are: asked beside the calls, shown under /metrics by engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.engine_kit import At, engine
from service.wire_kit import DIALECTS
from tugline.core.contracts import EngineLoad, Measured
from tugline.core.errors import EngineError
from tugline.engines.vllm import VllmEngine
from tugline.gateway.gateway import GatewayOptions, LocalGateway, Seat

SCRIPT: list[object] = [{"settings": {"repeat": True}}, {"text": "all is well"}]


def shown(gateway: LocalGateway, name: str) -> dict[str, float]:
    """{engine: value} of one series, as a scraper reads it."""
    families = text_string_to_metric_families(gateway.metrics.text().decode())
    return {s.labels["engine"]: s.value for f in families for s in f.samples if s.name == name}


async def until(gateway: LocalGateway, name: str, wanted: Any) -> None:
    async with asyncio.timeout(10):
        while not wanted(shown(gateway, name)):
            await asyncio.sleep(0.01)


def second(at: At, **options: Any) -> LocalGateway:
    """A gateway over the driver itself, under two names."""
    first, driver = at.run.gateway, at.served.driver
    seat = Seat(driver, first._model)
    return LocalGateway(
        driver, first._model, at.run.store, DIALECTS, GatewayOptions(**options), others={"teacher": seat}
    )


async def test_vllms_own_figures_are_read_by_meaning(tmp_path: Path) -> None:
    async with engine(tmp_path, "vllm", SCRIPT) as at:
        driver = at.served.driver
        assert isinstance(driver, VllmEngine) and isinstance(driver, Measured)
        before = await driver.load()
        await at.say("chat")
        after = await driver.load()
        (turn,) = at.run.turns()
        assert (after.prompt_tokens or 0) - (before.prompt_tokens or 0) == turn.prompt_len
        assert (after.sampled_tokens or 0) - (before.sampled_tokens or 0) == len(turn.sampled) // 4
        assert (after.running, after.waiting, after.preemptions, after.cache_usage) == (0, 0, 0, 0.25)


async def test_what_is_no_metrics_text_is_an_error(tmp_path: Path) -> None:
    async with engine(tmp_path, "vllm", SCRIPT) as at:
        at.served.server._metrics = lambda: "vllm:num_requests_running{ 3"  # type: ignore[attr-defined]
        with pytest.raises(EngineError) as caught:
            await at.served.driver.load()  # type: ignore[attr-defined]
        assert caught.value.fault == "unreadable"


async def test_sglang_says_what_it_has(tmp_path: Path) -> None:
    async with engine(tmp_path, "sglang", SCRIPT) as at:
        assert await at.served.driver.load() == EngineLoad(running=0)  # type: ignore[attr-defined]


async def test_the_gateway_shows_them_and_forgets_an_engine_that_is_gone(tmp_path: Path) -> None:
    async with engine(tmp_path, "vllm", SCRIPT) as at:
        gateway = second(at, look=0.02)
        assert shown(gateway, "tugline_engine_requests_running") == {}
        await gateway.start()
        try:
            await until(gateway, "tugline_engine_requests_running", {"policy": 0.0, "teacher": 0.0}.__eq__)
            assert shown(gateway, "tugline_engine_cache_usage_ratio")["policy"] == 0.25
            sampled = shown(gateway, "tugline_engine_sampled_tokens_total")["policy"]
            await at.say("chat")
            await until(gateway, "tugline_engine_sampled_tokens_total", lambda now: now.get("policy", 0) > sampled)
            await at.served.server.down()
            await until(gateway, "tugline_engine_sampled_tokens_total", {}.__eq__)
            await at.served.server.up()
            await until(gateway, "tugline_engine_sampled_tokens_total", lambda now: set(now) == {"policy", "teacher"})
        finally:
            await gateway.stop()
        assert gateway._watching == []


async def test_an_engine_that_does_not_answer_the_question_holds_up_no_call(tmp_path: Path) -> None:
    async with engine(tmp_path, "vllm", SCRIPT) as at:
        asked = asyncio.Event()

        async def hang() -> EngineLoad:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        at.served.driver.load = hang  # type: ignore[attr-defined]
        gateway = second(at, look=0.02)
        await gateway.start()
        try:
            await asked.wait()
            assert (await at.say("chat"))[0] == 200
            assert shown(gateway, "tugline_engine_requests_running") == {}
        finally:
            await asyncio.wait_for(gateway.stop(), 5)
