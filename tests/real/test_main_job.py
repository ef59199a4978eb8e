"""The main job: real Pi processes on the embedded pilot, proven against the engine's journal; and the proof's teeth."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from real.support import processes, tugline, tugline_json
from tugline.core.columns import ids, ids_list, take
from tugline.store import RunStore

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """One quickstart: 8 families x 2 sessions."""
    out = tmp_path_factory.mktemp("main") / "run"
    return out, tugline_json("quickstart", "-n", "2", "--seed", "5", "--out", str(out), timeout=300)


def test_real_agents_on_a_sampled_policy_are_scored_and_proven(run: tuple[Path, dict[str, Any]]) -> None:
    out, result = run
    report, verify = result["report"], result["verify"]
    assert result["ok"]
    assert report["sessions"]["total"] == 16
    assert 0 < report["reward"]["mean"] < 1
    assert report["reward"]["n"] == 16
    assert verify["calls"]["exact"] == verify["calls"]["total"] == report["turns"] >= 16
    assert verify["traces"]["exact"] == verify["traces"]["continuous"] == verify["traces"]["total"]
    assert verify["tokens"]["trained"] == verify["tokens"]["sampled"] > 0
    assert report["rows_per_session"] == 1.0
    assert result["rescored"]["max_abs_diff"] < 1e-3
    assert not processes(str(out)), "something outlived the run"
    assert not list((out / "sandboxes").iterdir())


def test_verify_report_and_exit_codes(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    out, result = run
    again = tugline_json("verify", str(out))
    assert again["calls"] == result["verify"]["calls"]
    assert tugline_json("report", str(out))["reward"] == result["report"]["reward"]
    assert "proven" in tugline("verify", str(out)).stderr
    tugline("verify", str(tmp_path / "nothing"), check=1)
    tugline("rollout", "no-such-task", check=2)
    tugline("rollout", "files", "--harness", "no-such-harness", "--out", str(tmp_path / "x"), check=2)
    tugline("rollout", "files", "--sampling", "heat=1", check=2)


def test_a_finished_run_given_again_runs_nothing_new(run: tuple[Path, dict[str, Any]]) -> None:
    out, result = run
    again = tugline_json("quickstart", "-n", "2", "--seed", "5", "--out", str(out))
    assert again["report"]["attempts"] == result["report"]["attempts"]
    assert again["verify"]["calls"] == result["verify"]["calls"]


# ------------------------------------------------------------------------------------------- the proof's teeth


def rewrite_turn(out: Path, change: Callable[[Any], Any]) -> str:
    """Replace the second turn of some session by a changed one, with valid checksums: a lie, not damage."""
    from tugline.store.frames import Frames
    from tugline.store.records import Records
    from tugline.store.rows import RowCodec

    with RunStore.open(out, write=False) as store:
        turn = next(t for s, _ in store.sessions() for t in store.iter_turns(s.key.session_id) if t.seq == 0)
    row = RowCodec(Records(), Frames()).pack_turn(change(turn))
    with sqlite3.connect(out / "run.db") as db:
        db.execute(
            "UPDATE turns SET bridge = ?, sampled = ?, logprobs = ? WHERE turn_id = ?",
            (*row.columns[1:4], turn.turn_id),
        )
    return turn.turn_id


@pytest.fixture
def copy(run: tuple[Path, dict[str, Any]], tmp_path: Path) -> Path:
    """A run to spoil."""
    return Path(shutil.copytree(run[0], tmp_path / "copy"))


def test_a_changed_prompt_id_is_named_with_call_and_position(copy: Path) -> None:
    from dataclasses import replace

    def change(turn: Any) -> Any:
        values = ids_list(turn.bridge)
        values[17] += 1
        return replace(turn, bridge=ids(values))

    turn_id = rewrite_turn(copy, change)
    result = tugline_json("verify", str(copy), check=1)
    found = [f for f in result["findings"] if f["turn"] == turn_id]
    assert any(f["kind"] == "prompt_ids" and f["position"] == 17 and f["call"] for f in found), result["findings"][:5]
    assert result["calls"]["exact"] < result["calls"]["total"]


def test_a_changed_sampled_id_is_named(copy: Path) -> None:
    from dataclasses import replace

    def change(turn: Any) -> Any:
        values = ids_list(turn.sampled)
        values[1] = 0
        return replace(turn, sampled=ids(values))

    rewrite_turn(copy, change)
    result = tugline_json("verify", str(copy), check=1)
    assert any(f["kind"] == "sampled_ids" and f["position"] == 1 and f["call"] for f in result["findings"])


def test_a_changed_log_probability_is_named_to_the_bit(copy: Path) -> None:
    from dataclasses import replace

    def change(turn: Any) -> Any:
        raw = bytearray(turn.logprobs)
        raw[4] ^= 1  # the lowest bit of value 1
        return replace(turn, logprobs=bytes(raw))

    rewrite_turn(copy, change)
    result = tugline_json("verify", str(copy), check=1)
    assert any(f["kind"] == "logprobs" and f["position"] == 1 and f["call"] for f in result["findings"])


def test_a_changed_mask_bit_is_named(copy: Path) -> None:
    from dataclasses import replace

    from tugline.store.frames import Frames
    from tugline.store.records import Records
    from tugline.store.rows import RowCodec

    with RunStore.open(copy, write=False) as store:
        session = next(s.key.session_id for s, _ in store.sessions() if list(store.iter_traces(s.key.session_id)))
        trace = next(iter(store.iter_traces(session)))
        turns = {t.turn_id: t for t in store.iter_turns(session)}
    mask = bytearray(trace.loss_mask)
    position = mask.index(1) - 1
    mask[position] = 1
    row = RowCodec(Records(), Frames()).pack_trace(replace(trace, loss_mask=bytes(mask)), turns)
    names = [f for f in row.__dataclass_fields__ if f not in ("trace_id", "session_id")]
    with sqlite3.connect(copy / "run.db") as db:
        columns = {r[1] for r in db.execute("PRAGMA table_info(traces)")}
        used = [n for n in names if n in columns]
        db.execute(
            f"UPDATE traces SET {', '.join(f'{n} = ?' for n in used)} WHERE trace_id = ?",
            (*(getattr(row, n) for n in used), trace.trace_id),
        )
    result = tugline_json("verify", str(copy), check=1)
    assert any(
        f["kind"] == "row_mask" and f["position"] == position and f["trace"] == trace.trace_id
        for f in result["findings"]
    ), result["findings"][:5]


def test_a_damaged_blob_is_named(copy: Path) -> None:
    with sqlite3.connect(copy / "run.db") as db:
        turn_id, blob = db.execute("SELECT turn_id, sampled FROM turns LIMIT 1").fetchone()
        spoiled = bytearray(blob)
        spoiled[-1] ^= 0x10
        db.execute("UPDATE turns SET sampled = ? WHERE turn_id = ?", (bytes(spoiled), turn_id))
    result = tugline_json("verify", str(copy), check=1)
    assert any(turn_id in f["message"] for f in result["findings"])


def test_a_changed_or_missing_journal_row_is_named(copy: Path) -> None:
    journal = max((copy / "engine").glob("journal-*.bin"), key=lambda p: p.stat().st_size)
    data = journal.read_bytes()
    spoiled = bytearray(data)
    spoiled[len(data) // 2] ^= 0x20
    journal.write_bytes(spoiled)
    result = tugline_json("verify", str(copy), check=1)
    assert result["findings_total"] > 0
    assert any("journal" in f["kind"] for f in result["findings"])
    journal.write_bytes(data[: len(data) // 2])
    result = tugline_json("verify", str(copy), check=1)
    assert any(f["kind"] == "missing_in_journal" and f["call"] for f in result["findings"])


def test_ids_are_never_taken_for_granted(run: tuple[Path, dict[str, Any]]) -> None:
    """Decode one stored conversation: what the rows train is what the model said, in order."""
    with RunStore.open(run[0], write=False) as store:
        for state, _ in store.sessions():
            for trace in store.iter_traces(state.key.session_id):
                by_id = {t.turn_id: t for t in store.iter_turns(state.key.session_id)}
                for span in trace.spans:
                    assert take(trace.token_ids, span.start, span.end) == by_id[span.turn_id].sampled
