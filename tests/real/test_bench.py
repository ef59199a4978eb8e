"""The benchmark runs and proves what it measured. Its numbers are no test's business: they depend on the machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from real.support import processes, tugline
from service.gateway_kit import gateway
from tugline.cli.wiring import PILOT
from tugline.store import RunStore
from tugline.testing.bench_gateway import QUICK, Size, check, measure
from tugline.testing.bench_server import CannedEngine, Truth
from tugline.testing.bench_talk import Talk

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


def test_the_quick_run_captures_every_call_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = tugline("bench", "gateway", "--quick", "--json", check=None, TMPDIR=str(tmp_path))
    assert done.returncode in (0, 1), done.stderr
    result = msgspec.json.decode(done.stdout)
    calls = QUICK.rounds * QUICK.sessions * QUICK.turns
    continued = calls - QUICK.rounds * QUICK.sessions
    assert result["captured"] == {
        "calls": calls,
        "exact": calls,
        "continued": continued,
        "expected_continued": continued,
    }
    assert done.returncode == (0 if result["ratio"] <= result["gate"] else 1)
    assert result["cpu_ms_per_call"]["ours"] > result["cpu_ms_per_call"]["floor"] > 0
    assert len(result["cpu_ms_by_turn"]["ours"]) == QUICK.turns
    assert result["request_kb"]["first"] < 10 < 110 < result["request_kb"]["last"]
    assert not processes(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_people_read_the_proof_before_the_numbers() -> None:
    said: list[str] = []
    result = measure(Size(rounds=1, sessions=2, turns=2), said.append)
    assert result.captured.ok
    lines = result.text().splitlines()
    assert lines[0].split() == ["captured", "4/4", "as", "produced,", "2/2", "continue", "their", "session"]
    assert any(line.startswith("round 1 of 1") for line in said)


async def test_a_record_that_differs_is_not_counted(tmp_path: Path) -> None:
    engine = CannedEngine(PILOT)
    size = Size(rounds=1, sessions=1, turns=3)
    talk = Talk("ses_a")
    async with gateway(tmp_path, [], engine=engine) as kit:
        key = (await kit.session(max_turns=3)).secret
        for _ in range(size.turns):
            status, reply = await kit.post(talk.body(), key=key)
            assert status == 200, reply
            talk.heard(msgspec.json.encode(reply))
    run, names, truth = tmp_path / "run", ["ses_a"], engine.truth
    assert check(run, names, truth, size).ok
    ref = next(iter(truth))
    for other in (
        {**truth, ref: Truth("ses_a", "0" * 32)},
        {**truth, ref: Truth("ses_b", truth[ref].digest)},
        {r: t for r, t in truth.items() if r != ref},
        dict(zip(truth, [*list(truth.values())[1:], truth[ref]], strict=True)),
    ):
        found = check(run, names, other, size)
        assert not found.ok
        assert found.exact < size.turns
    assert not check(run, names, truth, Size(rounds=1, sessions=1, turns=4)).ok, "a lost turn"
    assert not check(run, names, truth, Size(rounds=1, sessions=1, turns=2)).ok, "a turn too many"
    with RunStore.open(run, write=False) as reader:
        assert len(reader.iter_turns("ses_a")) == 3
