"""Agent programs for tests: how to point each at a gateway, and what its shell tool is called.

TUGLINE_TEST_CLIS names a directory that holds `NAME/node_modules` for each of PACKAGES; what is not there is skipped.
`python tests/real/clis.py DIR` installs them there (1.4 GB). Pi is installed by its harness, or found where
TUGLINE_TEST_PI or TUGLINE_CACHE say.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tugline.core.contracts import Bundle, Launch, Mount
from tugline.harnesses import bundles, harness
from tugline.harnesses.pi import INSIDE, NODE_INSIDE, PACKAGE

PACKAGES = {
    "claude-code": "@anthropic-ai/claude-code@2.1.332",
    "codex": "@openai/codex@0.171.0",
    "gemini-cli": "@google/gemini-cli@0.61.0",
    "qwen-code": "@qwen-code/qwen-code@0.24.4",
    "opencode": "opencode-ai@1.18.33",
}
WINDOW = 131_072


@dataclass(frozen=True)
class Started:
    """A command line and the whole of its environment. Files are in its home already."""

    argv: tuple[str, ...]
    env: dict[str, str]
    stdin: bytes = b""


@dataclass(frozen=True)
class Cli:
    """`start(home, work, url, key, task)` writes its configuration. `shell(command)` is a call of its shell tool."""

    name: str
    dialect: str
    start: Callable[[Path, Path, str, str, str], Started]
    shell: Callable[[str], dict[str, str]]


def shell(name: str, key: str = "command", **more: object) -> Callable[[str], dict[str, str]]:
    return lambda command: {"name": name, "arguments": json.dumps({key: command, **more})}


def binary(package: str, name: str) -> Path:
    """An installed program, or a skipped test."""
    folder = os.environ.get("TUGLINE_TEST_CLIS")
    if not folder:
        pytest.skip(f"set TUGLINE_TEST_CLIS to a directory with {package}/node_modules ({PACKAGES[package]})")
    path = Path(folder).absolute() / package / "node_modules" / ".bin" / name
    if not path.exists():
        pytest.skip(f"{path} is not there: npm install --prefix {folder}/{package} {PACKAGES[package]}")
    return path


def base_env(home: Path) -> dict[str, str]:
    node = bundles.node_dir() / "bin"
    return {
        "HOME": str(home), "PATH": f"{node}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb",
        "NO_COLOR": "1", "CI": "1",
    }  # fmt: skip


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def run_cli(started: Started, work: Path, log: Path, limit: float) -> int:
    """Run to the end, or kill all of it after `limit` seconds. The exit status; output and errors are in `log`."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            started.argv,
            env=started.env,
            cwd=work,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            process.communicate(started.stdin, timeout=limit)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
        return process.returncode


def claude(home: Path, work: Path, url: str, key: str, task: str) -> Started:
    argv = (str(binary("claude-code", "claude")), "-p", task, "--model", "policy", "--dangerously-skip-permissions")
    env = {
        **base_env(home), "IS_SANDBOX": "1", "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1", "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(WINDOW), "CLAUDE_CODE_MAX_RETRIES": "0",
    }  # fmt: skip
    return Started((*argv, "--output-format", "json"), env)


def codex(home: Path, work: Path, url: str, key: str, task: str) -> Started:
    put(
        home / ".codex/config.toml",
        'model = "policy"\nmodel_provider = "tugline"\ncheck_for_update_on_startup = false\n'
        f"model_context_window = {WINDOW}\n"
        f'[model_providers.tugline]\nname = "tugline"\nbase_url = "{url}/v1"\nenv_key = "TUGLINE_KEY"\n'
        'wire_api = "responses"\nrequest_max_retries = 0\nstream_max_retries = 0\n[analytics]\nenabled = false\n',
    )
    off = [word for name in ("plugins", "apps", "multi_agent", "goals") for word in ("--disable", name)]
    argv = (
        str(binary("codex", "codex")), "exec", "--json", "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox", *off, "-c", "web_search=disabled", task,
    )  # fmt: skip
    return Started(argv, {**base_env(home), "TUGLINE_KEY": key})


