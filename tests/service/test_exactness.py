"""The exactness suite over HTTP: our own gateway keeps all four promises, and gateways that do not are told apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.meddler import broken, judged, with_ids
from tugline.cli.main import app
from tugline.cli.wiring import PILOT
from tugline.gateway.gateway import GatewayOptions
from tugline.gateway.server import bind
from tugline.testing.exactness.fake import FakeEngine
from tugline.testing.exactness.own import own_gateway
from tugline.testing.exactness.reach import http_client
from tugline.testing.exactness.subjects import AnyGateway
from tugline.testing.exactness.suite import Plan, fake_server, run_suite

NAMES = ("anthropic", "chat", "responses", "gemini")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("dialect", NAMES)
async def test_our_own_gateway_keeps_everything(dialect: str) -> None:
    engine = FakeEngine(PILOT, seed=3)
    async with fake_server(engine) as url, http_client() as http, own_gateway(url, engine) as own:
        report = await run_suite(engine, own, http, Plan.small(dialects=(dialect,)))
    verdict = report.verdicts[dialect]
    assert [f.text() for f in (*verdict.findings, *verdict.failures)] == []
    assert report.ok and report.unplanned == 0
    assert all(score.of for score in verdict.scores.values()), "every promise was looked at"
    assert set(report.forms) == {"/inference/v1/generate ids"}


async def test_our_own_gateway_live() -> None:
    engine = FakeEngine(PILOT)
    plan = Plan(scenes=("verbatim", "retry", "truncated"), modes=("streamed",))
    live = GatewayOptions(streaming="live")
    async with fake_server(engine) as url, http_client() as http, own_gateway(url, engine, live) as own:
        report = await run_suite(engine, own, http, plan)
    assert report.ok


async def test_our_own_gateway_without_its_bridge() -> None:
    """Rendering anew for every call, it is exact and not continuous: the suite looks at what the bridge is for."""
    engine = FakeEngine(PILOT)
    plan = Plan(("chat",), ("verbatim", "json_respelled"), ("whole",))
    anew = GatewayOptions(rerender=True)
    async with fake_server(engine) as url, http_client() as http, own_gateway(url, engine, anew) as own:
        report = await run_suite(engine, own, http, plan)
    assert set(broken(report)) == {"C"}


# ------------------------------------------------------------------------------------------------- relays


async def test_canonical_sampling_hides_it() -> None:
    """Where an encoder would give the sampled ids again, and arguments are spelled as the template does, a relay holds
    C by luck; the respelled arguments of the second turn are where the luck ends."""
    report = await judged("user_turns", asks=with_ids, noncanonical=0.0)
    assert report.ok


async def test_no_records_are_no_failure() -> None:
    report = await judged("user_turns", noncanonical=0.0)
    score = report.verdicts["chat"].scores["E"]
    assert report.ok and (score.of, score.why) == (0, "no records to look at")


async def test_an_api_that_is_not_there() -> None:
    engine = FakeEngine(PILOT)
    async with fake_server(engine) as url, http_client() as http:
        report = await run_suite(engine, AnyGateway(http, url, "m"), http, Plan(dialects=("gemini",)))
    verdict = report.verdicts["gemini"]
    assert not verdict.served and not report.ok and verdict.scores["E"].of == 0


# ------------------------------------------------------------------------------------------------------ command


def command(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["bench", "exactness", *words])
    return result.exit_code, result.stdout


def test_the_command_on_ours() -> None:
    code, out = command("--dialects", "chat", "--scenes", "verbatim", "--modes", "whole", "--json")
    report = json.loads(out)
    assert code == 0 and report["ok"]
    assert {p: v["kept"] for p, v in report["dialects"]["chat"]["promises"].items()} == dict.fromkeys("ECFS", True)
    code, out = command("--dialects", "chat", "--scenes", "verbatim", "--modes", "whole")
    assert code == 0 and out.splitlines()[1].split() == ["chat", "5/5", "5/5", "4/4", "5/5", "5/5"]


def test_the_command_on_another() -> None:
    """The engine itself stands for a gateway that renders anew each time."""
    sock = bind("127.0.0.1", 0)
    port = sock.getsockname()[1]
    sock.close()
    words = ("--url", f"http://127.0.0.1:{port}", "--engine-port", str(port), "--scenes", "verbatim")
    code, out = command(*words, "--dialects", "chat")
    assert code == 1 and "chat C: verbatim, whole, request 2: does not go on" in out
    code, out = command(*words, "--dialects", "chat", "--json")
    assert code == 1 and json.loads(out)["dialects"]["chat"]["promises"]["C"]["first"]["request"] == 2


@pytest.mark.parametrize(
    "words",
    [("--dialects", "smtp"), ("--scenes", "none"), ("--modes", "x"), ("--noncanonical", "2"), ("--model", "/none"),
     ("--url", "http://127.0.0.1:1", "--run", "x")],
)  # fmt: skip
def test_a_request_that_is_wrong(words: tuple[str, ...]) -> None:
    assert command(*words)[0] == 2


def test_nobody_answers() -> None:
    code, out = command("--url", "http://127.0.0.1:9", "--wait", "0", "--json")
    assert code == 1 and "nobody answers" in json.loads(out)["error"]["message"]


def test_the_scenes_are_listed(tmp_path: Path) -> None:
    assert "parallel" in command("--list")[1] and "parallel" in json.loads(command("--list", "--json")[1])
