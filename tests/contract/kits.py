"""The clients of all our dialects, by name."""

from __future__ import annotations

from contract.anthropic_kit import anthropic_kit
from contract.chat_kit import chat_kit
from contract.gemini_kit import gemini_kit
from contract.responses_kit import responses_kit
from tugline.testing.dialect_suite import DialectKit


def kits() -> dict[str, DialectKit]:
    return {kit.dialect.name: kit for kit in (chat_kit(), anthropic_kit(), responses_kit(), gemini_kit())}
