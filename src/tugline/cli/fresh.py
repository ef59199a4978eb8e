"""A start that is refused leaves no run directory behind."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tugline.core.errors import EngineError, RunError, TuglineError
from tugline.store import RunStore
from tugline.store.lock import RunLock
from tugline.store.store import DATABASE, LOCK


@contextmanager
def nothing_left(path: Path) -> Iterator[None]:
    """Removes the run directory at `path` when the body raises, it was not there before, and no session is in it.

    The body has closed the run when it raises. An engine that died leaves its log: that run stays.
    """
    fresh = not path.exists()
    try:
        yield
    except EngineError:
        raise
    except TuglineError:
        if fresh and path.is_dir():
            _remove_empty(path)
        raise


def _remove_empty(path: Path) -> None:
    try:
        lock = RunLock.acquire(path / LOCK, time.time())
    except (RunError, OSError):
        return  # somebody was faster: it is his run now
    try:
        if (path / DATABASE).is_file():
            with RunStore.open(path, write=False) as store:
                if store.sessions():
                    return
        shutil.rmtree(path, ignore_errors=True)
    except RunError:
        return  # unreadable: not ours to judge
    finally:
        lock.release()
