"""`google-genai`, the Gemini Developer API."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Sequence
from typing import Any, ClassVar

from google import genai
from google.genai import errors, types

from service.sdk.base import SYSTEM, TOOLS, Agent, Answer, Call, Result


class GeminiAgent(Agent):
    dialect = "gemini"
    ends: ClassVar[dict[str, str]] = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS"}

    def connect(self, url: str, secret: str, retries: int) -> Any:
        self.contents: list[types.Content] = []
        self.url, self.secret = url, secret
        retry = types.HttpRetryOptions(attempts=1 + retries, initial_delay=0.05, max_delay=0.1, jitter=0.01)
        client = genai.Client(
            api_key=secret,
            vertexai=False,
            http_options=types.HttpOptions(base_url=url, timeout=30_000, retry_options=retry),
        )
        self.whole = client
        return client.aio if self.asynchronous else client

    def user(self, text: str, image: bytes | None = None) -> None:
        parts = [types.Part.from_text(text=text)]
        if image:
            parts.append(types.Part.from_bytes(data=image, mime_type="image/png"))
        self.contents.append(types.Content(role="user", parts=parts))

    def results(self, results: Sequence[Result]) -> None:
        parts = []
        for r in results:
            media = None
            if r.image:
                blob = types.FunctionResponseBlob(mime_type="image/png", data=r.image)
                media = [types.FunctionResponsePart(inline_data=blob)]
            response = types.FunctionResponse(id=r.call.id, name=r.call.name, response={"output": r.text}, parts=media)
            parts.append(types.Part(function_response=response))
        self.contents.append(types.Content(role="user", parts=parts))

    def refusal(self, text: str) -> None:
        """This API has no refusal part: a refused turn is text, if there is any."""
        self.contents.append(types.Content(role="model", parts=[types.Part.from_text(text=text)]))

    def config(self) -> types.GenerateContentConfig:
        declared = [types.FunctionDeclaration(name=n, description=d, parameters_json_schema=p) for n, d, p in TOOLS]
        return types.GenerateContentConfig(
            system_instruction=SYSTEM,
            tools=[types.Tool(function_declarations=declared)],
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            thinking_config=types.ThinkingConfig(include_thoughts=True),
        )

    async def ask(self, stream: bool) -> Answer:
        asked = {"model": "policy", "contents": self.contents, "config": self.config()}
        if stream:
            chunks = await self.chunks(asked)
        else:
            chunks = [await self.do(self.client.models.generate_content, **asked)]
        parts = [
            p for c in chunks for p in (c.candidates[0].content.parts or []) if c.candidates and c.candidates[0].content
        ]
        # as the SDK's own chat sessions keep a streamed turn: its parts in order
        self.contents.append(types.Content(role="model", parts=parts))
        last, usage = chunks[-1].candidates[0], chunks[-1].usage_metadata
        thoughts, said = usage.thoughts_token_count or 0, usage.candidates_token_count or 0
        assert usage.total_token_count == usage.prompt_token_count + thoughts + said
        return Answer(
            "".join(p.text for p in parts if p.text and not p.thought),
            "".join(p.text for p in parts if p.text and p.thought),
            tuple(Call(c.id, c.name, c.args) for p in parts if (c := p.function_call)),
            last.finish_reason.value,
            (usage.prompt_token_count, thoughts + said),
            usage.cached_content_token_count or 0,
            thoughts,
        )

    async def chunks(self, asked: dict[str, Any]) -> list[Any]:
        if self.asynchronous:
            return [c async for c in await self.client.models.generate_content_stream(**asked)]
        return await asyncio.to_thread(lambda: list(self.client.models.generate_content_stream(**asked)))

    async def ask_wrongly(self) -> None:
        wrong = [*self.contents, types.Content(role="alien", parts=[types.Part.from_text(text="x")])]
        await self.do(self.client.models.generate_content, model="policy", contents=wrong, config=self.config())

    async def count(self) -> int | None:
        """The SDK refuses to send the system text and tools along; the API itself takes the whole request."""
        declared = [{"name": n, "description": d, "parametersJsonSchema": p} for n, d, p in TOOLS]
        whole = {
            "model": "models/policy",
            "systemInstruction": {"parts": [{"text": SYSTEM}]},
            "tools": [{"functionDeclarations": declared}],
            "contents": [c.model_dump(mode="json", exclude_none=True, by_alias=True) for c in self.contents],
        }
        request = urllib.request.Request(
            self.url + "/v1beta/models/policy:countTokens",
            data=json.dumps({"generateContentRequest": whole}).encode(),
            headers={"content-type": "application/json", "x-goog-api-key": self.secret},
        )
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(request, timeout=30).read())
        return int(json.loads(text)["totalTokens"])

    async def elsewhere(self) -> None:
        await self.do(self.client.caches.get, name="cachedContents/unknown")

    async def models(self) -> list[str]:
        return [m.name.removeprefix("models/") for m in await self.listed(self.client.models.list)]

    async def model(self, name: str) -> str:
        return str((await self.do(self.client.models.get, model=name)).name).removeprefix("models/")

    def kind(self, what: str) -> type[Exception]:
        if what == "stream":
            return errors.APIError
        return errors.ServerError if what in ("engine", "store") else errors.ClientError

    async def close(self) -> None:
        if self.asynchronous:
            await self.client.aclose()
        await asyncio.to_thread(self.whole.close)
