"""Gemini requests: what is decoded and answered stays what it was, and what extends on the wire extends as items."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from golden.gemini_golden import ANSWERS, DIALECT, expected_path, requests, transcript

KNOWN_IGNORED = {
    *("generationConfig.topK", "generationConfig.thinkingConfig", "contents[].parts[].thoughtSignature"),
}
"""All that agents send without effect, in every recording there is."""


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_transcript(name: str) -> None:
    got = json.loads(json.dumps(transcript(name, requests()[name])))
    assert got == json.loads(expected_path(name).read_text())


def test_every_request_has_an_answer() -> None:
    assert set(requests()) == set(ANSWERS)


def captured(root: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for path in sorted(root.glob("*/*.requests.jsonl.gz")):
        bodies = []
        for line in gzip.decompress(path.read_bytes()).split(b"\n"):
            record = json.loads(line) if line else {}
            if ":generateContent" in str(record.get("path")) or ":streamGenerateContent" in str(record.get("path")):
                body = record["body"]
                if "responseMimeType" in body.get("generationConfig", {}):
                    body["generationConfig"]["responseMimeType"] = "application/json"  # masked in the recordings
                bodies.append(body)
        if bodies:
            yield path.parent.name, bodies


def extensions(bodies: list[dict[str, Any]]) -> int:
    """Number of requests that extend an earlier one on the wire; each must do so as items too."""
    decoded = [DIALECT.decode(json.dumps(b, ensure_ascii=False).encode(), {}) for b in bodies]
    assert {name for request in decoded for name in request.ignored} <= KNOWN_IGNORED
    found = 0
    for n, body in enumerate(bodies):
        for k, before in enumerate(bodies[:n]):
            old, new = before["contents"], body["contents"]
            same = before.get("systemInstruction") == body.get("systemInstruction")
            if same and len(old) < len(new) and new[: len(old)] == old:
                assert decoded[n].items[: len(decoded[k].items)] == decoded[k].items
                found += 1
    return found


def test_every_capture() -> None:
    where = os.environ.get("TUGLINE_CAPTURES")
    if not where:
        pytest.skip("set TUGLINE_CAPTURES to a folder of recorded agent traffic to replay all of it")
    runs = list(captured(Path(where)))
    calls, pairs = sum(len(bodies) for _, bodies in runs), sum(extensions(bodies) for _, bodies in runs)
    assert {name for name, _ in runs} >= {"gemini-cli", "pi"}
    assert calls > 40 and pairs > 30, (calls, pairs)
