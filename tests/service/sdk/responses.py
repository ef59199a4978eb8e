"""`openai`, Responses."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, ClassVar

import openai

from service.sdk.base import OPENAI_KINDS, SYSTEM, TOOLS, Agent, Answer, Call, Result


def image_part(image: bytes) -> dict[str, Any]:
    data = "data:image/png;base64," + base64.b64encode(image).decode()
    return {"type": "input_image", "detail": "auto", "image_url": data}


def parts(text: str, image: bytes | None) -> Any:
    return [{"type": "input_text", "text": text}, image_part(image)] if image else text


class ResponsesAgent(Agent):
    dialect = "responses"
    ends: ClassVar[dict[str, str]] = {"stop": "completed", "tool_calls": "completed", "length": "incomplete"}
    previous: str | None = None
    """Set: only what is new is sent."""
    server_side = False

    def connect(self, url: str, secret: str, retries: int) -> Any:
        kind = openai.AsyncOpenAI if self.asynchronous else openai.OpenAI
        self.input: list[Any] = []
        return kind(base_url=url + "/v1", api_key=secret, max_retries=retries, timeout=30)

    def user(self, text: str, image: bytes | None = None) -> None:
        self.input.append({"role": "user", "content": parts(text, image)})

    def results(self, results: Sequence[Result]) -> None:
        for r in results:
            output = parts(r.text, r.image)
            self.input.append({"type": "function_call_output", "call_id": r.call.id, "output": output})

    def refusal(self, text: str) -> None:
        content = [{"type": "refusal", "refusal": text}]
        message = {"type": "message", "id": "msg_refused", "status": "completed", "role": "assistant"}
        self.input.append(message | {"content": content})

    def asked(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "name": n, "description": d, "parameters": p, "strict": False} for n, d, p in TOOLS
        ]
        asked = {"model": "policy", "instructions": SYSTEM, "input": self.input, "tools": tools}
        return asked | ({"previous_response_id": self.previous} if self.previous else {})

    async def ask(self, stream: bool) -> Answer:
        kept = {"include": ["reasoning.encrypted_content"], "store": self.server_side}
        if stream:
            reply = await self.streamed(self.asked() | kept)
        else:
            reply = await self.do(self.client.responses.create, **self.asked(), **kept)
        if self.server_side:
            self.previous, self.input = reply.id, []
        else:
            self.input += [_echo(item) for item in reply.output]
        usage = reply.usage
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        calls = [Call(i.call_id, i.name, json.loads(i.arguments)) for i in reply.output if i.type == "function_call"]
        if reply.status == "incomplete":
            assert reply.incomplete_details.reason == "max_output_tokens"
        return Answer(
            reply.output_text,
            "".join(_reasoning(i) for i in reply.output if i.type == "reasoning"),
            tuple(calls),
            reply.status,
            (usage.input_tokens, usage.output_tokens),
            usage.input_tokens_details.cached_tokens,
            usage.output_tokens_details.reasoning_tokens,
        )

    async def streamed(self, asked: dict[str, Any]) -> Any:
        """The response of the terminal event. The SDK's stream helper knows none but `response.completed`."""
        events = await self.listed(lambda: self.client.responses.create(**asked, stream=True))
        assert [e.sequence_number for e in events] == list(range(len(events)))
        assert events[-1].type in ("response.completed", "response.incomplete")
        return events[-1].response

    async def ask_wrongly(self) -> None:
        wrong = [*self.input, {"type": "function_call_output", "output": "answers nothing"}]
        await self.do(self.client.responses.create, **self.asked() | {"input": wrong})

    async def count(self) -> int | None:
        counted = await self.do(self.client.responses.input_tokens.count, **self.asked())
        return int(counted.input_tokens)

    async def elsewhere(self) -> None:
        await self.do(self.client.responses.delete, "resp_unknown")

    async def models(self) -> list[str]:
        return [m.id for m in await self.listed(self.client.models.list)]

    async def model(self, name: str) -> str:
        return str((await self.do(self.client.models.retrieve, name)).id)

    def kind(self, what: str) -> type[Exception]:
        found: type[Exception] = getattr(openai, OPENAI_KINDS[what])
        return found


def _reasoning(item: Any) -> str:
    texts = item.content or item.summary
    return "".join(part.text for part in texts)


def _echo(item: Any) -> dict[str, Any]:
    """What the SDK returned, as a dict: its own helper fields are no part of the API."""
    echo: dict[str, Any] = item.model_dump(exclude_none=True)
    echo.pop("parsed_arguments", None)
    for part in echo.get("content") or ():
        part.pop("parsed", None)
    return echo
