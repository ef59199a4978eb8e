"""Where shared trees lie: below the cache, for every run of this user, or with one provider while it lives."""

from __future__ import annotations

import time
from pathlib import Path

from tugline.sandboxes import locks
from tugline.sandboxes.instance import Instance

SNAPSHOTS, IMAGES = "snapshots", "images"


def snapshot_dir(place: Instance, cache: Path | None) -> Path:
    """The snapshot store. Raises OSError."""
    return _store(place, cache, SNAPSHOTS)


def image_dir(place: Instance, cache: Path | None) -> Path:
    """The store of unpacked images. Raises OSError."""
    return _store(place, cache, IMAGES)


def sweep(cache: Path, older: float, largest: int) -> locks.Swept:
    """Remove what nobody uses and nobody has used for `older` seconds, and what is too much beyond `largest` bytes."""
    return locks.sweep((cache / SNAPSHOTS, cache / IMAGES), older, largest, time.time())


def _store(place: Instance, cache: Path | None, name: str) -> Path:
    store = (cache or place.path) / name
    store.mkdir(parents=True, exist_ok=True)
    return store
