"""Stores of shared trees: one maker, whole or absent, nothing removed that is held, nothing left by the dead."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tugline.core.errors import SandboxError
from tugline.sandboxes import locks
from tugline.sandboxes.snapshots import Layers, Snapshots
from tugline.sandboxes.stores import sweep

BASE = Layers(("/base",), ("/empty",))


def fill_entry(top: Path, name: str, size: int, age: float = 0.0) -> Path:
    scratch = locks.scratch_for(top / name)
    (scratch.path / "data").write_bytes(b"x" * size)
    locks.publish(scratch, top / name, "test").release()
    scratch.close()
    os.utime(top / name, (time.time() - age, time.time() - age))
    return top / name


async def make(store: Snapshots, top: Path, key: str = "k") -> Layers:
    async def fill(name):
        (top / name / "root").mkdir()
        (top / name / "work0").mkdir()
        (top / name / "work0.w").mkdir()
        await asyncio.sleep(0.05)

    return await store.get((key,), BASE, fill)


async def test_a_group_prepares_once(tmp_path):
    store = Snapshots(tmp_path, "/seen")
    found = await asyncio.gather(*(make(store, tmp_path) for _ in range(8)))
    assert store.made == 1 and len(set(found)) == 1
    key = next(p.name for p in tmp_path.iterdir() if not p.name.startswith("."))
    assert found[0] == Layers((f"/seen/{key}/root", "/base"), (f"/seen/{key}/work0", "/empty"))
    assert sorted(p.name for p in (tmp_path / key).iterdir()) == ["meta.json", "root", "work0"]
    await store.close()


async def test_two_processes_prepare_once(tmp_path):
    one, two = Snapshots(tmp_path, "/seen"), Snapshots(tmp_path, "/seen")
    await asyncio.gather(make(one, tmp_path), make(two, tmp_path))
    assert one.made + two.made == 1
    await one.close()
    await two.close()


async def test_a_failed_preparation_leaves_nothing_and_is_tried_again(tmp_path):
    store = Snapshots(tmp_path, "/seen")

    async def broken(name):
        (tmp_path / name / "root").mkdir()
        raise SandboxError("no")

    with pytest.raises(SandboxError, match="no"):
        await store.get(("k",), BASE, broken)
    assert list(tmp_path.iterdir()) == []
    await make(store, tmp_path)
    assert store.made == 1
    await store.close()


async def test_what_is_held_is_never_swept(tmp_path):
    store = Snapshots(tmp_path / "snapshots", "/seen")
    (tmp_path / "snapshots").mkdir()
    await make(store, tmp_path / "snapshots")
    assert sweep(tmp_path, 0, 0).removed == 0
    await store.close()
    time.sleep(0.01)
    assert sweep(tmp_path, 0, 0).removed == 1
    assert list((tmp_path / "snapshots").iterdir()) == []


def test_age_and_size_decide_the_least_used_first(tmp_path):
    top = tmp_path / "images"
    old = fill_entry(top, "old", 100_000, age=1000)
    middle = fill_entry(top, "middle", 100_000, age=100)
    new = fill_entry(top, "new", 100_000, age=1)
    assert sweep(tmp_path, 500, 1 << 40).removed == 1
    assert not old.exists() and middle.exists() and new.exists()
    swept = sweep(tmp_path, 500, 150_000)
    assert swept.removed == 1 and swept.kept == 1 and 100_000 <= swept.size <= 150_000
    assert not middle.exists() and new.exists()


@pytest.mark.parametrize("moment", ["making", "removing", "turn"])
def test_a_killed_process_leaves_nothing_that_stays(moment, tmp_path):
    top = tmp_path / "snapshots"
    entry = fill_entry(top, "entry", 10)
    program = {
        "making": "scratch = locks.scratch_for(top / 'k'); (scratch.path / 'half').write_text('x')",
        "removing": "(top / 'entry').rename(top / '.trash-1')",
        "turn": "locks.take_turn(top / 'k')",
    }[moment]
    code = (
        f"import sys, time; from pathlib import Path; from tugline.sandboxes import locks; top = Path({str(top)!r})\n"
        f"kept = []\n{program}\nprint('there', flush=True); time.sleep(60)\n"
    )
    code = code.replace("locks.take_turn(top / 'k')\n", "kept.append(locks.take_turn(top / 'k'))\n")
    path = os.pathsep.join([str(Path(__file__).parents[3] / "src"), *sys.path])
    with subprocess.Popen([sys.executable, "-c", code], env={"PYTHONPATH": path}, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        if moment == "making":
            sweep(tmp_path, 1e9, 1 << 40)
            assert [p for p in top.iterdir() if p.name.startswith(locks.SCRATCH)], "a living maker lost its work"
        if moment == "turn":
            assert locks.take_turn(top / "k") is None, "two makers at once"
        process.send_signal(signal.SIGKILL)
    sweep(tmp_path, 1e9, 1 << 40)
    assert [p for p in top.iterdir() if p != entry] == []
    turn = locks.take_turn(top / "k")
    assert turn is not None
    locks.end_turn(top / "k", turn)


def test_a_damaged_entry_is_made_anew(tmp_path):
    (tmp_path / "k").mkdir()
    assert locks.held(tmp_path / "k") is None
    fill_entry(tmp_path, "k", 1)
    entry = locks.held(tmp_path / "k")
    assert entry is not None and entry.meta.what == "test"
    entry.release()
