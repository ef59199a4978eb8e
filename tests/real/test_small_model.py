"""A real small instruction model drives Pi through vLLM on the CPU: `make vllm`. Minutes, and 1.3 GB of weights.

It was trained on code and calls tools by bare JSON, without the tags of its template: `engine.parser = "llama3"` reads
that. It does not have to solve the task.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from real.support import tugline_json
from real.vllm_kit import ASKED, reference, served
from tugline.core.columns import count, floats_array
from tugline.core.items import ToolResult
from tugline.store import RunStore

WEIGHTS = os.environ.get("TUGLINE_TEST_WEIGHTS", "")
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.soak,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not (ASKED and WEIGHTS), reason="TUGLINE_TEST_VLLM and TUGLINE_TEST_WEIGHTS (a directory) not set"
    ),
]
TEMPERATURE = 0.6
INSTRUCTION = """\
Run these commands with the tool `bash`, one after the other. Each answer is one tool call and nothing else: one JSON
object such as {"name": "bash", "arguments": {"command": "pwd"}}. Wait for its result, then call the next one.

ls
cat notes.txt
cp notes.txt result.txt
cat result.txt
"""
CHECK = """\
#!/bin/sh
cd "${APP_DIR:-/app}" || exit 1
logs=${LOGS_DIR:-/logs/verifier}
mkdir -p "$logs"
if cmp -s notes.txt result.txt; then echo 1; else echo 0; fi >"$logs/reward.txt"
"""
TASK = """\
schema_version = "1.4"
[task]
name = "tugline/four-commands"
description = "Four commands"
[agent]
timeout_sec = 900.0
[verifier]
timeout_sec = 30.0
[environment]
network_mode = "no-network"
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(Path(WEIGHTS), tmp_path_factory.mktemp("log") / "vllm.log", dtype="bfloat16", window=8192) as url:
        yield url


def task(path: Path) -> Path:
    (path / "environment" / "files").mkdir(parents=True)
    (path / "tests").mkdir()
    (path / "environment" / "Dockerfile").write_text("FROM debian:bookworm-slim\nWORKDIR /app\nCOPY files/ /app/\n")
    (path / "environment" / "files" / "notes.txt").write_text("red apple\nblue plum\n")
    (path / "task.toml").write_text(TASK)
    (path / "instruction.md").write_text(INSTRUCTION)
    (path / "tests" / "test.sh").write_text(CHECK)
    (path / "tests" / "test.sh").chmod(0o755)
    return path


def test_it_drives_pi_for_three_turns_and_more(url: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = [
        "rollout",
        str(task(tmp_path / "task")),
        "--harness",
        "pi",
        "-n",
        "6",
        "--max-turns",
        "6",
        "--out",
        str(out),
    ]
    args += ["--engine", f"vllm:{url}", "--model", WEIGHTS, "--parser", "llama3"]
    args += ["--sampling", f"temperature={TEMPERATURE},max_tokens=100"]
    result = tugline_json(*args, timeout=1500)
    verify = result["verify"]
    print(json.dumps({"seconds": result["seconds"], "report": result["report"], "verify": verify}))
    assert verify["calls"]["exact"] == verify["calls"]["total"]
    assert verify["traces"]["continuous"] == verify["traces"]["exact"] == verify["traces"]["total"]
    assert verify["tokens"]["sampled"] == verify["tokens"]["trained"] > 0
    store = RunStore.open(out, write=False)
    done = {}
    for session in sorted(path.name for path in (out / "sessions").iterdir()):
        turns = store.iter_turns(session)
        done[session] = sum(isinstance(item, ToolResult) for turn in turns for item in turn.items)
        print(session, "tools that Pi ran:", done[session], [c.arguments for t in turns for c in t.echo.calls])
    longest = max(done, key=lambda name: done[name])
    assert done[longest] >= 3
    (row,) = store.iter_traces(longest)
    trained = np.frombuffer(row.loss_mask, np.uint8)[1:] == 1
    other = reference(Path(WEIGHTS), row.token_ids, TEMPERATURE)[trained]
    apart = np.abs(other - floats_array(row.logprobs)[1:][trained])
    worst, mean = float(apart.max()), float(apart.mean())
    print(f"{longest}: {count(row.token_ids)} tokens, {int(trained.sum())} sampled; "
          f"transformers in float32 is {worst:.3f} off at most, {mean:.4f} in the mean")  # fmt: skip
    assert worst < 0.5 and mean < 0.02
