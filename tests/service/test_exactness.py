"""The exactness suite over HTTP: our own gateway keeps all four promises, and gateways that do not are told apart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from tugline.cli.main import app
from tugline.cli.wiring import PILOT
from tugline.gateway.gateway import GatewayOptions
from tugline.gateway.server import bind, listen
from tugline.testing.exactness.fake import FakeEngine
from tugline.testing.exactness.own import own_gateway
from tugline.testing.exactness.subjects import AnyGateway, http_client
from tugline.testing.exactness.suite import Plan, Report, fake_server, run_suite

Body = dict[str, Any]
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


# ------------------------------------------------------------------------------------------- gateways that do not


@dataclass
class Meddler:
    """A relay of chat completions that changes requests and replies."""

    engine: str
    asks: Callable[[Body], Body] = lambda body: body
    tells: Callable[[Body], Body] = lambda body: body

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw, more = b"", True
        while more:
            message = await receive()
            raw, more = raw + message.get("body", b""), message.get("more_body", False)
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            reply = await http.post(self.engine + scope["path"], json=self.asks(json.loads(raw)))
        body = json.dumps(self.tells(reply.json())).encode() if reply.status_code == 200 else reply.content
        await send({"type": "http.response.start", "status": reply.status_code, "headers": []})
        await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def meddler(engine: FakeEngine, **how: Callable[[Body], Body]) -> AsyncIterator[str]:
    async with fake_server(engine) as url:
        listener = await listen(Meddler(url, **how), bind("127.0.0.1", 0))
        try:
            yield f"http://127.0.0.1:{listener.port}"
        finally:
            await listener.close()


async def judged(*scenes: str, noncanonical: float = 0.3, **how: Callable[[Body], Body]) -> Report:
    engine = FakeEngine(PILOT, noncanonical=noncanonical)
    plan = Plan(("chat",), scenes, ("whole",))
    async with meddler(engine, **how) as url, http_client() as http:
        return await run_suite(engine, AnyGateway(http, url, "m"), http, plan)


def with_ids(body: Body) -> Body:
    return body | {"return_token_ids": True, "logprobs": True}


def broken(report: Report) -> dict[str, str]:
    """First finding of each promise."""
    found = report.verdicts["chat"].findings
    return {f.promise: f.message for f in reversed(found)}


async def test_a_plain_relay_is_exact_and_not_continuous() -> None:
    report = await judged("verbatim", asks=with_ids)
    assert set(broken(report)) == {"C"} and "sampled token" in broken(report)["C"]
    assert not report.ok


async def test_canonical_sampling_hides_it() -> None:
    """Where an encoder would give the sampled ids again, and arguments are spelled as the template does, a relay holds
    C by luck; the respelled arguments of the second turn are where the luck ends."""
    report = await judged("user_turns", asks=with_ids, noncanonical=0.0)
    assert report.ok


async def test_no_records_are_no_failure() -> None:
    report = await judged("user_turns", noncanonical=0.0)
    score = report.verdicts["chat"].scores["E"]
    assert report.ok and (score.of, score.why) == (0, "no records to look at")


def other_id(body: Body) -> Body:
    body["choices"][0]["token_ids"][1] += 1
    return body


def other_logprob(body: Body) -> Body:
    body["choices"][0]["logprobs"]["content"][1]["logprob"] -= 0.01
    return body


def no_logprobs(body: Body) -> Body:
    body["choices"][0]["logprobs"] = None
    return body


@pytest.mark.parametrize(
    ("tells", "said"),
    [
        (other_id, "sampled token 1 of"),
        (other_logprob, "log-probability of sampled token 1"),
        (no_logprobs, "without log-probabilities"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_is_told_is_compared(tells: Callable[[Body], Body], said: str) -> None:
    report = await judged("user_turns", noncanonical=0.0, asks=with_ids, tells=tells)
    assert set(broken(report)) == {"E"} and said in broken(report)["E"]


def silent_result(body: Body) -> Body:
    for message in body["messages"]:
        if message["role"] == "tool":
            message["content"] = "(hidden)"
    return body


def more_system(body: Body) -> Body:
    body["messages"][0]["content"] += "Be brief."
    return body


def no_tools(body: Body) -> Body:
    return {k: v for k, v in body.items() if k != "tools"}


def old_words(body: Body) -> Body:
    for message in body["messages"]:
        if "Bertram the" in (message["content"] or ""):
            message["content"] = "My name is Alfred the first."
    return body


def reworded(body: Body) -> Body:
    for message in body["messages"]:
        if message["role"] == "assistant":
            message["content"] = "Something that nobody said."
    return body


@pytest.mark.parametrize(
    ("asks", "scene", "promises", "said"),
    [
        (silent_result, "verbatim", {"C", "F", "S"}, "does not read 'a.txt"),
        (no_tools, "verbatim", {"C", "F", "S"}, "not told of the tool 'bash'"),
        (old_words, "text_rewritten", {"S"}, "its words 'Bertram the second'"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
async def test_what_the_model_reads_is_compared(
    asks: Callable[[Body], Body], scene: str, promises: set[str], said: str
) -> None:
    report = await judged(scene, asks=asks, noncanonical=0.0)
    assert set(broken(report)) == promises and said in broken(report)["S"]


async def test_text_of_the_gateways_own_breaks_the_format() -> None:
    report = await judged("user_turns", asks=more_system, noncanonical=0.0)
    assert set(broken(report)) == {"F"} and "before the first assistant turn" in broken(report)["F"]


async def test_turns_that_nobody_said_break_the_format() -> None:
    report = await judged("user_turns", asks=reworded, noncanonical=0.0)
    assert set(broken(report)) == {"C", "F"} and "neither as sampled nor" in broken(report)["F"]


async def test_a_reply_in_other_words() -> None:
    def shout(body: Body) -> Body:
        body["choices"][0]["message"]["content"] = "FOUR."
        return body

    report = await judged("user_turns", tells=shout, noncanonical=0.0)
    assert "the harness reads 'FOUR.'" in broken(report)["S"]


async def test_words_that_become_control_tokens() -> None:
    """Chat endpoints of engines read control tokens in anybody's words."""
    report = await judged("hostile", noncanonical=0.0)
    assert "control tokens" in broken(report)["S"] and "F" not in broken(report)


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
