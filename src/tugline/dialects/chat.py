"""OpenAI Chat Completions: POST /v1/chat/completions, GET /v1/models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tugline.core.contracts import Route
from tugline.core.errors import NotFound, TuglineError
from tugline.core.items import Assistant, Pending, Reply, Request
from tugline.dialects import chat_wire as wire
from tugline.dialects.chat_decode import Decoders, assistant, to_request
from tugline.dialects.openai_errors import ErrorReply, error_body, error_reply
from tugline.dialects.sse import escape_separators, event, pieces
from tugline.dialects.wire import bearer, decode


class ChatDialect:
    """Implements core Dialect. Stateless."""

    name: str = "chat"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/chat/completions", "generate"),
        Route("POST", "/chat/completions", "generate"),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/models", "models"),
        Route("GET", "/v1/models/{model}", "model"),
        Route("GET", "/models/{model}", "model"),
    )
    content_type_stream: str = "text/event-stream; charset=utf-8"

    def __init__(self) -> None:
        self._decoders = Decoders()
        self._encode = msgspec.json.Encoder().encode

    def claims(self, headers: Mapping[str, str]) -> bool:
        """Never: this API answers where no other one claims the path."""
        return False

    def credential(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """`Authorization: Bearer KEY`, or the `api-key` that Azure clients send."""
        return bearer(headers) or headers.get("api-key", "").strip() or headers.get("x-api-key", "").strip() or None

    def decode(self, body: bytes, params: Mapping[str, str]) -> Request:
        """Raises BadRequest / Unsupported with the field's path, for any bytes whatever."""
        return to_request(self._decoders, body)

    def encode(self, reply: Reply) -> bytes:
        """The reply as one chat.completion."""
        choice = wire.Choice(0, _message(reply.assistant), reply.finish)
        whole = wire.Completion(_id(reply), "chat.completion", reply.created, reply.model, [choice], _usage(reply))
        return escape_separators(self._encode(whole))

    def keepalive(self, pending: Pending, n: int) -> bytes:
        """A comment, which event readers drop."""
        return b": keep-alive\n\n"

    def stream(self, reply: Reply, beats: int = 0) -> tuple[list[bytes], bytes]:
        """chat.completion.chunk events; the terminal part is `data: [DONE]`."""
        options_usage = reply.request.options.include_usage
        usage = None if options_usage else UNSET
        chunks = [self._chunk(reply, delta, None, usage) for delta in _deltas(reply.assistant)]
        chunks.append(self._chunk(reply, wire.Delta(), reply.finish, usage))
        if options_usage:
            last = wire.Chunk(_id(reply), "chat.completion.chunk", reply.created, reply.model, [], _usage(reply))
            chunks.append(self._encode(last))
        return [event(chunk) for chunk in chunks], b"data: [DONE]\n\n"

    def echo(self, reply: Reply) -> Assistant:
        """Through the wire and back: what decode() gives for a verbatim echo."""
        message = decode(self._decoders.message, self._encode(_message(reply.assistant)))
        return assistant(self._decoders, message, "messages[]")

    def error(self, err: TuglineError) -> tuple[int, dict[str, str], bytes]:
        """{"error": {message, type, param, code}} with the status that OpenAI clients act on."""
        return error_reply(err)

    def stream_error(self, err: TuglineError, pending: Pending, beats: int = 0) -> bytes:
        """An error event; no [DONE] follows."""
        return event(self._encode(ErrorReply(error_body(err))))

    def models(self, model: str, context: int) -> bytes:
        """The one policy there is. Any model name asked for means it."""
        return self._encode({"object": "list", "data": [_model(model, context)]})

    def model(self, asked: str, context: int) -> bytes:
        """Any name is the policy's."""
        return self._encode(_model(asked, context))

    def counted(self, tokens: int) -> bytes:
        """This API has no count call."""
        raise NotFound("the Chat API has no token count")

    def refusal(self, path: str) -> TuglineError:
        """This API has no refused routes."""
        return NotFound(f"no route {path[:200]}")

    def _chunk(self, reply: Reply, delta: wire.Delta, finish: str | None, usage: UnsetType | None) -> bytes:
        choice = wire.ChunkChoice(0, delta, finish)
        chunk = wire.Chunk(_id(reply), "chat.completion.chunk", reply.created, reply.model, [choice], usage)
        return self._encode(chunk)


def _model(name: str, context: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "tugline",
        "context_length": context,
        "max_model_len": context,
    }


def _id(reply: Reply) -> str:
    return f"chatcmpl-{reply.id}"


def _message(said: Assistant) -> wire.OutMessage:
    message = wire.OutMessage("assistant", said.text or None)
    if said.reasoning:
        message.reasoning_content = said.reasoning
    if said.calls:
        message.tool_calls = [
            wire.OutCall(wire.OutFunction(c.arguments, c.name), id=c.id, type="function") for c in said.calls
        ]
    return message


def _deltas(said: Assistant) -> Iterator[wire.Delta]:
    yield wire.Delta(role="assistant", content="" if not said.calls else None)
    for piece in pieces(said.reasoning):
        yield wire.Delta(reasoning_content=piece)
    for piece in pieces(said.text):
        yield wire.Delta(content=piece)
    for index, call in enumerate(said.calls):
        opening = wire.OutFunction("", call.name)
        yield wire.Delta(tool_calls=[wire.OutCall(opening, index=index, id=call.id, type="function")])
        for piece in pieces(call.arguments):
            yield wire.Delta(tool_calls=[wire.OutCall(wire.OutFunction(piece), index=index)])


def _usage(reply: Reply) -> wire.OutUsage:
    usage = reply.usage
    return wire.OutUsage(
        usage.prompt,
        usage.completion,
        usage.prompt + usage.completion,
        wire.PromptDetails(usage.cached),
        wire.CompletionDetails(usage.reasoning),
    )