def gemini(home: Path, work: Path, url: str, key: str, task: str) -> Started:
    put(
        home / ".gemini/settings.json",
        json.dumps(
            {
                "privacy": {"usageStatisticsEnabled": False},
                "general": {"enableAutoUpdate": False},
                "security": {"auth": {"selectedType": "gemini-api-key"}},
            }
        ),
    )
    env = {
        **base_env(home), "GEMINI_API_KEY": key, "GOOGLE_GEMINI_BASE_URL": url, "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }  # fmt: skip
    argv = (str(binary("gemini-cli", "gemini")), "-p", task, "--yolo", "-m", "gemini-2.5-pro", "-o", "json")
    return Started(argv, env)


def qwen(home: Path, work: Path, url: str, key: str, task: str) -> Started:
    generation = {"contextWindowSize": WINDOW, "timeout": 600_000, "maxRetries": 0}
    memory = {"enableManagedAutoMemory": False, "enableManagedAutoDream": False, "enableAutoSkill": False}
    put(
        home / ".qwen/settings.json",
        json.dumps(
            {
                "privacy": {"usageStatisticsEnabled": False},
                "general": {"enableAutoUpdate": False},
                "memory": memory,
                "model": {"generationConfig": generation},
            }
        ),
    )
    env = {
        **base_env(home), "OPENAI_API_KEY": key, "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_MODEL": "policy",
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
    }  # fmt: skip
    argv = (str(binary("qwen-code", "qwen")), "-p", task, "--yolo", "--auth-type", "openai", "-o", "json", "--bare")
    return Started(argv, env)


def opencode(home: Path, work: Path, url: str, key: str, task: str) -> Started:
    model = {"name": "m", "reasoning": True, "limit": {"context": WINDOW, "output": 8192}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{url}/v1", "apiKey": key},
        "models": {"policy": model},
    }
    put(
        home / ".config/opencode/opencode.json",
        json.dumps(
            {
                "autoupdate": False, "share": "disabled", "model": "tugline/policy", "permission": {"*": "allow"},
                "agent": {"title": {"disable": True}}, "provider": {"tugline": provider},
            }
        ),
    )  # fmt: skip
    env = {**base_env(home), "OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    argv = (
        str(binary("opencode", "opencode")), "run", "--pure", "--auto", "--format", "json",
        "-m", "tugline/policy", task,
    )  # fmt: skip
    return Started(argv, env)


def pi_bundle() -> Bundle:
    given = os.environ.get("TUGLINE_TEST_PI")
    if given:
        return Bundle((Mount(Path(given), INSIDE), Mount(bundles.node_dir(), NODE_INSIDE)), PACKAGE.version)
    cache = Path(os.environ.get("TUGLINE_CACHE") or Path.home() / ".cache/tugline")
    return asyncio.run(harness("pi").install(cache, print))


def pi(name: str) -> Callable[[Path, Path, str, str, str], Started]:
    def start(home: Path, work: Path, url: str, key: str, task: str) -> Started:
        launch = Launch(task, url, key, str(work), str(home), WINDOW, 4096, isolated=False)
        plan = harness(name).plan(launch, pi_bundle())
        for path, data in plan.files:
            put(Path(path), data.decode())
        return Started(plan.command.argv, dict(plan.command.env), plan.command.stdin)

    return start


CLIS: tuple[Cli, ...] = (
    *(Cli(n, harness(n).dialect, pi(n), shell("bash")) for n in ("pi", "pi:responses", "pi:anthropic", "pi:gemini")),
    Cli("claude-code", "anthropic", claude, shell("Bash", description="Run.")),
    Cli("codex", "responses", codex, shell("exec_command", "cmd")),
    Cli("gemini-cli", "gemini", gemini, shell("run_shell_command")),
    Cli("qwen-code", "chat", qwen, shell("run_shell_command", is_background=False)),
    Cli("opencode", "chat", opencode, shell("bash", description="Run.")),
)


def install(folder: Path) -> None:
    """What is not there yet, from npm."""
    node = bundles.node_dir()
    npm = [str(node / "bin" / "node"), str(node / "lib/node_modules/npm/bin/npm-cli.js"), "install", "--no-fund"]
    env = {**os.environ, "PATH": f"{node / 'bin'}:{os.environ['PATH']}"}
    for name, package in PACKAGES.items():
        if not (folder / name / "node_modules").is_dir():
            print(f"installing {package}", flush=True)
            subprocess.run([*npm, "--no-audit", "--prefix", str(folder / name), package], env=env, check=True)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
