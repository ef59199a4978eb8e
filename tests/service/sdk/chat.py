"""`openai`, Chat Completions."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import openai

from service.sdk.base import OPENAI_KINDS, SYSTEM, TOOLS, Agent, Answer, Call, Result


def image_part(image: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(image).decode()}}


class ChatAgent(Agent):
    dialect = "chat"
    ends: ClassVar[dict[str, str]] = {"stop": "stop", "tool_calls": "tool_calls", "length": "length"}

    def connect(self, url: str, secret: str, retries: int) -> Any:
        kind = openai.AsyncOpenAI if self.asynchronous else openai.OpenAI
        self.messages: list[Any] = [{"role": "system", "content": SYSTEM}]
        return kind(base_url=url + "/v1", api_key=secret, max_retries=retries, timeout=30)

    def user(self, text: str, image: bytes | None = None) -> None:
        parts = [{"type": "text", "text": text}, image_part(image)] if image else text
        self.messages.append({"role": "user", "content": parts})

    def results(self, results: Sequence[Result]) -> None:
        for r in results:
            parts: Any = [{"type": "text", "text": r.text}, image_part(r.image)] if r.image else r.text
            self.messages.append({"role": "tool", "tool_call_id": r.call.id, "content": parts})

    def refusal(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": [{"type": "refusal", "refusal": text}]})

    def asked(self) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": n, "description": d, "parameters": p}} for n, d, p in TOOLS]
        return {"model": "policy", "messages": self.messages, "tools": tools}

    async def ask(self, stream: bool) -> Answer:
        if stream:
            options = {"stream_options": {"include_usage": True}}
            try:
                reply = await self.final(
                    lambda: self.client.chat.completions.stream(**self.asked(), **options), "get_final_completion"
                )
            except openai.LengthFinishReasonError as cut:  # how the SDK's stream helper tells of a cut reply
                reply = cut.completion
        else:
            reply = await self.do(self.client.chat.completions.create, **self.asked())
        (choice,) = reply.choices
        message = choice.message
        self.messages.append(_echo(message))
        calls = [Call(c.id, c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or ()]
        usage = reply.usage
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        return Answer(
            message.content or "",
            getattr(message, "reasoning_content", None) or "",
            tuple(calls),
            choice.finish_reason,
            (usage.prompt_tokens, usage.completion_tokens),
            usage.prompt_tokens_details.cached_tokens,
            usage.completion_tokens_details.reasoning_tokens,
        )

    async def ask_wrongly(self) -> None:
        wrong = [*self.messages, {"role": "tool", "content": "answers nothing"}]
        await self.do(self.client.chat.completions.create, **self.asked() | {"messages": wrong})

    async def count(self) -> int | None:
        return None

    async def elsewhere(self) -> None:
        await self.do(self.client.images.generate, prompt="a cat")

    async def models(self) -> list[str]:
        return [m.id for m in await self.listed(self.client.models.list)]

    async def model(self, name: str) -> str:
        found = await self.do(self.client.models.retrieve, name)
        assert found.object == "model"
        return str(found.id)

    def kind(self, what: str) -> type[Exception]:
        found: type[Exception] = getattr(openai, OPENAI_KINDS[what])
        return found


def _echo(message: Any) -> dict[str, Any]:
    """What the SDK returned, as a dict: its own `parsed` helper fields are no part of the API."""
    echo: dict[str, Any] = message.model_dump(exclude_none=True)
    echo.pop("parsed", None)
    for call in echo.get("tool_calls") or ():
        call["function"].pop("parsed_arguments", None)
    return echo
