import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tugline.core.errors import RunError
from tugline.store import RunStore
from tugline.store.lock import RunLock

HOLD = """
import os, sys
from pathlib import Path
from tugline.store.lock import RunLock
lock = RunLock.acquire(Path(sys.argv[1]), 1700000000.0)
if "fork" in sys.argv:
    child = os.fork()
    if child == 0:
        sys.stdin.read()
        os._exit(0)
print("held", flush=True)
sys.stdin.read()
"""


def hold(file: Path, *args: str) -> subprocess.Popen[bytes]:
    """A process that holds the lock until its input ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file), *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def end(holder: subprocess.Popen[bytes]) -> None:
    holder.communicate()


def test_the_second_opener_is_told_who_is_the_first(tmp_path: Path) -> None:
    RunStore.create(tmp_path, "").close_now()
    holder = hold(tmp_path / "lock")
    try:
        with pytest.raises(RunError, match=rf"in use by process {holder.pid} on .* since 2023-11-14 22:13:20 UTC: -c"):
            RunStore.open(tmp_path, write=True)
        with RunStore.open(tmp_path, write=False) as reader:
            assert reader.sessions() == []
    finally:
        end(holder)
    RunStore.open(tmp_path, write=True).close_now()


def test_one_process_cannot_open_a_run_twice(tmp_path: Path) -> None:
    store = RunStore.create(tmp_path, "")
    with pytest.raises(RunError, match=f"process {os.getpid()} "):
        RunStore.open(tmp_path, write=True)
    store.close_now()
    assert (tmp_path / "lock").read_bytes() == b""


def test_a_killed_owners_lock_is_taken_over(tmp_path: Path) -> None:
    RunStore.create(tmp_path, "").close_now()
    holder = hold(tmp_path / "lock")
    holder.kill()
    end(holder)
    with RunStore.open(tmp_path, write=True) as store:
        assert f"left behind by process {holder.pid} " in store.warnings[0]


def test_a_child_of_a_dead_owner_does_not_hold_the_run_for_ever(tmp_path: Path) -> None:
    holder = hold(tmp_path / "lock", "fork")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    lock = RunLock.acquire(tmp_path / "lock", 1.0)  # the child still holds flock on the old file
    with pytest.raises(RunError, match=f"process {os.getpid()} "):
        RunLock.acquire(tmp_path / "lock", 1.0)
    lock.release()
    end(holder)


def test_an_owner_elsewhere_is_never_called_dead(tmp_path: Path) -> None:
    holder = hold(tmp_path / "lock", "fork")
    owner = msgspec.json.decode((tmp_path / "lock").read_bytes())
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    (tmp_path / "lock").write_bytes(msgspec.json.encode({**owner, "host": "elsewhere"}))
    with pytest.raises(RunError, match="on elsewhere"):
        RunLock.acquire(tmp_path / "lock", 1.0)
    end(holder)


def test_a_torn_lock_file_is_no_owner(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"pid": 1, "ho')
    lock = RunLock.acquire(tmp_path / "lock", 1.0)
    assert lock.dead is None
    lock.release()
    lock.release()
