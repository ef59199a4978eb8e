"""Anthropic Messages: POST /v1/messages, its token count, GET /v1/models."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tugline.core.contracts import LiveStream, Route
from tugline.core.errors import NotFound, TuglineError
from tugline.core.items import Assistant, Pending, Reply, Request
from tugline.dialects import anthropic_reply as spell
from tugline.dialects import anthropic_wire as wire
from tugline.dialects.anthropic_blocks import blocks
from tugline.dialects.anthropic_decode import Decoders, assistant, to_request
from tugline.dialects.anthropic_live import AnthropicLive
from tugline.dialects.wire import bearer, decode, error_headers

COUNT = (("call", "count"),)
REFUSED: Mapping[str, str] = {
    "/v1/complete": "text completions are not served; use POST /v1/messages",
    "/v1/messages/batches": "batches are not served; send each request to POST /v1/messages",
    "/v1/files": "files are not served; put their content into the messages",
    "/v1/skills": "skills are not served; put their text into the messages",
}
"""Known paths without a meaning here, and what to do instead."""


class AnthropicDialect:
    """Implements core Dialect. Stateless."""

    name: str = "anthropic"
    routes: tuple[Route, ...] = (
        Route("POST", "/v1/messages", "generate"),
        Route("POST", "/messages", "generate"),
        Route("POST", "/v1/messages/count_tokens", "count", COUNT),
        Route("POST", "/messages/count_tokens", "count", COUNT),
        Route("GET", "/v1/models", "models"),
        Route("GET", "/models", "models"),
        Route("GET", "/v1/models/{model}", "model"),
        Route("GET", "/models/{model}", "model"),
        Route("HEAD", "/api/hello", "probe"),
        *(Route(method, path, "refuse") for path in REFUSED for method in ("POST", "GET")),
        *(Route("GET", f"{path}/{{model}}", "refuse") for path in REFUSED),
    )
    content_type_stream: str = "text/event-stream; charset=utf-8"

    def __init__(self) -> None:
        self._decoders = Decoders()
        self._encode = msgspec.json.Encoder().encode

    def claims(self, headers: Mapping[str, str]) -> bool:
        """By the header that every client of this API must send."""
        return "anthropic-version" in headers

    def credential(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """`x-api-key`, or the `Authorization: Bearer` of clients that have a token instead."""
        return headers.get("x-api-key", "").strip() or bearer(headers)

    def decode(self, body: bytes, params: Mapping[str, str]) -> Request:
        """Raises BadRequest / Unsupported with the field's path, for any bytes whatever."""
        return to_request(self._decoders, body, params)

    def encode(self, reply: Reply) -> bytes:
        """The reply as one message."""
        return self._encode(spell.message(reply))

    def keepalive(self, pending: Pending, n: int) -> bytes:
        """A ping, as the API itself sends. The official clients drop it also in front of message_start, which waits
        until it can tell the true length of the prompt."""
        return spell.PING

    def stream(self, reply: Reply, beats: int = 0) -> tuple[list[bytes], bytes]:
        """message_start to message_delta; the terminal part is message_stop."""
        return list(spell.events(reply)), spell.STOP

    def live(self, pending: Pending, beats: int = 0) -> LiveStream:
        """The same events while the reply is sampled."""
        return AnthropicLive(pending)

    def echo(self, reply: Reply) -> Assistant:
        """Through the wire and back: what decode() gives for a verbatim echo."""
        turn = self._encode(wire.OutTurn("assistant", blocks(reply.assistant)))
        return assistant(self._decoders, decode(self._decoders.turn, turn))

    def error(self, err: TuglineError) -> tuple[int, dict[str, str], bytes]:
        """{"type": "error", "error": {type, message}} with the status that clients of this API act on."""
        return err.status, error_headers(err), self._encode(spell.error_body(err))

    def stream_error(self, err: TuglineError, pending: Pending, beats: int = 0) -> bytes:
        """An error event; no message_stop follows."""
        return spell.spelled(spell.error_body(err))

    def counted(self, tokens: int) -> bytes:
        """The length of the prompt that the same body would be sampled from."""
        return self._encode(wire.TokenCount(tokens))

    def models(self, model: str, context: int) -> bytes:
        """One page with the one policy there is. Any model name asked for means it."""
        return self._encode(wire.ModelList([_model(model, context)], False, model, model))

    def model(self, asked: str, context: int) -> bytes:
        """Any name is the policy's."""
        return self._encode(_model(asked, context))

    def refusal(self, path: str) -> TuglineError:
        """Why a known path is not served."""
        why = next((REFUSED[known] for known in REFUSED if path.startswith(known)), f"no route {path[:200]}")
        return NotFound(why)


def _model(name: str, context: int) -> wire.ModelInfo:
    return wire.ModelInfo(name, name, context, context)
