from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tugline.core.contracts import Bundle, Exit, Launch, Mount
from tugline.core.errors import ConfigError, HarnessError
from tugline.harnesses import harness

BUNDLE = Bundle((Mount(Path("/c/pi"), "/opt/tugline/pi"), Mount(Path("/c/node"), "/opt/tugline/node")), "1.6.0")
DONE = Exit(0, 1.0)


def launch(instruction: str = "do it", isolated: bool = True) -> Launch:
    return Launch(instruction, "http://127.0.0.1:8000", "tug-secret", "/app", "/home/agent", 4096, 512, isolated)


def lines(*events: object) -> bytes:
    return b"".join(msgspec.json.encode(e) + b"\n" for e in events)


def ended(reason: str, error: str | None = None) -> dict[str, object]:
    return {"type": "message_end", "message": {"role": "assistant", "stopReason": reason, "errorMessage": error}}


def test_the_instruction_is_never_an_argument():
    for text in ("-x --help", "@/etc/passwd", "--", "w" * 200_000):
        command = harness("pi").plan(launch(text), BUNDLE).command
        assert command.stdin == text.encode()
        assert text not in command.argv


def test_the_key_is_in_the_environment_only():
    plan = harness("pi").plan(launch(), BUNDLE)
    assert not any(b"tug-secret" in data for _, data in plan.files)
    assert not any("tug-secret" in a for a in plan.command.argv)
    config = msgspec.json.decode(dict(plan.files)["/home/agent/.pi/agent/models.json"])["providers"]["tugline"]
    assert plan.command.env[config["apiKey"].removeprefix("$")] == "tug-secret"
    assert config["baseUrl"] == "http://127.0.0.1:8000/v1"
    assert config["models"] == [{"id": "policy", "reasoning": False, "contextWindow": 4096 + 65_536, "maxTokens": 512}]


def test_paths_inside_and_outside():
    inside = harness("pi").plan(launch(), BUNDLE).command
    assert inside.argv[:1] == ("/opt/tugline/node/bin/node",)
    assert inside.argv[1].startswith("/opt/tugline/pi/node_modules/")
    assert inside.mounts == BUNDLE.mounts
    outside = harness("pi").plan(launch(isolated=False), BUNDLE).command
    assert outside.argv[0] == "/c/node/bin/node"
    assert outside.argv[1].startswith("/c/pi/")
    assert outside.mounts == ()


def test_an_empty_instruction_is_refused():
    with pytest.raises(HarnessError):
        harness("pi").plan(launch(" \n"), BUNDLE)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (lines(ended("stop"), {"type": "agent_end"}), None),
        (lines(ended("error", "400\nbad"), {"type": "agent_end"}), "pi: 400 bad"),
        (lines(ended("error", "500"), ended("stop")), None),
        (lines(ended("stop"), {"type": "auto_retry_end", "success": False, "finalError": "gone"}), "pi: gone"),
        (b'lf a line"}}\n' + lines(ended("aborted")), "pi: no reason given"),
        (lines({"type": "message_end", "message": {"role": "toolResult", "stopReason": "error"}}), None),
        (b"\xff\xfe{\n{not json}\n[1]\n", None),
    ],
)
def test_the_event_log_decides(log, said):
    assert harness("pi").failure(DONE, log) == said


def test_a_bad_exit_without_a_word_is_a_failure_too():
    assert harness("pi").failure(Exit(139, 1.0), b"") == "pi ended with 139"


@pytest.mark.parametrize(
    ("name", "dialect", "api", "url"),
    [
        ("pi", "chat", "openai-completions", "/v1"),
        ("pi:chat", "chat", "openai-completions", "/v1"),
        ("pi:responses", "responses", "openai-responses", "/v1"),
        ("pi:anthropic", "anthropic", "anthropic-messages", ""),
        ("pi:gemini", "gemini", "google-generative-ai", "/v1beta"),
    ],
)
def test_each_api(name: str, dialect: str, api: str, url: str):
    made = harness(name)
    assert made.dialect == dialect and made.name == name.removesuffix(":chat")
    config = msgspec.json.decode(dict(made.plan(launch(), BUNDLE).files)["/home/agent/.pi/agent/models.json"])
    provider = config["providers"]["tugline"]
    assert (provider["api"], provider["baseUrl"]) == (api, f"http://127.0.0.1:8000{url}")
    assert ("compat" in provider) == (dialect == "chat")


def test_an_unknown_api_is_named():
    with pytest.raises(ConfigError, match="smoke"):
        harness("pi:smoke")
