"""The fake engine's HTTP side: the routes of vLLM and SGLang that gateways and trainers call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tugline.core.columns import count, ids, ids_list, take
from tugline.core.errors import BadRequest, TuglineError
from tugline.core.items import Reply, ToolCall, Usage
from tugline.dialects import DIALECTS
from tugline.testing import vllm_shapes as shapes
from tugline.testing.exactness import wire
from tugline.testing.exactness.fake import CONTEXT, FakeEngine, Made, parsed_arguments
from tugline.testing.exactness.talk import as_messages

COMPLETION_TOKENS = 16
"""vLLM's limit for a text completion that names none."""
SGLANG_TOKENS = 128
"""SGLang's for a generation that names none."""


def fake_app(engine: FakeEngine) -> Starlette:
    """An ASGI application that serves `engine` as vLLM and SGLang would."""
    serve = _Served(engine)
    routes = [
        Route("/health", serve.nothing),
        Route("/v1/models", serve.models),
        Route("/version", serve.version),
        Route("/get_model_info", serve.model_info),
        Route("/tokenize", serve.post(serve.tokenize), methods=["POST"]),
        Route("/detokenize", serve.post(serve.detokenize), methods=["POST"]),
        Route("/v1/chat/completions", serve.post(serve.chat), methods=["POST"]),
        Route("/v1/completions", serve.post(serve.completions), methods=["POST"]),
        Route("/inference/v1/generate", serve.post(serve.generate), methods=["POST"]),
        Route("/generate", serve.post(serve.sglang), methods=["POST"]),
        Route("/v1/messages", serve.in_dialect("anthropic"), methods=["POST"]),
        Route("/v1/responses", serve.in_dialect("responses"), methods=["POST"]),
    ]
    quiet = ("/inference/v1/abort_requests", "/abort_request", "/flush_cache")
    return Starlette(routes=[*routes, *(Route(path, serve.nothing, methods=["GET", "POST"]) for path in quiet)])


Answer = Callable[[dict[str, Any]], Awaitable[Response]]


