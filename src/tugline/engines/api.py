"""What some engines can do beyond sampling. Callers ask with isinstance."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from tugline.core.columns import Floats, Ids
from tugline.core.turn import Sampling

InFlight = Literal["recompute", "keep"]
"""What a generation does when weights change under it: compute its context again with the new weights, or go on with
keys and values of the old ones (cheaper, but its later log-probabilities are of neither version)."""


@runtime_checkable
class Scorer(Protocol):
    """Can re-score a finished row."""

    @property
    def score_tolerance(self) -> float:
        """Nats by which a fresh score may differ from what was recorded, for rounding and batching."""
        ...

    async def score(self, row: Ids, sampling: Sampling) -> Floats:
        """float32[len(row)]: log-probability (nats) of each token given those before it, of the distribution that
        `sampling` draws from; NaN for the first, and where it cannot be known. One teacher-forced pass, apart from the
        cache used for sampling. Raises EngineError; its fault is `score` when this sampling cannot be scored."""
        ...


@runtime_checkable
class LiveWeights(Protocol):
    """Can take new weights while it runs."""

    async def load_weights(self, path: Path, version: int, in_flight: InFlight = "recompute") -> None:
        """From the next token on, sample with the weights at `path`. Raises EngineError; the old ones then stay."""
        ...
