"""OpenAI Responses: POST /v1/responses, POST /v1/responses/input_tokens."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tugline.core.contracts import LiveStream, Route
from tugline.core.errors import NotFound, TuglineError
from tugline.core.items import Assistant, Pending, Reply, Request
from tugline.dialects import responses_stream
from tugline.dialects.chat import ChatDialect
from tugline.dialects.openai_errors import error_reply
from tugline.dialects.responses_decode import COUNT, ResponsesDecoders, echoed, to_request
from tugline.dialects.responses_live import ResponsesLive
from tugline.dialects.sse import escape_separators

_REFUSED = (
    ("POST", "/responses/compact"),
    ("GET", "/responses/{model}"),
    ("DELETE", "/responses/{model}"),
    ("POST", "/responses/{model}/cancel"),
    ("GET", "/responses/{model}/input_items"),
    ("POST", "/conversations"),
    ("GET", "/conversations/{model}"),
    ("POST", "/conversations/{model}"),
    ("DELETE", "/conversations/{model}"),
)


def _routes() -> tuple[Route, ...]:
    served = [
        Route("POST", "/responses", "generate"),
        Route("POST", "/responses/input_tokens", "count", ((COUNT, "yes"),)),
        *[Route(method, path, "refuse") for method, path in _REFUSED],
    ]
    return tuple([Route(r.method, prefix + r.path, r.kind, r.params) for prefix in ("/v1", "") for r in served])


class ResponsesDialect:
    """Implements core Dialect. Stateless."""

    name: str = "responses"
    routes: tuple[Route, ...] = _routes()
    content_type_stream: str = "text/event-stream; charset=utf-8"

    def __init__(self) -> None:
        self._chat = ChatDialect()
        self._decoders = ResponsesDecoders()
        self._encode = msgspec.json.Encoder().encode

    def claims(self, headers: Mapping[str, str]) -> bool:
        """Never: the paths that this API shares are Chat's."""
        return False

    def credential(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """As with Chat: one key serves both."""
        return self._chat.credential(headers, query)

    def decode(self, body: bytes, params: Mapping[str, str]) -> Request:
        """Raises BadRequest / Unsupported with the field's path, for any bytes whatever."""
        return to_request(self._decoders, body, params)

    def encode(self, reply: Reply) -> bytes:
        """The reply as one response object."""
        items = responses_stream.encoded_items(reply)
        return escape_separators(self._encode(responses_stream.whole(reply, items)))

    def keepalive(self, pending: Pending, n: int) -> bytes:
        """response.created and response.in_progress; later beats are response.in_progress again."""
        return responses_stream.beat(pending, n)

    def stream(self, reply: Reply, beats: int = 0) -> tuple[list[bytes], bytes]:
        """The API's events; the terminal part is response.completed or response.incomplete."""
        return responses_stream.stream(reply, beats)

    def live(self, pending: Pending, beats: int = 0) -> LiveStream:
        """The same events while the reply is sampled."""
        return ResponsesLive(pending, beats)

    def echo(self, reply: Reply) -> Assistant:
        """Through the wire and back: what decode() gives for a verbatim echo."""
        return echoed(self._decoders, self._encode(responses_stream.output_items(reply)))

    def error(self, err: TuglineError) -> tuple[int, dict[str, str], bytes]:
        """{"error": {message, type, param, code}} with the status that OpenAI clients act on."""
        return error_reply(err)

    def stream_error(self, err: TuglineError, pending: Pending, beats: int = 0) -> bytes:
        """A response.failed event, behind response.created if no beat has left."""
        return responses_stream.failed(err, pending, beats)

    def counted(self, tokens: int) -> bytes:
        """What responses.input_tokens.count reads."""
        return self._encode({"object": "response.input_tokens", "input_tokens": tokens})

    def models(self, model: str, context: int) -> bytes:
        """The one policy there is. No route of this API leads here: the list is Chat's."""
        return self._chat.models(model, context)

    def model(self, asked: str, context: int) -> bytes:
        """Any name is the policy's."""
        return self._chat.model(asked, context)

    def refusal(self, path: str) -> TuglineError:
        """Replies are neither stored for retrieval nor compacted."""
        if path.endswith("/compact"):
            return NotFound("conversations are not compacted here; ask the model for a summary in a message")
        if "/conversations" in path:
            return NotFound("conversations are not stored here; use previous_response_id or send the items")
        return NotFound("replies cannot be fetched, cancelled or deleted; use previous_response_id to go on from one")
