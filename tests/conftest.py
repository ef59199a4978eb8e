"""What all tests share: blocking the event loop can fail a test, and how tests spread over processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2 --dist loadgroup`, slow real parts go to one process, one after another, and everything else, file by
    file, to the other: two agents that fight for two cores would test the machine."""
    for item in items:
        slow = item.get_closest_marker("real") or item.get_closest_marker("chaos")
        item.add_marker(pytest.mark.xdist_group("slow parts" if slow else item.path.stem + item.path.parent.name))


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Any blocking call on the event loop with the gateway on the stack raises BlockingError."""
    with blockbuster_ctx("tugline.gateway") as guard:
        yield guard
