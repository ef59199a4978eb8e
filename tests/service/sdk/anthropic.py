"""`anthropic`, Messages."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, ClassVar

import anthropic

from service.sdk.base import SYSTEM, TOOLS, Agent, Answer, Call, Result

KINDS = {
    "bad_request": "BadRequestError",
    "overflow": "BadRequestError",
    "unauthorized": "AuthenticationError",
    "ended": "PermissionDeniedError",
    "missing": "NotFoundError",
    "large": "APIStatusError",
    "busy": "RateLimitError",
    "engine": "InternalServerError",
    "store": "InternalServerError",
    "stream": "APIStatusError",
}


def image_block(image: bytes) -> dict[str, Any]:
    data = base64.b64encode(image).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


class AnthropicAgent(Agent):
    dialect = "anthropic"
    ends: ClassVar[dict[str, str]] = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}

    def connect(self, url: str, secret: str, retries: int) -> Any:
        kind = anthropic.AsyncAnthropic if self.asynchronous else anthropic.Anthropic
        self.messages: list[Any] = []
        return kind(base_url=url, api_key=secret, max_retries=retries, timeout=30)

    def user(self, text: str, image: bytes | None = None) -> None:
        blocks = [{"type": "text", "text": text}, *([image_block(image)] if image else [])]
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages[-1]["content"] += blocks  # one message per speaker
        else:
            self.messages.append({"role": "user", "content": blocks})

    def results(self, results: Sequence[Result]) -> None:
        blocks: list[Any] = []
        for r in results:
            content: Any = [{"type": "text", "text": r.text}, image_block(r.image)] if r.image else r.text
            blocks.append({"type": "tool_result", "tool_use_id": r.call.id, "content": content})
        self.messages.append({"role": "user", "content": blocks})

    def refusal(self, text: str) -> None:
        """This API has no refusal block: a refused turn (`stop_reason` refusal) is text."""
        self.messages.append({"role": "assistant", "content": [{"type": "text", "text": text}]})

    def asked(self) -> dict[str, Any]:
        tools = [{"name": n, "description": d, "input_schema": p} for n, d, p in TOOLS]
        return {
            "model": "policy",
            "system": SYSTEM,
            "messages": self.messages,
            "tools": tools,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }

    async def ask(self, stream: bool) -> Answer:
        if stream:
            reply = await self.final(
                lambda: self.client.messages.stream(**self.asked(), max_tokens=2000), "get_final_message"
            )
        else:
            reply = await self.do(self.client.messages.create, **self.asked(), max_tokens=2000)
        self.messages.append({"role": "assistant", "content": reply.content})
        usage = reply.usage
        cached = (usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0)
        assert all(b.signature for b in reply.content if b.type == "thinking")
        return Answer(
            "".join(b.text for b in reply.content if b.type == "text"),
            "".join(b.thinking for b in reply.content if b.type == "thinking"),
            tuple(Call(b.id, b.name, b.input) for b in reply.content if b.type == "tool_use"),
            reply.stop_reason,
            (usage.input_tokens + sum(cached), usage.output_tokens),
            cached[0],
        )

    async def ask_wrongly(self) -> None:
        wrong = [*self.messages, {"role": "user", "content": [{"type": "tool_result", "content": "answers nothing"}]}]
        await self.do(self.client.messages.create, **self.asked() | {"messages": wrong}, max_tokens=2000)

    async def count(self) -> int | None:
        return int((await self.do(self.client.messages.count_tokens, **self.asked())).input_tokens)

    async def elsewhere(self) -> None:
        await self.do(self.client.messages.batches.retrieve, "batch_unknown")

    async def models(self) -> list[str]:
        return [m.id for m in await self.listed(self.client.models.list)]

    async def model(self, name: str) -> str:
        return str((await self.do(self.client.models.retrieve, name)).id)

    def kind(self, what: str) -> type[Exception]:
        found: type[Exception] = getattr(anthropic, KINDS[what])
        return found
