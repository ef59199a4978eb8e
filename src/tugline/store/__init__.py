"""The run directory: settings, states, calls, turns and rows, durable against kill -9."""

from tugline.store.store import RunStore

__all__ = ["RunStore"]
