"""Run the exactness suite against gateways of others, each in a virtual environment of its own.

    python bench/exactness.py --model DIR --venvs ~/.cache/tugline-foreign [--only litellm,miles] [--quick] [--repeat 3]

DIR holds a tokenizer and a chat template of the Qwen3 family. Packages come from PyPI in the versions named below.
Prints a table for docs/exactness-of-gateways.md and writes the whole reports, as JSON, beside the environments. With
`--repeat N` every run is made N times, and the exit status is 1 unless all of a gateway's runs found the same.
`--shares`: shares of odd spellings to run with, the table's first. What follows `--` goes to the suite.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KEY = "sk-exactness"


@dataclass(frozen=True)
class Place:
    """Where one run happens."""

    python: Path
    model: Path
    engine: int
    port: int
    scratch: Path
    door: int = 0
    """Port on which a launcher opens sessions, where the gateway has no route for that."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def engine_url(self) -> str:
        return f"http://127.0.0.1:{self.engine}"


@dataclass(frozen=True)
class Gateway:
    """One gateway: what to install, how to start it, how the suite reaches it."""

    packages: tuple[str, ...]
    start: Callable[[Place], list[str]]
    flags: Callable[[Place], list[str]]
    alone: tuple[str, ...] = ()
    """Packages that are installed without what they ask for."""
    shown: str = ""


def rllm(place: Place) -> list[str]:
    listen = ["--host", "127.0.0.1", "--port", str(place.port), "--store", "memory", "--log-level", "WARNING"]
    return [str(place.python), "-m", "rllm_model_gateway", *listen, "--worker", f"{place.engine_url}/v1"]


def rllm_flags(place: Place) -> list[str]:
    session = f"{place.url}/sessions/{{session}}"
    return ["--url", f"{session}/v1", "--records", f"{session}/traces"]


def litellm(place: Place) -> list[str]:
    name = place.model.name
    config = f"""
model_list:
  - model_name: {name}
    litellm_params:
      model: hosted_vllm/{name}
      api_base: {place.engine_url}/v1
      api_key: none
      extra_body: {{return_token_ids: true, logprobs: true}}
litellm_settings: {{drop_params: true, num_retries: 0}}
general_settings: {{master_key: {KEY}}}
"""
    file = place.scratch / "litellm.yaml"
    file.write_text(config)
    listen = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [str(place.python.with_name("litellm")), "--config", str(file), *listen]


def litellm_flags(place: Place) -> list[str]:
    return ["--url", place.url, "--key", KEY]


def verifiers(client: str) -> Callable[[Place], list[str]]:
    def start(place: Place) -> list[str]:
        where = ["--port", str(place.port), "--engine", place.engine_url, "--client", client]
        script = str(HERE / "foreign" / "verifiers_server.py")
        return [str(place.python), script, *where, "--model", str(place.model), "--name", place.model.name]

    return start


def verifiers_flags(place: Place) -> list[str]:
    door = ["--open", f"{place.url}/open", "--records", f"{place.url}/records/{{session}}"]
    return ["--url", place.url, "--key", "{session}", *door]


def miles(place: Place) -> list[str]:
    where = ["--port", str(place.port), "--engine", place.engine_url, "--model", str(place.model)]
    return [str(place.python), str(HERE / "foreign" / "miles_server.py"), *where]


def miles_flags(place: Place) -> list[str]:
    session = f"{place.url}/sessions/{{session}}"
    return ["--url", session, "--open", f"{place.url}/sessions", "--records", session]


def agentlightning(place: Place) -> list[str]:
    where = ["--port", str(place.port), "--door", str(place.door), "--engine", place.engine_url]
    script = str(HERE / "foreign" / "agentlightning_server.py")
    return [str(place.python), script, *where, "--name", place.model.name]


def agentlightning_flags(place: Place) -> list[str]:
    door = f"http://127.0.0.1:{place.door}"
    records = ["--open", f"{door}/open", "--records", f"{door}/records/{{session}}"]
    return ["--url", f"{place.url}/rollout/{{session}}/v1", *records]


def nothing(_place: Place) -> list[str]:
    return []


