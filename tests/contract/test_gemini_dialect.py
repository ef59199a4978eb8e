"""The Gemini dialect keeps every promise of the shipped suite."""

from __future__ import annotations

import dataclasses

import pytest

from contract.gemini_kit import gemini_kit
from tugline.core.items import Assistant, Options, Reply, ToolCall, UserText
from tugline.dialects.gemini import GeminiDialect
from tugline.testing.dialect_suite import CHECKS, VERBATIM_ARGUMENTS, pending_of, reply_of, run_suite


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__.removeprefix("check_"))
def test_gemini(check) -> None:
    check(gemini_kit())


@pytest.mark.parametrize("arguments", [*VERBATIM_ARGUMENTS, '{"__raw_arguments":"x"}', '{"__raw_arguments":1}', " "])
def test_any_arguments_come_back(arguments: str) -> None:
    kit, said = gemini_kit(), Assistant(calls=(ToolCall("c", "f", arguments),))
    assert kit.dialect.echo(reply_of(said)) == said
    parts, terminal = kit.dialect.stream(reply_of(said))
    assert kit.dialect.echo(reply_of(kit.assemble(b"".join(parts) + terminal))) == said


class EarlyFinish(GeminiDialect):
    """Says STOP on its first chunk, before the calls."""

    def stream(self, reply: Reply, beats: int = 0) -> tuple[list[bytes], bytes]:
        parts, terminal = super().stream(reply, beats)
        return [parts[0].replace(b'"index":0', b'"finishReason":"STOP","index":0'), *parts[1:]], terminal


class Commenting(GeminiDialect):
    """Keeps alive as other APIs do."""

    def keepalive(self, pending, n: int) -> bytes:
        return b": keep-alive\n\n"


@pytest.mark.parametrize(("dialect", "words"), [(EarlyFinish(), "stream says"), (Commenting(), "keepalives")])
def test_suite_notices(dialect: GeminiDialect, words: str) -> None:
    assert any(words in line for line in run_suite(dataclasses.replace(gemini_kit(), dialect=dialect)))


def test_beats_and_pending_have_no_part_in_the_stream() -> None:
    dialect, reply = GeminiDialect(), reply_of(Assistant("a"), Options(stream=True))
    assert dialect.keepalive(pending_of(reply), 0).strip() == b""
    assert dialect.stream(reply, 3) == dialect.stream(reply, 0)


def test_kit_decodes() -> None:
    said = Assistant("t", "r", (ToolCall("c", "f", '{"a":1.0}'),))
    assert gemini_kit().decode((UserText("a"), said, UserText("b"))).items[1] == said
