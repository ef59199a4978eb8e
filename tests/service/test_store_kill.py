"""kill -9 at random moments: what was acknowledged is there, decodes, and the next process takes the run over."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tugline.store import RunStore
from unit.store.samples import Builder, call_for

TESTS = Path(__file__).parents[1]
WRITER = """
import asyncio, os, sys
from pathlib import Path
from unit.store.samples import Builder, call_for, row_of
from tugline.store import RunStore

async def session(store, session_id):
    builder, parent = Builder(session_id, seed=len(session_id)), None
    while True:
        turn = builder.add(parent, bridge=400, sampled=60)
        parent = turn.turn_id
        await store.commit(call_for(turn), turn)
        os.write(1, f"{session_id} {len(builder.turns)}\\n".encode())
        if len(builder.turns) % 20 == 0:
            await store.put_traces(session_id, [row_of(builder, turn)])

async def main(run, life):
    store = RunStore.open_or_create(Path(run), "")
    await asyncio.gather(*(session(store, f"life{life}-{n}") for n in range(6)))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.chaos
@pytest.mark.timeout(180)
def test_every_acknowledged_commit_survives_twenty_kills(tmp_path: Path) -> None:
    run, rng = tmp_path / "run", random.Random()
    acknowledged: dict[str, int] = {}
    for life in range(20):
        code = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{WRITER}"
        child = subprocess.Popen([sys.executable, "-c", code, str(run), str(life)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(rng.randrange(1, 200))]
        child.send_signal(signal.SIGKILL)
        lines += child.stdout.readlines()
        child.stdout.close()
        assert child.wait() == -signal.SIGKILL
        for line in lines:
            if line.endswith(b"\n"):
                session_id, turns = line.decode().split()
                acknowledged[session_id] = int(turns)
        with RunStore.open(run, write=False) as reader:  # beside the dead writer's WAL, without the lock
            assert_all_there(reader, {s: n for s, n in acknowledged.items() if s.startswith(f"life{life}-")})
    with RunStore.open(run, write=True) as store:
        assert "left behind by process" in store.warnings[0]
        assert_all_there(store, acknowledged)
        for session_id, n in acknowledged.items():
            builder = Builder(session_id, seed=len(session_id))
            parent = None
            for _ in range(n):
                parent = builder.add(parent, bridge=400, sampled=60).turn_id
            assert list(store.iter_turns(session_id))[:n] == builder.turns
    assert len(acknowledged) >= 20


def assert_all_there(store: RunStore, acknowledged: dict[str, int]) -> None:
    """At least the acknowledged turns, each with its call; at most one more, whose acknowledgement was cut off."""
    for session_id, n in acknowledged.items():
        turns = store.iter_turns(session_id)
        assert n <= len(turns) <= n + 1
        assert store.iter_calls(session_id) == [call_for(t) for t in turns]
        if n > 20:  # the rows of turn 20 were put before turn 21
            assert len(store.iter_traces(session_id)) == 1
