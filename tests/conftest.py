"""Blocking the event loop fails a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Any blocking call on the event loop with the gateway on the stack raises BlockingError."""
    with blockbuster_ctx("tugline.gateway") as guard:
        yield guard
