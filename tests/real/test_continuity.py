"""Real Pi, a policy whose tokenisation is non-canonical 30 % of the time, 20 turns: one row, byte-exact extension."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from real.support import tugline_json

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

TURNS = 20


def script(path: Path) -> Path:
    """19 turns with a tool call each (awkward spellings that Pi re-serialises), then text."""
    lines: list[object] = [{"settings": {"noncanonical": 0.3, "seed": 3}}]
    for i in range(TURNS - 1):
        odd = '{"command" :  "echo \\u00e9t\\u00e9 %d; printf \'a\\tb\'" , "timeout": %s}' % (
            i,
            ("1.0e1", "10.0", "10")[i % 3],
        )
        lines.append(
            {
                "reasoning": f"Step {i}: look,\n then act. " if i % 2 else None,
                "text": f"  Working on number {i}\n\n" if i % 3 else None,
                "calls": [{"name": "bash", "arguments": odd}],
                "finish": "stop",
            }
        )
    lines.append({"text": "All done.", "finish": "stop"})
    path.write_text("\n".join(json.dumps({k: v for k, v in line.items() if v is not None}) for line in lines) + "\n")  # type: ignore[attr-defined]
    return path


def run(tmp_path: Path, name: str, *extra: str, check: int | None = 0) -> tuple[dict, Path]:  # type: ignore[type-arg]
    out = tmp_path / name
    result = tugline_json(
        "rollout", "create-file-0", "--harness", "pi", "-n", "3", "--out", str(out),
        "--engine", f"scripted:{script(tmp_path / 'script.jsonl')}", *extra, check=check,
    )  # fmt: skip
    return result, out


def test_exactly_one_trace_per_session_and_every_prompt_extends_the_last(tmp_path: Path) -> None:
    result, out = run(tmp_path, "exact")
    verify = result["verify"]
    assert result["report"]["sessions"]["completed"] == 3
    assert verify["calls"] == {"total": 3 * TURNS, "exact": 3 * TURNS}
    assert verify["traces"] == {"total": 3, "exact": 3, "continuous": 3}
    assert verify["tokens"]["sampled"] == verify["tokens"]["trained"]
    from tugline.core.columns import take
    from tugline.forest.forest import Forest
    from tugline.store import RunStore

    with RunStore.open(out, write=False) as store:
        for state, _ in store.sessions():
            turns = list(store.iter_turns(state.key.session_id))
            forest = Forest.restore(state.key.session_id, b"", turns)
            for before, after in itertools.pairwise(turns):
                assert after.parent == before.turn_id
                assert forest.prompt(after.turn_id).startswith(take(forest.full(before.turn_id), 0, after.keep))


def test_the_control_that_renders_every_prompt_anew_breaks(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "control", "--set", "gateway.rerender=true", check=None)
    traces = result["verify"]["traces"]
    assert traces["total"] > 3, "re-rendering should have broken continuity: then the test above could never fail"
