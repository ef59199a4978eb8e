"""Anthropic requests: what is decoded and answered stays what it was, and what extends on the wire extends as items."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from golden.anthropic_golden import ANSWERS, DIALECT, expected_path, requests, transcript

KNOWN_IGNORED = {
    *("metadata", "thinking", "context_management", "output_config.effort", "system[].cache_control"),
    *("messages[].content[].cache_control", "messages[].content[].signature", "messages[].content[].is_error"),
    *("messages[].output_config", "tools[].cache_control", "tools[].defer_loading", "tools[].eager_input_streaming"),
}
"""All that agents send without effect, in every recording there is."""


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_transcript(name: str) -> None:
    got = json.loads(json.dumps(transcript(name, requests()[name])))
    assert got == json.loads(expected_path(name).read_text())


def test_every_request_has_an_answer() -> None:
    assert set(requests()) == set(ANSWERS)


def plain(value: Any) -> Any:
    """Without cache marks, which move from turn to turn; content always as blocks."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    if not isinstance(value, dict):
        return value
    out = {k: plain(v) for k, v in value.items() if k != "cache_control"}
    if "role" in out and isinstance(out["content"], str):
        out["content"] = [{"type": "text", "text": out["content"]}]
    return out


def captured(root: Path) -> Iterator[list[dict[str, Any]]]:
    for path in sorted(root.glob("*/*.requests.jsonl.gz")):
        bodies = []
        for line in gzip.decompress(path.read_bytes()).split(b"\n"):
            record = json.loads(line) if line else {}
            if record.get("method") == "POST" and str(record.get("path", "")).endswith("/v1/messages"):
                bodies.append(record["body"])
        if bodies:
            yield bodies


def extensions(bodies: list[dict[str, Any]]) -> int:
    """Number of requests that extend an earlier one on the wire; each must do so as items too."""
    decoded = [DIALECT.decode(json.dumps(b, ensure_ascii=False).encode(), {}) for b in bodies]
    assert {name for request in decoded for name in request.ignored} <= KNOWN_IGNORED
    seen = [(plain(b.get("system")), plain(b["messages"])) for b in bodies]
    found = 0
    for n, (system, messages) in enumerate(seen):
        for k in range(n):
            before = seen[k][1]
            if seen[k][0] == system and len(before) < len(messages) and messages[: len(before)] == before:
                assert decoded[n].items[: len(decoded[k].items)] == decoded[k].items
                found += 1
    return found


def test_every_capture() -> None:
    where = os.environ.get("TUGLINE_CAPTURES")
    if not where:
        pytest.skip("set TUGLINE_CAPTURES to a folder of recorded agent traffic to replay all of it")
    runs = list(captured(Path(where)))
    calls, pairs = sum(map(len, runs)), sum(extensions(bodies) for bodies in runs)
    assert calls > 150 and pairs > 100, (calls, pairs)
