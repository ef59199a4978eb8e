"""What the agents of all SDKs can do. Each holds its conversation in its SDK's own types, and echoes what it got."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

TOOLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "bash",
        "Run a command.",
        {
            "type": "object",
            "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
            "required": ["command"],
        },
    ),
    ("look", "Look at a file.", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}),
)
SYSTEM = "You are careful.\n\nUse the tools. "


@dataclass(frozen=True)
class Call:
    """A tool call as the SDK gave it. `id` is None where the API has none."""

    id: str | None
    name: str
    arguments: Any


@dataclass(frozen=True)
class Result:
    """What a tool answers."""

    call: Call
    text: str
    image: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """One reply in plain words. `native` is the API's word for how it ended."""

    text: str
    reasoning: str
    calls: tuple[Call, ...]
    native: str
    usage: tuple[int, int]
    """(prompt, completion) tokens, reasoning included in the completion."""
    cached: int = 0
    reasoning_tokens: int | None = None
    """None: this API does not say."""


class Agent(ABC):
    """A conversation with tools through one official SDK, its blocking client in a thread or its asyncio client."""

    dialect: ClassVar[str]
    ends: ClassVar[dict[str, str]]
    """Our finish -> the API's word."""

    def __init__(self, url: str, secret: str, *, asynchronous: bool, retries: int = 0) -> None:
        self.asynchronous = asynchronous
        self.client = self.connect(url, secret, retries)

    @abstractmethod
    def connect(self, url: str, secret: str, retries: int) -> Any: ...

    @abstractmethod
    def user(self, text: str, image: bytes | None = None) -> None: ...

    @abstractmethod
    def results(self, results: Sequence[Result]) -> None: ...

    @abstractmethod
    def refusal(self, text: str) -> None:
        """A turn that the model refused, as the API records one."""

    @abstractmethod
    async def ask(self, stream: bool) -> Answer:
        """Call, and take what the SDK returned into the conversation, as it is."""

    @abstractmethod
    async def ask_wrongly(self) -> None:
        """A call that the API refuses with 400. The conversation stays."""

    @abstractmethod
    async def count(self) -> int | None:
        """The API's own token count of what ask() would send; None if it has no such call."""

    @abstractmethod
    async def elsewhere(self) -> None:
        """Call a path that is not served."""

    @abstractmethod
    async def models(self) -> list[str]: ...

    @abstractmethod
    async def model(self, name: str) -> str:
        """Ask for one model; its name."""

    @abstractmethod
    def kind(self, what: str) -> type[Exception]:
        """The SDK's exception for a key of OPENAI_KINDS."""

    async def close(self) -> None:
        if self.asynchronous:
            await self.client.close()
        else:
            await asyncio.to_thread(self.client.close)

    async def do(self, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """A method of the client, blocking or not."""
        if self.asynchronous:
            return await method(*args, **options)
        return await asyncio.to_thread(method, *args, **options)

    async def final(self, manager: Callable[[], Any], read: str) -> Any:
        """The final object of a stream that is a context manager."""
        if self.asynchronous:
            async with manager() as stream:
                return await getattr(stream, read)()

        def work() -> Any:
            with manager() as stream:
                return getattr(stream, read)()

        return await asyncio.to_thread(work)

    async def listed(self, method: Callable[[], Any]) -> list[Any]:
        """Everything in the pager or stream that a method gives."""
        if not self.asynchronous:
            return await asyncio.to_thread(lambda: list(method()))
        pages = method()
        if asyncio.iscoroutine(pages):
            pages = await pages
        return [item async for item in pages]


OPENAI_KINDS = {
    "bad_request": "BadRequestError",
    "overflow": "BadRequestError",
    "unauthorized": "AuthenticationError",
    "ended": "PermissionDeniedError",
    "missing": "NotFoundError",
    "large": "APIStatusError",
    "busy": "RateLimitError",
    "engine": "InternalServerError",
    "store": "InternalServerError",
    "stream": "APIError",
}