class _Served:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine

    def post(self, answer: Answer) -> Callable[[Request], Any]:
        """A handler of JSON bodies; errors as engines word them."""

        async def handle(request: Request) -> Response:
            try:
                try:
                    body = msgspec.json.decode(await request.body(), type=dict[str, Any])
                except msgspec.DecodeError as err:
                    raise BadRequest(f"not a JSON object: {err}") from err
                return await answer(body)
            except TuglineError as err:
                detail = {"message": err.message, "type": "BadRequestError", "param": None, "code": 400}
                return _json({"error": detail, "object": "error", "message": err.message}, 400)

        return handle

    # ------------------------------------------------------------------------------------------------- facts

    async def nothing(self, _request: Request) -> Response:
        return _json({})

    async def models(self, _request: Request) -> Response:
        return _json(shapes.models(self.engine.name, self.engine.name, CONTEXT))

    async def version(self, _request: Request) -> Response:
        return _json({"version": "0.0.0+fake"})

    async def model_info(self, _request: Request) -> Response:
        return _json({"model_path": self.engine.name, "is_generation": True, "weight_version": wire.VERSION})

    async def tokenize(self, body: dict[str, Any]) -> Response:
        prompt = self._messages(body) if "messages" in body else self.engine.model.encode(str(body.get("prompt", "")))
        return _json(shapes.tokenized(ids_list(prompt), CONTEXT))

    async def detokenize(self, body: dict[str, Any]) -> Response:
        return _json({"prompt": self.engine.decode(_ids(body.get("tokens"), "tokens"))})

    # ------------------------------------------------------------------------------------------- generations

    async def chat(self, body: dict[str, Any]) -> Response:
        limit = body.get("max_completion_tokens") or body.get("max_tokens")
        if "input_ids" in body:  # SGLang: the messages are for its parsers only
            prompt, form = _ids(body["input_ids"], "input_ids"), "ids"
        else:
            prompt, form = self._messages(body), "messages"
        made = await self._make(prompt, "/v1/chat/completions", form, limit)
        asked = (made, body, self._model(body), self._words(made))
        if body.get("stream"):
            return _events(wire.sse(wire.chat_chunks(*asked)))
        return _json(wire.chat(*asked))

    async def completions(self, body: dict[str, Any]) -> Response:
        given = body.get("prompt")
        if isinstance(given, list) and len(given) == 1 and isinstance(given[0], list):
            given = given[0]
        text = isinstance(given, str)
        prompt = self.engine.model.encode(str(given)) if text else _ids(given, "prompt")
        limit = body.get("max_tokens") or COMPLETION_TOKENS
        made = await self._make(prompt, "/v1/completions", "text" if text else "ids", limit)
        return _answer(wire.completion(made, body, self._model(body), self._words(made, specials=False)))

    async def generate(self, body: dict[str, Any]) -> Response:
        sampling = body.get("sampling_params") or {}
        limit = sampling.get("max_tokens") or COMPLETION_TOKENS
        made = await self._make(_ids(body.get("token_ids"), "token_ids"), "/inference/v1/generate", "ids", limit)
        return _answer(wire.generated(made, body, self._model(body)))

    async def sglang(self, body: dict[str, Any]) -> Response:
        limit = (body.get("sampling_params") or {}).get("max_new_tokens") or SGLANG_TOKENS
        text = body.get("text")
        prompt = _ids(body.get("input_ids"), "input_ids") if text is None else self.engine.model.encode(str(text))
        made = await self._make(prompt, "/generate", "ids" if text is None else "text", limit)
        answer = wire.sglang(made, "".join(self._words(made, specials=False)))
        return _events(wire.sse([answer])) if body.get("stream") else _json(answer)

    def in_dialect(self, name: str) -> Callable[[Request], Any]:
        """vLLM's own Messages and Responses endpoints: the same model, and no ids in the reply."""
        dialect = next(d for d in DIALECTS if d.name == name)

        async def handle(request: Request) -> Response:
            try:
                asked = dialect.decode(await request.body(), {})
                tools = [msgspec.json.decode(tool.spec) for tool in asked.head.tools]
                prompt = self.engine.render(parsed_arguments(as_messages(asked.items)), tools)
                made = await self._make(prompt, request.url.path, "messages", asked.options.max_tokens)
            except TuglineError as err:
                status, headers, shape = dialect.error(err)
                return Response(shape, status, headers)
            calls = tuple(
                ToolCall(f"call_{made.name[5:]}{n}", c.name, wire.respelled(c.arguments))
                for n, c in enumerate(made.said.calls)
            )
            said = replace(made.said, calls=calls)
            used = Usage(count(made.prompt), count(made.sampled))
            reply = Reply(made.name[5:], asked.model, int(time.time()), said, wire.finish(made), used, asked)
            if asked.options.stream:
                start, end = dialect.stream(reply)
                return _events([*start, end])
            return Response(dialect.encode(reply), media_type="application/json")

        return handle

    # ------------------------------------------------------------------------------------------------- parts

    def _messages(self, body: Mapping[str, Any]) -> Any:
        messages = parsed_arguments(wire.flat(body.get("messages") or ()))
        return self.engine.render(messages, body.get("tools"), **(body.get("chat_template_kwargs") or {}))

    async def _make(self, prompt: Any, route: str, form: Any, limit: int | None) -> Made:
        made = self.engine.generate(prompt, route=route, form=form, max_tokens=limit)
        await asyncio.sleep(self.engine.delay)
        return made

    def _model(self, body: Mapping[str, Any]) -> str:
        return str(body.get("model") or self.engine.name)

    def _words(self, made: Made, *, specials: bool = True) -> list[str]:
        """The text of each sampled token; halves of a character come out as U+FFFD, as engines show them."""
        model, n = self.engine.model, count(made.sampled)
        return [model.decode(take(made.sampled, i, i + 1), specials=specials) for i in range(n)]


def _ids(given: object, path: str) -> Any:
    try:
        return ids(msgspec.convert(given, list[int]))
    except (msgspec.ValidationError, OverflowError) as err:
        raise BadRequest(f"not a list of token ids: {err}", path=path) from err


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _answer(value: dict[str, Any] | list[dict[str, Any]]) -> Response:
    return _events(wire.sse(value)) if isinstance(value, list) else _json(value)


def _events(parts: Iterable[bytes]) -> Response:
    async def each() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    return StreamingResponse(each(), media_type="text/event-stream")
