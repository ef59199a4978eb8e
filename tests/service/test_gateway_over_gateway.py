"""A gateway whose engine is another gateway: our own Chat API is an OpenAI-compatible API like any other."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract.kits import kits
from real.support import tugline
from service.control_kit import gateway_process
from service.raw_client import request_of
from service.test_live import relax
from service.wire_kit import DIALECT_NAMES, PNG
from tugline.rollout.control_file import TOKEN
from tugline.store import RunStore

pytestmark = pytest.mark.timeout(180)
CALL = {"name": "bash", "arguments": '{"command" :  "ls"}'}
SCRIPT: list[Any] = [
    {"settings": {"repeat": True, "noncanonical": 0.3, "seed": 2}},
    {"text": "Let me look.", "calls": [CALL]},
    {"text": "all is well"},
]
USAGE = ("calls", "prompt", "completion", "cost")


@dataclass
class Two:
    """Both, as processes. `said` is what they print when they are ready."""

    inner: Path
    outer: Path
    process: subprocess.Popen[str]
    said: dict[str, Any]
    control: httpx.Client

    def session(self) -> dict[str, Any]:
        made = self.control.post("/api/v1/sessions", json={})
        assert made.status_code == 201, made.text
        return dict(made.json())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    folder = tmp_path_factory.mktemp("two")
    (folder / "script.jsonl").write_text("\n".join(map(json.dumps, SCRIPT)))
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        first = gateway_process(folder, "--engine", f"scripted:{folder / 'script.jsonl'}", "--out", str(folder / "in"))
        _, inner = stack.enter_context(first)
        patch.setenv("INNER_KEY", inner["key"])
        more = ("--set", "engine.key_env=INNER_KEY", "--set", "engine.prices=3,15,0.3")
        spec = f"openai:{inner['openai']}"
        second = gateway_process(folder, "--engine", spec, "--model", "m", "--out", str(folder / "out"), *more)
        process, outer = stack.enter_context(second)
        assert "control" in outer, outer
        token = (folder / "out" / TOKEN).read_text().strip()
        headers = {"authorization": f"Bearer {token}"}
        control = stack.enter_context(httpx.Client(base_url=outer["control"], headers=headers, timeout=30))
        yield Two(folder / "in", folder / "out", process, outer, control)


@pytest.fixture(autouse=True)
def _any_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    relax(monkeypatch)


def ask(two: Two, key: str, api: str, text: str, *, stream: bool, **more: Any) -> httpx.Response:
    path, body = request_of(api, text, stream=stream, **more)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    return httpx.post(two.said["openai"].removesuffix("/v1") + path, content=body, headers=headers, timeout=30)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", DIALECT_NAMES)
def test_every_dialect_gets_calls_and_words_through_both(two: Two, api: str, stream: bool) -> None:
    key = two.session()["key"]
    read = kits()[api].assemble if stream else kits()[api].read
    first = read(ask(two, key, api, f"go {api} {stream}", stream=stream).content)
    again = read(ask(two, key, api, f"on {api} {stream}", stream=stream).content)
    said = {first.text, again.text}
    assert said == {"Let me look.", "all is well"}, "the script goes round"
    call = next(turn for turn in (first, again) if turn.calls).calls[0]
    assert call.name == "bash" and json.loads(call.arguments) == {"command": "ls"}


def test_a_tool_loop_is_one_exact_row_behind_both(two: Two) -> None:
    """The outer one records text; the inner one sees a conversation that it can go on with, id by id."""
    key = two.session()["key"]
    url, headers = two.said["openai"] + "/chat/completions", {"authorization": f"Bearer {key}"}
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    talk: list[dict[str, Any]] = [{"role": "user", "content": "a loop of its own"}]
    for _ in range(4):
        reply = httpx.post(url, json={"model": "m", "messages": talk, "tools": tools}, headers=headers, timeout=30)
        assert reply.status_code == 200, reply.text
        message = reply.json()["choices"][0]["message"]
        talk.append(message)
        for call in message.get("tool_calls") or ():
            talk.append({"role": "tool", "tool_call_id": call["id"], "content": "a.txt"})
        if not message.get("tool_calls"):
            talk.append({"role": "user", "content": "go on"})
    with RunStore.open(two.inner, write=False) as store:
        (session,) = [state.key.session_id for state, _ in store.sessions()]
        turns = [t for t in store.iter_turns(session) if t.head.tools]
    chain = turns[-4:]
    assert [turn.parent for turn in chain[1:]] == [turn.turn_id for turn in chain[:-1]]
    assert {turn.level for turn in chain} == {"L4"} and {turn.untrainable for turn in chain} == {None}


@pytest.mark.parametrize("api", DIALECT_NAMES)
def test_what_does_not_fit_is_said_in_the_agents_own_words(two: Two, api: str) -> None:
    reply = ask(two, two.session()["key"], api, "word " * 200_000, stream=False)
    assert reply.status_code == 400, reply.text[:300]
    assert "context" in reply.text or "prompt is too long" in reply.text or "token count" in reply.text


def test_images_are_named_in_their_place(two: Two) -> None:
    data = "data:image/png;base64," + base64.b64encode(PNG).decode()
    content = [{"type": "text", "text": "what is this"}, {"type": "image_url", "image_url": {"url": data}}]
    more = {"messages": [{"role": "user", "content": content}]}
    session = two.session()
    assert ask(two, session["key"], "chat", "", stream=False, **more).status_code == 200
    with RunStore.open(two.outer, write=False) as store:
        (turn,) = store.iter_turns(session["session"])
    assert "media_omitted" in turn.drift


def test_all_of_it_is_counted_and_none_of_it_trains(two: Two) -> None:
    """The last test here: it ends the outer gateway."""
    told = two.control.get("/metrics").text
    assert 'tugline_engine_breaker{engine="policy"} 0.0' in told
    two.stop()
    done = tugline("report", str(two.outer), "--json")
    report = json.loads(done.stdout)
    assert report["levels"] == {"L0": report["turns"]} and report["refused"] == {"level_l0": report["turns"]}
    assert report["tokens"].get("trained", 0) == 0 and report["spent"]["policy"]["calls"] == report["turns"]
    cost = report["spent"]["policy"]["cost"]
    assert cost > 0 and f'tugline_engine_api_cost_total{{engine="policy"}} {cost}' in told
    key = two.said["key"].encode()
    assert not [p for p in two.outer.rglob("*") if p.is_file() and key in p.read_bytes()]
