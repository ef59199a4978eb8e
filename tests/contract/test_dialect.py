"""Our dialects keep every promise of the shipped suite, and the suite notices when one does not."""

from __future__ import annotations

import dataclasses

import pytest

from contract.chat_kit import chat_kit
from tugline.core.items import Assistant, Reply, ToolCall, UserText
from tugline.dialects import ChatDialect
from tugline.testing.dialect_suite import CHECKS, VERBATIM_ARGUMENTS, reply_of, run_suite


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("check_"))
def test_chat(check) -> None:
    check(chat_kit())


@pytest.mark.parametrize("arguments", VERBATIM_ARGUMENTS)
def test_chat_carries_any_arguments_verbatim(arguments: str) -> None:
    kit, said = chat_kit(), Assistant(calls=(ToolCall("c", "f", arguments),))
    assert kit.dialect.echo(reply_of(said)) == said
    assert kit.decode((UserText("a"), said)).items[1] == said
    parts, terminal = kit.dialect.stream(reply_of(said))
    assert kit.assemble(b"".join(parts) + terminal) == said


class Trimming(ChatDialect):
    """Strips text, as a careless gateway does."""

    def echo(self, reply: Reply) -> Assistant:
        echo = super().echo(reply)
        return dataclasses.replace(echo, text=(echo.text or "").strip() or None)


class Losing(ChatDialect):
    """Drops the tail of a stream's arguments."""

    def stream(self, reply: Reply, beats: int = 0) -> tuple[list[bytes], bytes]:
        parts, terminal = super().stream(reply, beats)
        return [p for p in parts if b"qqq" not in p], terminal


class Crashing(ChatDialect):
    """Lets a foreign exception out."""

    def decode(self, body, params):
        if b"\xff" in body:
            raise UnicodeDecodeError("utf-8", body, 0, 1, "bad")
        return super().decode(body, params)


@pytest.mark.parametrize(
    ("dialect", "words"),
    [(Trimming(), "echo"), (Losing(), "stream says the same"), (Crashing(), "hostile bodies")],
)
def test_suite_notices(dialect: ChatDialect, words: str) -> None:
    broken = run_suite(dataclasses.replace(chat_kit(), dialect=dialect))
    assert any(words in line for line in broken), broken


def test_suite_notices_nothing_on_ours() -> None:
    assert run_suite(chat_kit()) == []
