"""What all tests share: blocking the event loop can fail a test, and how tests spread over processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from blockbuster import BlockBuster, blockbuster_ctx


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2 --dist loadgroup`, tests go one by one to whichever process is free; those of a real vLLM share one
    server and so one process. (`xdist_group` marks do nothing here: xdist 3.8 changes a name that pytest 9.2 no longer
    reads.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "vllm" if "/test_vllm.py::" in nodeid else nodeid

    return Scheduling(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture
def no_blocking() -> Iterator[BlockBuster]:
    """Any blocking call on the event loop with the gateway on the stack raises BlockingError."""
    with blockbuster_ctx("tugline.gateway") as guard:
        yield guard
