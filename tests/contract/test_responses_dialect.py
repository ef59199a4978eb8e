"""The Responses dialect keeps every promise of the shipped suite."""

from __future__ import annotations

import pytest

from contract.chat_kit import chat_kit
from contract.responses_kit import responses_kit
from tugline.core.items import Assistant, Head, Options, ToolCall, UserText
from tugline.forest.keys import start, walk
from tugline.testing.dialect_suite import ASSISTANTS, CHECKS, CONVERSATION, VERBATIM_ARGUMENTS, pending_of, reply_of


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("check_"))
def test_responses(check) -> None:
    check(responses_kit())


@pytest.mark.parametrize("arguments", VERBATIM_ARGUMENTS, ids=range(len(VERBATIM_ARGUMENTS)))
def test_any_arguments_are_carried_verbatim(arguments: str) -> None:
    kit, said = responses_kit(), Assistant(calls=(ToolCall("c", "f", arguments),))
    assert kit.dialect.echo(reply_of(said)) == said
    assert kit.decode((UserText("a"), said, UserText("b"))).items[1] == said
    parts, terminal = kit.dialect.stream(reply_of(said))
    assert kit.assemble(b"".join(parts) + terminal) == said


def test_the_view_of_a_conversation_is_that_of_chat() -> None:
    """One key for one conversation, whichever API it came by: also for the tools."""
    ours, chats = responses_kit(), chat_kit()
    for n in range(1, len(CONVERSATION) + 1):
        mine, theirs = (kit.decode(CONVERSATION[:n], Options()) for kit in (ours, chats))
        assert mine.items == theirs.items
        keys = [walk(start(b"t", Head(r.head.tools)), r.items)[-1].lenient for r in (mine, theirs)]
        assert keys[0] == keys[1]


@pytest.mark.parametrize("said", ASSISTANTS, ids=range(len(ASSISTANTS)))
def test_a_cut_reply_ends_incomplete(said: Assistant) -> None:
    kit, reply = responses_kit(), reply_of(said, finish="length")
    parts, terminal = kit.dialect.stream(reply, 3)
    beats = [kit.dialect.keepalive(pending_of(reply), n) for n in range(3)]
    assert terminal.startswith(b"event: response.incomplete\n")
    assert kit.assemble(b"".join([*beats, *parts, terminal])) == kit.read(kit.dialect.encode(reply)) == said
