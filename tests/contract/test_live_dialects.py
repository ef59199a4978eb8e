"""Every dialect of ours streams live as the suite wants it, and the suite notices one that does not."""

from __future__ import annotations

import dataclasses

import pytest

from contract.chat_kit import chat_kit
from contract.kits import kits
from tugline.core.items import Delta, Pending
from tugline.dialects import ChatDialect
from tugline.testing.dialect_live import LIVE_CHECKS
from tugline.testing.dialect_suite import run_suite


@pytest.mark.parametrize("check", LIVE_CHECKS, ids=lambda c: c.__name__.removeprefix("check_"))
@pytest.mark.parametrize("name", ["chat", "anthropic", "responses", "gemini"])
def test_live(name: str, check) -> None:
    check(kits()[name])


class Forgetting(ChatDialect):
    """Does not remember what it has said."""

    def live(self, pending: Pending, beats: int = 0):
        stream = super().live(pending, beats)
        plain = stream.delta

        def delta(more: Delta) -> bytes:
            sent = plain(more)
            stream._said = type(stream._said)()
            return sent

        stream.delta = delta
        return stream


def test_the_suite_notices() -> None:
    broken = run_suite(dataclasses.replace(chat_kit(), dialect=Forgetting()))
    assert any("live streams say the same" in line for line in broken), broken
    assert any("never mend" in line for line in broken), broken
