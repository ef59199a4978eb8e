"""Requests of real agents: what is decoded stays what it was, and what extends on the wire extends as items."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from golden.chat_golden import EXPECTED, HERE, bodies, messages_extend, summaries
from tugline.core.items import Assistant, Request
from tugline.dialects import ChatDialect

DIALECT = ChatDialect()


def decoded(raw: list[bytes]) -> list[Request]:
    return [DIALECT.decode(body, {}) for body in raw]


def check_prefixes(raw: list[bytes]) -> int:
    """Number of pairs in which one request extends another; each must do so as items too."""
    requests, pairs = decoded(raw), 0
    for n in range(1, len(raw)):
        for k in range(n):
            if messages_extend(raw[k], raw[n]):
                before = requests[k].items
                assert requests[n].items[: len(before)] == before, (k, n)
                pairs += 1
    return pairs


def test_decoded_as_recorded() -> None:
    expected = json.loads(EXPECTED.read_text())
    assert len(expected) == 10
    assert json.loads(json.dumps(summaries())) == expected


@pytest.mark.parametrize("path", sorted(HERE.glob("*.jsonl.gz")), ids=lambda p: p.name.removesuffix(".jsonl.gz"))
def test_extension_on_the_wire_is_extension_of_items(path: Path) -> None:
    raw = bodies(path)
    pairs = check_prefixes(raw)
    assert pairs >= 1
    chains = [r["extends"] for r in json.loads(EXPECTED.read_text())[path.name.removesuffix(".jsonl.gz")]]
    assert any(k is not None for k in chains)


def test_what_harnesses_do_to_a_turn_is_visible() -> None:
    """The same scripted turn as three agents echo it: text always verbatim, reasoning and arguments not."""

    def first_turn(name: str) -> Assistant:
        last = decoded(bodies(HERE / f"{name}.jsonl.gz"))[-1]
        turn = next(i for i in last.items if isinstance(i, Assistant))
        assert turn.text == "  I'll create hello.txt now.\n\n"
        return turn

    assert first_turn("pi-basic-chat").reasoning == "I should write the file first. "
    assert first_turn("openhands-sdk-basic").reasoning is None
    mini = first_turn("mini-swe-agent-timing").calls[0].arguments
    assert mini.startswith('{"command" :  "'), "spelled as the model spelled it"
    assert first_turn("pi-basic-chat").calls[0].arguments.startswith('{"path":"')


def captured(root: Path) -> Iterator[tuple[str, list[bytes]]]:
    for path in sorted(root.glob("*/*.requests.jsonl.gz")):
        raw = []
        for line in gzip.decompress(path.read_bytes()).split(b"\n"):
            record = json.loads(line) if line else {}
            if str(record.get("path", "")).endswith("/chat/completions"):
                body = record["body"]
                if isinstance(body.get("tool_choice"), str):
                    body["tool_choice"] = "auto"  # its word is masked in the recordings
                raw.append(json.dumps(body, ensure_ascii=False).encode())
        if raw:
            yield f"{path.parent.name}/{path.name}", raw


def test_every_capture() -> None:
    where = os.environ.get("TUGLINE_CAPTURES")
    if not where:
        pytest.skip("set TUGLINE_CAPTURES to a folder of recorded agent traffic to replay all of it")
    calls = pairs = 0
    for _, raw in captured(Path(where)):
        calls += len(raw)
        pairs += check_prefixes(raw)
    assert calls > 300 and pairs > 100, (calls, pairs)
