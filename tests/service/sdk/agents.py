"""The agents by dialect, those whose SDK is installed."""

from __future__ import annotations

import pytest

from service.sdk.base import Agent


def agent_class(dialect: str) -> type[Agent]:
    """Skips the test without the SDK."""
    if dialect == "anthropic":
        pytest.importorskip("anthropic")
        from service.sdk.anthropic import AnthropicAgent

        return AnthropicAgent
    if dialect == "gemini":
        pytest.importorskip("google.genai")
        from service.sdk.gemini import GeminiAgent

        return GeminiAgent
    pytest.importorskip("openai")
    if dialect == "responses":
        from service.sdk.responses import ResponsesAgent

        return ResponsesAgent
    from service.sdk.chat import ChatAgent

    return ChatAgent
