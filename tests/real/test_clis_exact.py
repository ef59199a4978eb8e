"""Real agent programs over a dozen turns at 30 % non-canonical: one row per session, every call exact."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

from real.clis import CLIS, Cli, run_cli
from service.wire_kit import assert_exact, tokens, wire

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]
TURNS = 12
FINAL = "The word is heliotrope."


def script(cli: Cli) -> list[object]:
    """Eleven turns with one or two calls of the shell tool, then words."""
    lines: list[object] = [{"settings": {"noncanonical": 0.3, "seed": 7}}]
    for i in range(TURNS - 1):
        commands = [
            f"echo 'it\u00e9ration {i}.{k} \U0001f469\u200d\U0001f4bb \"q\" \\ '; printf 'a\\tb\\n'"
            for k in range(1 + i % 2)
        ]
        line: dict[str, object] = {"calls": [cli.shell(command) for command in commands]}
        if i % 3:
            line["text"] = f"  Working on {i}\u2028 \n\n"
        if i % 4:
            line["reasoning"] = f"\nStep {i}: look,\n\n then act. "
        lines.append(line)
    return [*lines, {"text": FINAL}]


@pytest.mark.parametrize("cli", CLIS, ids=lambda cli: cli.name)
async def test_one_exact_row(tmp_path: Path, cli: Cli) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    async with wire(tmp_path, script(cli), context=200_000, max_body=32 << 20) as gate:
        access = await gate.session(max_tokens=4_000)
        started = await asyncio.to_thread(cli.start, home, work, access.secret_url, access.secret, "Say the word.")
        begun = time.monotonic()
        code = await asyncio.to_thread(run_cli, started, work, tmp_path / "log", 180)
        took = time.monotonic() - begun
        log = (tmp_path / "log").read_bytes().decode("utf-8", "replace")
        turns, calls = gate.turns(), list(gate.store.iter_calls("ses_a"))
        proof = await gate.prove()
        prompt = [tokens(turn)[0] for turn in turns]
        print(
            f"\n{cli.name}: exit {code} after {took:.1f} s, {len(calls)} calls, {proof.calls_exact} exact, "
            f"{proof.traces_total} rows, {proof.traces_continuous} continuous, prompts {prompt[:1]}..{prompt[-1:]}, "
            f"drift {dict(proof.drift)}"
        )
        assert code == 0 and FINAL in log, log[-4000:]
        assert {c.dialect for c in calls} == {cli.dialect}
        assert_exact(proof, calls=TURNS)
