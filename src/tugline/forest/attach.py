"""Where a request attaches: the values that say so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tugline.core.items import Assistant, Head, Item, Request
from tugline.core.turn import Turn
from tugline.forest.keys import Chain


@dataclass(frozen=True, slots=True)
class Cut:
    """The assistant item tail[index] is the beginning of what turn `origin` said, which answered the same prompt.

    `honoured`: edit classes that must not be among what else was changed. `drift`: filters without which the prompts
    would differ.
    """

    origin: Turn
    index: int
    train: bool
    honoured: frozenset[str] = frozenset()
    drift: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Attachment:
    """A request seen from the forest. `tail` = items behind the parent's assistant item (all items for a root)."""

    parent: Turn | None
    tail: tuple[Item, ...]
    match: Literal["exact", "lenient", "root"]
    root_reason: str | None
    drift: tuple[str, ...]
    chain: Chain
    """Behind the last item of the request."""
    fingerprint: bytes
    """Equal for requests that ask for the same generation: the base of retry detection."""
    head: Head | None = None
    """The head to use instead of the request's, where the conversation keeps the one that it began with."""
    echoed: tuple[tuple[str, Assistant], ...] = ()
    """(turn id, the harness's words for it) of turns on the path that it changed and that are kept all the same."""
    template: bool = False
    """History is to be as the chat template writes it, not as it was sampled, where the two differ."""
    cut: Cut | None = None
    """A turn in the tail whose beginning is to be kept as it was sampled."""

    def as_root(self, request: Request, reason: str) -> Attachment:
        """The same request as a root of its own, e.g. when no bridge can be built."""
        return replace(self, parent=None, tail=request.items, match="root", root_reason=reason, echoed=())
