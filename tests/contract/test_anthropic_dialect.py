"""The Anthropic dialect keeps every promise of the shipped suite."""

from __future__ import annotations

import pytest

from contract.anthropic_kit import anthropic_kit
from contract.chat_kit import chat_kit
from tugline.core.items import Assistant, Head, Options, ToolCall, UserText
from tugline.forest.keys import start, walk
from tugline.testing.dialect_suite import CHECKS, CONVERSATION, VERBATIM_ARGUMENTS, reply_of


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("check_"))
def test_anthropic(check) -> None:
    check(anthropic_kit())


@pytest.mark.parametrize("arguments", [a for a in VERBATIM_ARGUMENTS if a.strip()])
def test_arguments_that_are_no_object_come_back_as_they_were(arguments: str) -> None:
    kit, said = anthropic_kit(), Assistant(calls=(ToolCall("c", "f", arguments),))
    assert kit.dialect.echo(reply_of(said)) == said
    assert kit.decode((UserText("a"), said, UserText("b"))).items[1] == said
    assert kit.read(kit.dialect.encode(reply_of(said))) == said
    parts, terminal = kit.dialect.stream(reply_of(said))
    assert kit.assemble(b"".join(parts) + terminal) == said


def test_no_arguments_are_an_empty_object() -> None:
    kit, said = anthropic_kit(), Assistant(calls=(ToolCall("c", "f", ""),))
    assert kit.dialect.echo(reply_of(said)).calls[0].arguments == "{}"


def test_the_view_of_a_conversation_is_that_of_chat() -> None:
    ours, chats = anthropic_kit(), chat_kit()
    for n in range(1, len(CONVERSATION) + 1):
        if isinstance(CONVERSATION[n - 1], Assistant):
            continue  # a last assistant message is a prefill here
        mine, theirs = (kit.decode(CONVERSATION[:n], Options()).items for kit in (ours, chats))
        assert walk(start(b"t", Head()), mine)[-1].lenient == walk(start(b"t", Head()), theirs)[-1].lenient