GATEWAYS: dict[str, Gateway] = {
    "tugline": Gateway((), nothing, nothing, shown="this version, in process"),
    "engine-alone": Gateway(
        (), nothing, lambda p: ["--url", p.engine_url], shown="no gateway: the fake engine's own API"
    ),
    "rllm-model-gateway": Gateway(("rllm-model-gateway==0.1.0",), rllm, rllm_flags),
    "verifiers-train": Gateway(("verifiers==0.4.0", "renderers==0.1.12"), verifiers("train"), verifiers_flags),
    "verifiers-eval": Gateway(("verifiers==0.4.0", "renderers==0.1.12"), verifiers("eval"), verifiers_flags),
    "litellm": Gateway(("litellm[proxy]==1.108.7",), litellm, litellm_flags),
    "agentlightning": Gateway(("agentlightning==0.3.0",), agentlightning, agentlightning_flags),
    "miles": Gateway(
        ("fastapi", "uvicorn", "httpx", "transformers==5.24.0", "setproctitle", "jinja2"),
        miles,
        miles_flags,
        alone=("miles-rl==0.0.2",),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--venvs", type=Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--patience", default="30")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--shares", default="0.3,0")
    parser.add_argument("more", nargs="*")
    asked = parser.parse_args()
    shares = asked.shares.split(",")
    names = asked.only.split(",") if asked.only else list(GATEWAYS)
    asked.venvs.mkdir(parents=True, exist_ok=True)
    same = True
    for name in names:
        python = environment(asked.venvs, name, GATEWAYS[name])
        found: list[dict[str, dict[str, Any]]] = []
        for number in range(1, asked.repeat + 1):
            found.append({share: run(name, GATEWAYS[name], python, share, asked, number) for share in shares})
        print(table(name, found[0]), flush=True)
        if asked.repeat > 1:
            alike = all(verdicts(one) == verdicts(found[0]) for one in found)
            same = same and alike
            print(
                f"# {name}: {asked.repeat} runs, {'the same verdicts' if alike else 'OTHER VERDICTS'}", file=sys.stderr
            )
    return 0 if same else 1


def verdicts(reports: dict[str, dict[str, Any]]) -> Any:
    """What has to be the same in every run: counts, and the scenes in which each promise broke."""
    return {
        (share, dialect): (
            found["requests"],
            found["answered"],
            [(p, v["held"], v["of"], v["scenes"]) for p, v in sorted(found["promises"].items())],
        )
        for share, report in reports.items()
        for dialect, found in report["dialects"].items()
    }


def environment(venvs: Path, name: str, gateway: Gateway) -> Path:
    """The Python of a gateway's environment, made at first need."""
    if not gateway.packages:
        return Path(sys.executable)
    word = name.partition("-train")[0].partition("-eval")[0]
    python = venvs / word / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venvs / word)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *gateway.packages], check=True)
        if gateway.alone:
            subprocess.run([str(python), "-m", "pip", "install", "-q", "--no-deps", *gateway.alone], check=True)
    return python


def run(
    name: str, gateway: Gateway, python: Path, share: str, asked: argparse.Namespace, number: int = 1
) -> dict[str, Any]:
    """One run of the suite, as its JSON."""
    place = Place(python, asked.model.resolve(), free_port(), free_port(), asked.venvs, free_port())
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    words = gateway.start(place)
    log = (asked.venvs / f"{name}.log").open("wb")
    server = subprocess.Popen(words, env=env, stdout=log, stderr=log) if words else None
    try:
        bench = [sys.executable, "-m", "tugline", "bench", "exactness", "--json", "--noncanonical", share]
        bench += ["--engine-port", str(place.engine), "--model", str(place.model), "--wait", "180"]
        bench += ["--patience", asked.patience, *gateway.flags(place)]
        bench += [*(["--quick"] if asked.quick else []), *asked.more]
        if share == asked.shares.split(",")[0]:
            print(f"# {name}: {shlex.join(words) or gateway.shown}\n# {shlex.join(bench)}", file=sys.stderr)
        begun = time.monotonic()
        done = subprocess.run(bench, capture_output=True, check=False)
        print(f"# {time.monotonic() - begun:.0f} s, exit {done.returncode}", file=sys.stderr)
    finally:
        if server is not None:
            server.terminate()
            server.wait(30)
        log.close()
    word = f"{name}.{share}{'.quick' if asked.quick else ''}{f'.{number}' if number > 1 else ''}"
    (asked.venvs / f"{word}.json").write_bytes(done.stdout)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def table(name: str, reports: dict[str, dict[str, Any]]) -> str:
    """Rows of one gateway. C is given twice: with ids that encoders do not give, and with those that they do."""
    rough, smooth = (reports[share]["dialects"] if share in reports else None for share in (next(iter(reports)), "0"))
    assert rough is not None
    lines = []
    for dialect, found in rough.items():
        if not found["served"]:
            lines.append(f"| {name} | {dialect} | not served | | | | | |")
            continue
        cells = [f"{found['answered']}/{found['requests']}", cell(found, "E"), cell(found, "C")]
        cells += [cell(smooth[dialect], "C") if smooth else "not run", cell(found, "F"), cell(found, "S")]
        lines.append(f"| {name} | {dialect} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(found: dict[str, Any], promise: str) -> str:
    one = found["promises"][promise]
    if one["of"] and one.get("why"):
        return f"none: {one['why']}"
    if not one["of"]:
        return "-"
    extra = ", ".join(f"{one[key]} {key[3]}" for key in ("by_template", "by_harness") if one.get(key))
    return f"{one['held']}/{one['of']}{f' ({extra})' if extra else ''}"


if __name__ == "__main__":
    sys.exit(main())
