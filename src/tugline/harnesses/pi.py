"""Pi (npm `@earendil-works/pi-coding-agent`, MIT): four tools, one small system prompt, no side calls.

It runs as it is: its own system prompt and tools. Extensions, skills, themes, context files and MCP servers are off, so
that the prompt depends on the task only; so are compaction (the history then only grows) and every start-up look-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from tugline.core.contracts import Bundle, Command, Exit, Launch, Mount, Plan
from tugline.core.errors import ConfigError, HarnessError
from tugline.harnesses import bundles

PACKAGE = bundles.NpmPackage(
    name="pi",
    package="@earendil-works/pi-coding-agent",
    version="1.6.0",
    needs="node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js",
    size="about 170 MB, once",
)
INSIDE, NODE_INSIDE = "/opt/tugline/pi", "/opt/tugline/node"
"""Where a sandbox shows the installation. Its documentation paths are part of Pi's system prompt: keep them."""
FLAGS = (
    "-p", "--mode", "json", "--provider", "tugline", "--model", "policy", "--no-session", "--no-context-files",
    "--no-extensions", "--no-skills", "--no-prompt-templates", "--no-themes", "--no-mcp", "--offline",
    "--thinking", "off",
)  # fmt: skip
KEY = "TUGLINE_SESSION_KEY"
APIS = {
    "chat": ("openai-completions", "/v1"),
    "responses": ("openai-responses", "/v1"),
    "anthropic": ("anthropic-messages", ""),
    "gemini": ("google-generative-ai", "/v1beta"),
}
"""Dialect -> Pi's name of that API, and what its base URL ends with."""


class PiHarness:
    """See `Harness` in core.contracts. `pi` speaks Chat; `pi:responses`, `pi:anthropic` and `pi:gemini` the others."""

    def __init__(self, dialect: str = "chat") -> None:
        """Raises ConfigError for an API that Pi has not."""
        if dialect not in APIS:
            raise ConfigError(f"pi speaks {', '.join(APIS)}, not {dialect!r}", where="harness")
        self.name = "pi" if dialect == "chat" else f"pi:{dialect}"
        self.dialect = dialect

    async def install(self, cache: Path, say: Callable[[str], None]) -> Bundle:
        """Install the pinned version with npm. Raises HarnessError with npm's words."""
        root = await bundles.install(PACKAGE, cache, say)
        node = await asyncio.to_thread(bundles.node_dir)
        return Bundle((Mount(root, INSIDE), Mount(node, NODE_INSIDE)), PACKAGE.version)

    def plan(self, launch: Launch, bundle: Bundle) -> Plan:
        """Configuration in the home directory, the instruction on standard input.

        Pi strips white space at both ends of what it reads there. As an argument, an instruction that starts with `@`
        would name a file, and one beyond 128 KiB could not be passed.
        """
        if not launch.instruction.strip():
            raise HarnessError("Pi needs an instruction that is not empty")
        pi, node = (m.target if launch.isolated else str(m.source) for m in bundle.mounts)
        config = f"{launch.home}/.pi/agent"
        env = {
            "HOME": launch.home, "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8", "TERM": "dumb", "PI_OFFLINE": "1", "PI_TELEMETRY": "0", KEY: launch.key,
        }  # fmt: skip
        command = Command(
            (f"{node}/bin/node", f"{pi}/{PACKAGE.needs}", *FLAGS),
            env=env,
            cwd=launch.workdir,
            stdin=launch.instruction.encode(),
            mounts=bundle.mounts if launch.isolated else (),
        )
        return Plan(
            command, ((f"{config}/models.json", models(launch, self.dialect)), (f"{config}/settings.json", settings()))
        )

    def failure(self, exit: Exit, log: bytes) -> str | None:
        """Pi ends with 0 even after a fatal API error, so its event log decides."""
        said = _last_word(log)
        if said is not None:
            return said
        if exit.code != 0:
            return f"pi ended with {exit.code}"
        return None


def models(launch: Launch, dialect: str = "chat") -> bytes:
    """Pi's models.json: one provider, one model."""
    # Pi cuts its own max_tokens to window - estimate - 4,096, which leaves 1 in a small window. The gateway knows the
    # true counts and clamps or refuses by them, so Pi gets a window that never makes it guess.
    model = {
        "id": "policy",
        "reasoning": False,
        "contextWindow": launch.context + 65_536,
        "maxTokens": launch.max_tokens,
    }
    api, version = APIS[dialect]
    provider: dict[str, Any] = {"baseUrl": f"{launch.base_url}{version}", "api": api, "apiKey": f"${KEY}"}
    if dialect == "chat":
        provider["compat"] = {
            "maxTokensField": "max_tokens",
            "supportsDeveloperRole": False,
            "supportsReasoningEffort": False,
            "supportsStore": False,
        }
    provider["models"] = [model]
    return msgspec.json.encode({"providers": {"tugline": provider}})


def settings() -> bytes:
    """Pi's settings.json. The gateway sends keep-alives and has its own limits, so Pi's idle limit is off."""
    return msgspec.json.encode({"compaction": {"enabled": False}, "httpIdleTimeoutMs": "disabled"})


def _last_word(log: bytes) -> str | None:
    """The error of the last assistant message in the tail of a log of JSON lines; None if it ended well.

    The tail may begin in the middle of a line.
    """
    for event in _events_backwards(log):
        kind = event.get("type")
        if kind == "auto_retry_end" and event.get("success") is False:
            return _one_line(event.get("finalError"))
        message = event.get("message")
        if kind != "message_end" or not isinstance(message, dict) or message.get("role") != "assistant":
            continue
        if message.get("stopReason") in ("error", "aborted"):
            return _one_line(message.get("errorMessage"))
        return None
    return None


def _events_backwards(log: bytes) -> Iterator[dict[str, Any]]:
    for line in reversed(log.splitlines()):
        if line.startswith(b"{"):
            try:
                event = msgspec.json.decode(line)
            except msgspec.DecodeError:
                continue
            if isinstance(event, dict):
                yield event


def _one_line(text: object) -> str:
    words = " ".join(str(text or "no reason given").split())
    return f"pi: {words}"[:300]
