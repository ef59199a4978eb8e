"""A silent engine behind keep-alives does not break the streams of real agent programs.

TUGLINE_TEST_SILENCE is the silence before each reply in seconds (8); `-s` prints how each went.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from real.clis import CLIS, Cli, run_cli
from service.wire_kit import STREAMING, assert_exact, wire
from tugline.core.turn import CallOutcome
from tugline.dialects import DIALECTS
from tugline.gateway.running import Timing

SILENCE = float(os.environ.get("TUGLINE_TEST_SILENCE", "8"))
LIMIT = 4 * SILENCE + 90
pytestmark = [pytest.mark.real, pytest.mark.timeout(LIMIT + 60)]
FINAL = "The word is heliotrope."


def script(cli: Cli) -> list[object]:
    """One tool call, then the last words, each behind a silence."""
    call = cli.shell("echo made by the tool > made.txt; echo marzipan")
    return [
        {"settings": {"noncanonical": 0.3, "seed": 2}},
        {"reasoning": "Let me look.", "text": "I run it.", "calls": [call], "delay_s": SILENCE},
        {"reasoning": "Seen. ", "text": FINAL, "delay_s": SILENCE},
    ]


class Beats:
    """Counts keep-alives by dialect."""

    def __init__(self, dialects: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = 0
        for dialect in dialects:
            monkeypatch.setattr(dialect, "keepalive", self.counting(dialect.keepalive))

    def counting(self, honest: Any) -> Any:
        def keepalive(pending: Any, n: int) -> bytes:
            self.sent += 1
            beat: bytes = honest(pending, n)
            return beat

        return keepalive


@pytest.mark.parametrize("cli", CLIS, ids=lambda cli: cli.name)
async def test_a_long_silence_breaks_no_stream(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    beats = Beats(DIALECTS, monkeypatch)
    timing = Timing(keepalive=0.5 if SILENCE < 60 else 5.0)
    async with wire(tmp_path, script(cli), context=200_000, timing=timing, max_body=32 << 20) as gate:
        access = await gate.session()
        task = "Run the tool, then tell me the word."
        started = await asyncio.to_thread(cli.start, home, work, access.secret_url, access.secret, task)
        begun = time.monotonic()
        code = await asyncio.to_thread(run_cli, started, work, tmp_path / "log", LIMIT)
        took = time.monotonic() - begun
        log = (tmp_path / "log").read_bytes().decode("utf-8", "replace")
        calls = list(gate.store.iter_calls("ses_a"))
        story = [(c.dialect, c.outcome.value, round(c.duration, 1)) for c in calls]
        print(f"\n{cli.name}: exit {code} after {took:.1f} s, {beats.sent} keep-alives, calls {story}")
        assert code == 0, f"{story}\n{log[-4000:]}"
        assert FINAL in log.replace("\\n", "\n"), f"{story}\n{log[-4000:]}"
        assert (work / "made.txt").read_text() == "made by the tool\n"
        assert [c.outcome for c in calls] == [CallOutcome.ANSWERED] * 2, story
        assert {c.dialect for c in calls} == {cli.dialect}
        if STREAMING == "buffered":  # else the words of the reply are spread over its time
            assert beats.sent >= 2 * (SILENCE / timing.keepalive - 2)
        result = json.dumps([i.text for t in gate.turns() for i in t.items if hasattr(i, "call_id")])
        assert "marzipan" in result, result
        assert_exact(await gate.prove(), calls=2)
