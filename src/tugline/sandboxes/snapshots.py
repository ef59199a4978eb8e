"""Prepared file trees, made once and shared: a frozen overlay layer per (image, steps), over sessions and runs.

An entry is a directory KEY with `root`, `work0` and meta.json below a store. It appears under its name only when it is
whole. Processes that use it hold it (see `locks`), so that no sweep takes it away.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tugline.core.errors import SandboxError, boundary
from tugline.sandboxes import locks
from tugline.sandboxes.client import uninterrupted
from tugline.sandboxes.warden.main import remove

LOOK_SECONDS = 0.1
"""Between looks whether another process is done."""
WORK_DIRS = ("root.w", "work0.w")
"""Overlay's own; worth nothing once the layer is frozen."""


@dataclass(frozen=True, slots=True)
class Layers:
    """What a sandbox starts from, topmost first; paths as the warden sees them."""

    root: tuple[str, ...]
    work: tuple[str, ...]


Fill = Callable[[str], Awaitable[Layers | None]]
"""Gets the name of an empty directory of the store. None: it is filled. Layers: the store cannot hold such a tree, and
these stand in for it while this process lives."""


class Snapshots:
    """One store, used by one provider. `seen` = the store's path as the warden sees it."""

    def __init__(self, top: Path, seen: str) -> None:
        self._top = top
        self._seen = seen
        self._tasks: dict[str, asyncio.Task[Layers]] = {}
        self._held: list[locks.Entry] = []
        self.made = 0
        """How many were prepared here."""

    async def get(self, parts: tuple[str, ...], base: Layers, fill: Fill) -> Layers:
        """The layers of a snapshot over `base`. However many ask, here or in other processes, one prepares.

        `parts` say all that it depends on. Raises SandboxError of the preparation; the next to ask tries again.
        """
        key = key_of(parts)
        task = self._tasks.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._obtain(key, base, fill))
            self._tasks[key] = task
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Stop preparing, let go of everything. Idempotent."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        for entry in self._held:
            entry.release()
        self._held.clear()

    async def _obtain(self, key: str, base: Layers, fill: Fill) -> Layers:
        path = self._top / key
        with boundary(SandboxError, f"open the snapshot store {self._top}"):
            if await self._hold(path):
                return self._over(key, base)
            while (turn := await uninterrupted(asyncio.to_thread(locks.take_turn, path))) is None:  # noqa: ASYNC110 - a lock has no event
                await asyncio.sleep(LOOK_SECONDS)
        try:
            if await self._hold(path):
                return self._over(key, base)
            return await self._make(path, base, fill)
        finally:
            await uninterrupted(asyncio.to_thread(locks.end_turn, path, turn))

    async def _make(self, path: Path, base: Layers, fill: Fill) -> Layers:
        with boundary(SandboxError, f"make a snapshot in {self._top}"):
            scratch = await uninterrupted(asyncio.to_thread(locks.scratch_for, path))
        try:
            instead = await fill(scratch.path.name)
            self.made += 1
            if instead is not None:
                return instead
            with boundary(SandboxError, f"keep a snapshot in {self._top}"):
                self._held.append(await uninterrupted(asyncio.to_thread(_freeze, scratch, path)))
        finally:
            await uninterrupted(asyncio.to_thread(scratch.close))
        return self._over(path.name, base)

    async def _hold(self, path: Path) -> bool:
        entry = await uninterrupted(asyncio.to_thread(locks.held, path))
        if entry is not None:
            self._held.append(entry)
        return entry is not None

    def _over(self, key: str, base: Layers) -> Layers:
        at = f"{self._seen}/{key}"
        return Layers((f"{at}/root", *base.root), (f"{at}/work0", *base.work))


def key_of(parts: tuple[str, ...]) -> str:
    """Safe as a file name; different parts, different keys."""
    return hashlib.sha256("\0".join(f"{len(p)}:{p}" for p in parts).encode()).hexdigest()[:40]


def _freeze(scratch: locks.Scratch, path: Path) -> locks.Entry:
    for name in WORK_DIRS:
        with contextlib.suppress(OSError):
            remove(str(scratch.path / name))
    return locks.publish(scratch, path, "snapshot")
