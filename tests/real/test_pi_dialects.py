"""Real Pi through each of its four APIs, 20 adversarial turns at 30 % non-canonical: one row per session, exact."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from real.support import tugline_json
from service.wire_kit import model_dir
from tugline.core.columns import take
from tugline.dialects import DIALECTS
from tugline.forest.forest import Forest
from tugline.store import RunStore

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

TURNS = 20
NAMES = {"chat": "pi", "responses": "pi:responses", "anthropic": "pi:anthropic", "gemini": "pi:gemini"}


ODD = (
    '{"command" :  "echo \\u00e9t\\u00e9 %d; printf \'a\\tb\'" , "timeout": 1.0e1}',
    '{"command":"printf \'a\\\\n</think>%d\'"}',
    '{"timeout": 10.0, "command": "true %d", "10": 1, "2": 12345678901234567890, "x": {"b": [1.50, null], "a": ""}}',
    '{"command": "echo \u6f22\u5b57 \U0001f469\u200d\U0001f4bb %d"}',
)
"""Arguments that JavaScript spells otherwise, reorders or rounds."""
BROKEN = '{"command": "echo", }'
"""Alone it is no call at all; behind a good one it is text that looks like a call."""


def script(path: Path) -> Path:
    """19 turns of one to three calls with awkward words around them, then text."""
    lines: list[dict[str, object]] = [{"settings": {"noncanonical": 0.3, "seed": 11}}]
    for i in range(TURNS - 1):
        spelled = [ODD[(i + k) % len(ODD)].replace("%d", str(i)) for k in range(1 + i % 3)]
        spelled += [BROKEN] if i % 5 == 4 else []
        line: dict[str, object] = {"calls": [{"name": "bash", "arguments": text} for text in spelled]}
        if i % 2:
            line["reasoning"] = f"\nStep {i}: look,\n\n then act. "
        if i % 3:
            line["text"] = f"  Working on <tool_response> {i}\u2028 \n\n"
        lines.append(line)
    lines.append({"text": "All done."})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(("dialect", "streaming"), [*((d.name, "buffered") for d in DIALECTS), ("anthropic", "live")])
def test_one_exact_row_per_session(tmp_path: Path, dialect: str, streaming: str) -> None:
    out = tmp_path / "run"
    result = tugline_json(
        "rollout", "create-file-0", "--harness", NAMES[dialect], "-n", "2", "--out", str(out),
        "--engine", f"scripted:{script(tmp_path / 'script.jsonl')}", "--set", "sampling.max_tokens=1000",
        "--set", f"gateway.streaming={streaming}",
        "--set", f"engine.model={model_dir(tmp_path, 32_768)}",
    )  # fmt: skip
    verify = result["verify"]
    print(dialect, verify["calls"], verify["traces"], verify["drift"])
    assert result["report"]["sessions"]["completed"] == 2
    assert verify["calls"] == {"total": 2 * TURNS, "exact": 2 * TURNS}
    assert verify["traces"] == {"total": 2, "exact": 2, "continuous": 2}
    assert verify["tokens"]["sampled"] == verify["tokens"]["trained"]
    with RunStore.open(out, write=False) as store:
        for state, _ in store.sessions():
            session_id = state.key.session_id
            assert {c.dialect for c in store.iter_calls(session_id)} == {dialect}
            turns = list(store.iter_turns(session_id))
            forest = Forest.restore(session_id, b"", turns)
            for before, after in itertools.pairwise(turns):
                assert after.parent == before.turn_id
                assert forest.prompt(after.turn_id).startswith(take(forest.full(before.turn_id), 0, after.keep))
