"""Small clients of the four APIs, as harnesses have them: they write requests and read replies, whole and streamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from tugline.testing.exactness.clients.anthropic import AnthropicClient
from tugline.testing.exactness.clients.chat import ChatClient
from tugline.testing.exactness.clients.gemini import GeminiClient
from tugline.testing.exactness.clients.responses import ResponsesClient
from tugline.testing.exactness.talk import Ask, Heard, Outgoing

__all__ = ["CLIENTS", "Client"]


class Client(Protocol):
    """One API, seen from its user's side."""

    @property
    def name(self) -> str: ...

    def write(self, ask: Ask) -> Outgoing:
        """The request."""
        ...

    def read(self, data: bytes, *, stream: bool) -> Heard:
        """The reply to it. Raises EngineError when it is not whole and well formed."""
        ...


CLIENTS: Mapping[str, Client] = {
    client.name: client for client in (AnthropicClient(), ChatClient(), ResponsesClient(), GeminiClient())
}
