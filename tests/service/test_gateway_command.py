"""`tugline gateway` as people and programs start it: what it prints, how it ends, what its session commands do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import tugline as tugline_package
from real.support import tugline
from service.control_kit import gateway_process
from tugline.cli.main import app
from tugline.store import RunStore

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "script.jsonl"
    script.write_text('{"settings": {"repeat": true}}\n{"text": "hello"}\n')
    return ("--engine", f"scripted:{script}", "--out", str(tmp_path / "run"))


@pytest.fixture
def running(tmp_path: Path, flags: tuple[str, ...]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    with gateway_process(tmp_path, *flags) as pair:
        yield pair


def say_hi(env: dict[str, str]) -> dict[str, int]:
    """One call per API, as its clients build it from the environment; {API: status}."""
    ask = [{"role": "user", "content": "hi"}]
    openai = {"authorization": f"Bearer {env['OPENAI_API_KEY']}"}
    anthropic = {"x-api-key": env["ANTHROPIC_API_KEY"], "anthropic-version": "2023-06-01"}
    gemini = {"x-goog-api-key": env["GEMINI_API_KEY"]}
    calls = {
        "chat": (f"{env['OPENAI_BASE_URL']}/chat/completions", openai, {"model": "m", "messages": ask}),
        "responses": (f"{env['OPENAI_BASE_URL']}/responses", openai, {"model": "m", "input": "hi"}),
        "anthropic": (
            f"{env['ANTHROPIC_BASE_URL']}/v1/messages",
            anthropic,
            {"model": "m", "max_tokens": 50, "messages": ask},
        ),
        "gemini": (
            f"{env['GOOGLE_GEMINI_BASE_URL']}/v1beta/models/m:generateContent",
            gemini,
            {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        ),
    }
    return {
        name: httpx.post(url, headers=h, json=body, timeout=60).status_code for name, (url, h, body) in calls.items()
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_line_when_ready_every_api_and_an_orderly_end(
    running: tuple[subprocess.Popen[str], dict[str, Any]], number: signal.Signals, tmp_path: Path
) -> None:
    process, ready = running
    assert {"session", "key", "openai", "anthropic", "gemini", "control", "env", "token_file"} <= set(ready)
    assert ready["openai"].endswith("/v1") and not ready["anthropic"].endswith("/v1")
    assert say_hi(ready["env"]) == dict.fromkeys(("chat", "responses", "anthropic", "gemini"), 200)
    process.send_signal(number)
    rest = process.communicate(timeout=30)[0]
    said = (tmp_path / "gateway.log").read_text()
    assert process.returncode == 0, said
    assert rest == ""  # the line it printed when ready was the only one
    assert "1 open sessions ended as cancelled" in said and "calls 4/4 exact" in said and "Traceback" not in said
    assert ready["key"] not in said
    tugline("verify", str(tmp_path / "run"))


def test_what_people_see_can_be_pasted_into_a_shell(
    tmp_path: Path, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tugline.cli.main", "gateway", *flags, "--until-stdin-closes"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(12)]
    done = subprocess.run(
        ["sh", "-c", "".join(lines) + "env"],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    env = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert say_hi(env) == dict.fromkeys(("chat", "responses", "anthropic", "gemini"), 200)
    monkeypatch.setenv("TUGLINE_SESSION", env["TUGLINE_SESSION"])
    monkeypatch.setenv("TUGLINE_RUN", env["TUGLINE_RUN"])
    for command in (("show",), ("end", "--reward", "1"), ("delete",)):
        assert CliRunner().invoke(app, ["gateway", "session", *command]).exit_code == 0, command
    tugline("config", "show")  # the two are no settings
    assert any("Claude Code" in line for line in lines) and any("Gemini CLI" in line for line in lines)
    _, said = process.communicate("", timeout=30)  # closes standard input
    assert process.returncode == 0 and "no call was answered" in said, said  # its records were removed


def test_sessions_from_the_command_line(
    running: tuple[subprocess.Popen[str], dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("--run", str(tmp_path / "run"))

    def ask(*args: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["gateway", "session", *args])
        assert done.exit_code == code, (args, done.output)
        return done.stdout

    def ask_error(*args: str) -> str:
        return str(json.loads(ask(*args, "--json", code=2))["error"]["message"])

    made = json.loads(
        ask("new", *run, "--group", "g", "--task", "t", "--name", "n", "--sampling", "temperature=0.5,max_tokens=9",
            "--ttl", "10m", "--max-turns", "3", "--metadata", '{"a": 1}', "--streaming", "live",
            "--history-reasoning", "template", "--edits", "text_changed=retain,train_partial=true", "--json")
    )  # fmt: skip
    assert set(say_hi(made["env"]).values()) <= {200, 400, 403}  # three turns are allowed
    one = made["session"]
    shown = json.loads(ask("show", one, *run, "--json"))
    assert shown["usage"]["turns"] == 3 and shown["options"]["ttl"] == 600.0 and shown["metadata"] == {"a": 1}
    options = shown["options"]
    assert (options["streaming"], options["history_reasoning"]) == ("live", "template")
    assert options["edits"] == {"text_changed": "retain", "train_partial": True}
    assert made["key"] not in ask("list", *run) + ask("show", one, *run)
    ended = json.loads(ask("end", one, *run, "--reward", "0.5", "--part", "x=1", "--json"))
    assert (ended["reward"], ended["parts"]) == (0.5, {"x": 1.0})
    assert json.loads(ask("show", one, *run, "--trajectory"))["reward"] == 0.5
    assert [s["session"] for s in json.loads(ask("list", *run, "--group", "g", "--json"))["sessions"]] == [one]
    assert json.loads(ask("delete", one, *run, "--json")) == {"session": one, "removed": True}
    assert "export ANTHROPIC_BASE_URL=" in ask("new", *run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(tmp_path / "run")
    assert ask("list").count("running") == 2  # the newest run under runs/
    for wrong, code in (
        (("end", one), 1),
        (("end", running[1]["session"], "--outcome", "won"), 2),
        (("end", running[1]["session"], "--part", "x"), 2),
        (("end", running[1]["session"], "--reward", "nan"), 2),
        (("new", "--metadata", "[1]"), 2),
        (("new", "--sampling", "temp=1"), 2),
        (("new", "--ttl", "soon"), 2),
        (("list", "--run", str(tmp_path)), 1),
    ):
        said = json.loads(ask(*wrong, "--json", code=code))
        assert said["error"]["message"], wrong
    for flag, value, hint in (
        ("--media", "no", "omit, refuse"),
        ("--constraints", "no", "refuse, ignore"),
        ("--streaming", "no", "buffered, live"),
        ("--history-reasoning", "no", "keep, template"),
        ("--edits", "call_added=retain", "text_changed"),
        ("--edits", "text_changed=keep", "retain, honour"),
        ("--ttl", "10x", "10m"),
        ("--max-turns", "0", "max_turns"),
        ("--engine", "x", "none but the policy's"),
    ):
        message = json.loads(ask("new", flag, value, "--json", code=2))["error"]["message"]
        assert hint in message and "limits." not in message, message
    assert "completed, agent_failed" in ask_error("end", one, "--outcome", "succeeded")
    assert "open, queued" in ask_error("list", "--state", "opn")
    silent = CliRunner().invoke(app, ["gateway", "session", "end", running[1]["session"], "--reward", "1", "--json"])
    assert silent.exit_code == 1 and json.loads(silent.stdout)["outcome"] == "engine_failed"
    assert "made no call: check the URL" in silent.stderr and "reward was not kept" in silent.stderr
    refused = json.loads(ask("new", "--json"))
    body = {"model": "m", "n": 3, "messages": [{"role": "user", "content": "x"}]}
    headers = {"authorization": f"Bearer {refused['key']}"}
    assert httpx.post(f"{refused['openai']}/chat/completions", json=body, headers=headers).status_code == 400
    told = CliRunner().invoke(app, ["gateway", "session", "end", refused["session"], "--reward", "1"]).stderr
    assert "only one choice per call" in told and "check the URL" not in told


def test_helpful_words_when_it_cannot_start(
    running: tuple[subprocess.Popen[str], dict[str, Any]], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    in_use = tugline("gateway", *flags, "--json", check=1)
    assert "in use by process" in json.loads(in_use.stdout)["error"]["message"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        other = (*flags[:2], "--out", str(tmp_path / "other"))
        for flag in ("--port", "--control-port"):
            said = json.loads(tugline("gateway", *other, flag, port, "--json", check=1).stdout)["error"]["message"]
            assert port in said and f"{flag} 0" in said
            assert not (tmp_path / "other").exists()
    tugline("gateway", "--engine", "scripted:/nope", "--out", str(tmp_path / "none"), "--json", check=2)
    assert not (tmp_path / "none").exists()
    assert (tmp_path / "run" / "run.db").is_file()
    for wrong in (("--harness", "nope"), ("--model", "/nope"), ("--engine", "vlm"), ("--set", "models.routes.x=y")):
        tugline("rollout", "copy-file-0", "--sandbox", "local", "--out", str(tmp_path / "none"), *wrong, check=2)
        assert not (tmp_path / "none").exists(), wrong


def test_a_port_that_is_none_names_its_flag() -> None:
    for flag in ("--port", "--control-port"):
        done = CliRunner().invoke(app, ["gateway", flag, "70000", "--json"])
        assert done.exit_code == 2 and json.loads(done.stdout)["error"]["message"].startswith(f"{flag}: 70000")


def test_session_commands_without_a_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["gateway", "session", "list", "--json"])
    assert done.exit_code == 1 and "no gateway is running" in json.loads(done.stdout)["error"]["message"]


def test_a_session_on_another_engine_is_recorded_rewarded_and_never_trained(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"settings": {"repeat": true}}\n{"text": "hello"}\n')
    config = tmp_path / "run.toml"
    spec = f'spec = "scripted:{script}"'
    config.write_text(f"[engine]\n{spec}\n[engines.teacher]\n{spec}\n")
    run = tmp_path / "run"
    with gateway_process(tmp_path, "--config", str(config), "--out", str(run), "--no-session") as (process, ready):
        assert ready["session"] is None and ready["env"] == {}
        with tugline_package.open_gateway(run=run) as gateway:
            with gateway.open_session(engine_name="teacher") as taught:
                assert set(say_hi(taught.env).values()) == {200}
                taught.end(0.5)
            with gateway.open_session(routes=[{"pattern": "other-*", "engine": "teacher"}]) as mixed:
                assert set(say_hi(mixed.env).values()) == {200}
                mixed.end(1.0)
            assert (taught.trajectory().reward, taught.trajectory().traces) == (0.5, ())
            assert taught.trajectory().untrained.keys() == {"other_engine"}
            assert mixed.trajectory().traces and not mixed.trajectory().untrained
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, (tmp_path / "gateway.log").read_text()
    tugline("verify", str(run))


def test_a_stop_while_an_agent_works_aborts_its_call_and_keeps_what_was_sampled(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "first"}\n{"text": "slow", "delay_s": 600}\n')
    run = tmp_path / "run"
    with gateway_process(tmp_path, "--engine", f"scripted:{script}", "--out", str(run)) as (process, ready):
        url, headers = f"{ready['openai']}/chat/completions", {"authorization": f"Bearer {ready['key']}"}
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert httpx.post(url, json=body, headers=headers, timeout=60).status_code == 200
        with tugline_package.open_gateway(run=run) as gateway, ThreadPoolExecutor(1) as pool:
            slow = pool.submit(httpx.post, url, json=body, headers=headers, timeout=60)
            while "tugline_calls_running 1.0" not in gateway.client.metrics():
                assert not slow.done()
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, (tmp_path / "gateway.log").read_text()
            assert slow.exception(30) is not None or slow.result().status_code >= 400
    with RunStore.open(run, write=False) as store:
        rows = store.trajectory(ready["session"])
    assert rows is not None and rows.outcome.value == "cancelled" and len(rows.traces) == 1
    tugline("verify", str(run))
