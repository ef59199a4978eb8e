"""What the dialect makes of written and of recorded Responses traffic stays what it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from contract.responses_kit import assemble
from golden.responses_golden import DIALECT, HERE, captured, cases, outcome, reply_of
from tugline.core.errors import Unsupported
from tugline.core.items import Assistant, Request, ToolCall


@pytest.mark.parametrize("path", cases(), ids=lambda p: p.stem)
def test_transcripts(path: Path) -> None:
    for name, content in outcome(path).items():
        assert (HERE / name).read_bytes() == content, name
    reply = reply_of(json.loads(path.read_text()))
    client = assemble((HERE / f"{path.stem}.sse").read_bytes())
    echo = DIALECT.echo(reply)
    assert (client.text, client.reasoning) == (echo.text, echo.reasoning)
    assert [(c.id, c.name) for c in client.calls] == [(c.id, c.name) for c in echo.calls]


def test_every_file_belongs_to_a_transcript() -> None:
    expected = {name for path in cases() for name in (path.name, *outcome(path))} | {"README.md"}
    assert {p.name for p in HERE.iterdir()} == expected and len(cases()) >= 4


def test_every_capture() -> None:
    where = os.environ.get("TUGLINE_CAPTURES")
    if not where:
        pytest.skip("set TUGLINE_CAPTURES to a folder of recorded agent traffic to replay all of it")
    calls = pairs = refused = 0
    for name, bodies in captured(Path(where)):
        requests: list[Request | None] = []
        for body in bodies:
            calls += 1
            try:
                requests.append(DIALECT.decode(json.dumps(body, ensure_ascii=False).encode(), {}))
            except Unsupported as err:
                assert "compacted" in err.message, (name, err.message)
                refused += 1
                requests.append(None)
        for n, (after, whole) in enumerate(zip(bodies, requests, strict=True)):
            for k in range(n):
                before, cut = bodies[k]["input"], requests[k]
                if cut and whole and len(before) < len(after["input"]) and after["input"][: len(before)] == before:
                    assert whole.items[: len(cut.items)] == cut.items, (name, k, n)
                    pairs += 1
    assert calls > 80 and pairs > 100 and refused < 3, (calls, pairs, refused)


def test_what_a_recorded_agent_sees_is_told_apart_by_its_turns() -> None:
    """A reasoning item that a broken stream left behind is a turn of its own, before the turn sampled again."""
    case = json.loads((HERE / "coding-agent.json").read_text())
    turns = [item for item in reply_of(case).request.items if isinstance(item, Assistant)]
    first = Assistant("  I'll look.\n\n", "Look first. ", (ToolCall("call_1", "shell", '{"cmd" :  "cat a.py"}'),))
    assert turns == [first, Assistant(reasoning="Of a stream that broke.")]
