"""OpenAI Chat Completions: POST /v1/chat/completions, GET /v1/models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tugline.core.contracts import LiveStream, Route
from tugline.core.errors import NotFound, TuglineError
from tugline.core.items import Assistant, Delta, Pending, Reply, Request, ToolCall
from tugline.dialects import chat_wire as wire
from tugline.dialects.chat_decode import Decoders, assistant, to_request
from tugline.dialects.openai_errors import ErrorReply, error_body, error_reply
from tugline.dialects.said import Said
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
        usage = None if reply.request.options.include_usage else UNSET
        chunks = [self.chunk(reply, delta, None, usage) for delta in _deltas(reply.assistant)]
        return [event(chunk) for chunk in (*chunks, *self.end(reply))], b"data: [DONE]\n\n"

    def end(self, reply: Reply) -> list[bytes]:
        """Chunks behind all that is said."""
        usage = reply.request.options.include_usage
        chunks = [self.chunk(reply, wire.Delta(), reply.finish, None if usage else UNSET)]
        if usage:
            last = wire.Chunk(_id(reply), "chat.completion.chunk", reply.created, reply.model, [], _usage(reply))
            chunks.append(self._encode(last))
        return chunks

    def live(self, pending: Pending, beats: int = 0) -> LiveStream:
        """The same chunks while the reply is sampled."""
        return _Live(self, pending)

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

    def chunk(self, reply: Reply | Pending, delta: wire.Delta, finish: str | None, usage: UnsetType | None) -> bytes:
        """One chunk's data."""
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


class _Live:
    """Implements core LiveStream."""

    def __init__(self, dialect: ChatDialect, pending: Pending) -> None:
        self._dialect = dialect
        self._pending = pending
        self._usage = None if pending.request.options.include_usage else UNSET
        self._said = Said()

    def open(self, prompt: int) -> bytes:
        """The role."""
        return self._events(wire.Delta(role="assistant"))

    def delta(self, more: Delta) -> bytes:
        """One chunk."""
        self._said.add(more)
        reasoning = more.kind == "reasoning"
        return self._events(wire.Delta(reasoning_content=more.text) if reasoning else wire.Delta(content=more.text))

    def beat(self) -> bytes:
        """A comment."""
        return self._dialect.keepalive(self._pending, 0)

    def close(self, reply: Reply) -> tuple[bytes, bytes]:
        """What is left of the texts, calls, finish, usage."""
        reasoning, text = self._said.rest(reply)
        deltas = [wire.Delta(reasoning_content=piece) for piece in pieces(reasoning)]
        deltas += [wire.Delta(content=piece) for piece in pieces(text)]
        deltas += _call_deltas(reply.assistant.calls)
        if not (reply.assistant.text or reply.assistant.calls):
            deltas.append(wire.Delta(content=""))  # content is null only beside calls
        ends = b"".join([event(chunk) for chunk in self._dialect.end(reply)])
        return self._events(*deltas) + ends, b"data: [DONE]\n\n"

    def _events(self, *deltas: wire.Delta) -> bytes:
        return b"".join([event(self._dialect.chunk(self._pending, delta, None, self._usage)) for delta in deltas])


def _id(reply: Reply | Pending) -> str:
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
    yield from _call_deltas(said.calls)


def _call_deltas(calls: Sequence[ToolCall]) -> Iterator[wire.Delta]:
    for index, call in enumerate(calls):
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
