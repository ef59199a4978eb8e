"""Google Gemini generateContent: POST /v1beta/models/{model}:generateContent, :streamGenerateContent, :countTokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from tugline.core.contracts import LiveStream, Route
from tugline.core.errors import BadRequest, ContextOverflow, Overloaded, TuglineError, Unsupported
from tugline.core.items import Assistant, Pending, Reply, Request, ToolCall
from tugline.dialects import gemini_wire as wire
from tugline.dialects.gemini_decode import ARRAY, assistant, to_request
from tugline.dialects.gemini_fields import Decoders
from tugline.dialects.gemini_live import GeminiLive
from tugline.dialects.gemini_turns import spelled
from tugline.dialects.sse import escape_separators, event, pieces
from tugline.dialects.wire import bearer, retry_after, sound

VERSIONS = ("/v1beta", "/v1", "/v1alpha", "")
"""Some clients are given a base URL that ends with the version, or none at all."""
REFUSED = ("embedContent", "batchEmbedContents", "batchGenerateContent", "asyncBatchEmbedContent", "predict")
STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def _routes() -> Iterator[Route]:
    for version in VERSIONS:
        models = f"{version}/models"
        yield Route("POST", f"{models}/{{model}}:streamGenerateContent", "generate", (("stream", "1"),))
        yield Route("POST", f"{models}/{{model}}:generateContent", "generate")
        yield Route("POST", f"{models}/{{model}}:countTokens", "count")
        yield Route("GET", models, "models")
        yield Route("GET", f"{models}/{{model}}", "model")
    for version in ("/v1beta", "/v1"):
        yield from (Route("POST", f"{version}/models/{{model}}:{action}", "refuse") for action in REFUSED)
    for path in ("/v1beta/cachedContents", "/v1beta/files", "/v1beta/interactions"):
        yield Route("POST", path, "refuse")
        yield Route("GET", path, "refuse")
    yield Route("POST", "/upload/v1beta/files", "refuse")


class GeminiDialect:
    """Implements core Dialect. Stateless."""

    name: str = "gemini"
    routes: tuple[Route, ...] = tuple(_routes())
    content_type_stream: str = "text/event-stream"

    def __init__(self) -> None:
        self._decoders = Decoders()
        self._encode = msgspec.json.Encoder().encode

    def claims(self, headers: Mapping[str, str]) -> bool:
        """Google's SDKs send both, whatever the key is."""
        return "x-goog-api-key" in headers or "x-goog-api-client" in headers

    def credential(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """`x-goog-api-key`, `?key=`, or a bearer token."""
        return headers.get("x-goog-api-key", "").strip() or query.get("key", "").strip() or bearer(headers)

    def decode(self, body: bytes, params: Mapping[str, str]) -> Request:
        """Raises BadRequest / Unsupported with the field's path, for any bytes whatever."""
        return to_request(self._decoders, body, params)

    def encode(self, reply: Reply) -> bytes:
        """One GenerateContentResponse, or the array of those that a stream would bring."""
        if reply.request.options.form == ARRAY:
            chunks, last = self._chunks(reply)
            return b"[" + b",\n".join([escape_separators(chunk) for chunk in (*chunks, last)]) + b"]"
        content = wire.OutContent(self._parts(reply))
        return escape_separators(self._encode(self._response(reply, content)))

    def keepalive(self, pending: Pending, n: int) -> bytes:
        """A blank line, which ends an event that has not begun. A comment would break both official SDKs, and a chunk
        without content makes their chat sessions forget the turn."""
        return b"\n\n"

    def stream(self, reply: Reply, beats: int = 0) -> tuple[list[bytes], bytes]:
        """GenerateContentResponse chunks of one part each; finishReason and usage stand in the terminal one alone."""
        chunks, last = self._chunks(reply)
        return [event(chunk) for chunk in chunks], event(last)

    def live(self, pending: Pending, beats: int = 0) -> LiveStream:
        """The same chunks while the reply is sampled."""
        return GeminiLive(self, pending)

    def echo(self, reply: Reply) -> Assistant:
        """Through the wire and back: what decode() gives for a verbatim echo."""
        return assistant(self._decoders, escape_separators(self._encode(wire.OutContent(self._parts(reply)))))

    def error(self, err: TuglineError) -> tuple[int, dict[str, str], bytes]:
        """{"error": {code, message, status, details}}, from which Google's clients take all they need to retry."""
        headers = {"content-type": "application/json; charset=UTF-8"}
        if isinstance(err, Overloaded):
            headers["retry-after"] = f"{retry_after(err)}"
        return err.status, headers, escape_separators(self._encode(_error(err)))

    def stream_error(self, err: TuglineError, pending: Pending, beats: int = 0) -> bytes:
        """An error chunk. Older JavaScript SDKs skip it, and stumble over what stands behind it: a stream that only
        ended would be taken for an empty answer."""
        return event(self._encode(_error(err))) + b": failed\n\n"

    def counted(self, tokens: int) -> bytes:
        """Reply to countTokens."""
        details = [wire.ModalityCount("TEXT", tokens)]
        return self._encode({"totalTokens": tokens, "promptTokensDetails": details})

    def models(self, model: str, context: int) -> bytes:
        """The one policy there is. Any model name asked for means it."""
        return self._encode({"models": [_model(model, context)]})

    def model(self, asked: str, context: int) -> bytes:
        """Any name is the policy's."""
        return self._encode(_model(asked, context))

    def refusal(self, path: str) -> TuglineError:
        """Embeddings, batches, caches and files."""
        action = path.rpartition(":")[2] if ":" in path else path.rpartition("/")[2]
        return Unsupported(f"{action[:60]} is not served: send the whole conversation to generateContent")

    def _chunks(self, reply: Reply) -> tuple[list[bytes], bytes]:
        """Chat sessions of the SDKs keep each chunk as a content of its own: all carry the signature that tells us
        that they are one turn. Parts of different kinds never share a chunk: some clients read only the first."""
        parts = [part for whole in self._parts(reply) for part in _split(whole)]
        if len(parts) > 1:
            signed = wire.signature(reply, sealed=False)
            for part in parts:
                part.thought_signature = part.thought_signature or signed
        return [self.chunk(reply, part) for part in parts], self.last(reply)

    def chunk(self, reply: Reply | Pending, part: wire.OutPart) -> bytes:
        """One chunk's data."""
        candidate = wire.OutCandidate(wire.OutContent((part,)), None, 0)
        return self._encode(wire.OutResponse((candidate,), None, reply.model, reply.id))

    def last(self, reply: Reply) -> bytes:
        """The terminal chunk's data."""
        end = wire.OutContent((wire.OutPart(""),))  # a content without parts makes a turn invalid in the SDKs
        return self._encode(self._response(reply, end))

    def calls(self, calls: Sequence[ToolCall]) -> list[wire.OutPart]:
        """Calls as parts, unsigned."""
        parts = []
        for call in calls:
            args = spelled(self._decoders, call.arguments)
            parts.append(wire.OutPart(function_call=wire.OutCall(call.name, UNSET if args is None else args, call.id)))
        return parts

    def _parts(self, reply: Reply) -> list[wire.OutPart]:
        """Reasoning, text, calls. The signature stands where the real API has it: on the first call, or on the text."""
        said = reply.assistant
        parts = [wire.OutPart(said.reasoning, thought=True)] if said.reasoning else []
        if said.text or not (parts or said.calls):
            parts.append(wire.OutPart(said.text or ""))
        mark = len(parts) if said.calls else len(parts) - 1
        parts += self.calls(said.calls)
        if said != Assistant():
            parts[mark].thought_signature = wire.signature(reply, sealed=True)
        return parts

    def _response(self, reply: Reply, content: wire.OutContent) -> wire.OutResponse:
        candidate = wire.OutCandidate(content, "MAX_TOKENS" if reply.finish == "length" else "STOP", 0)
        return wire.OutResponse((candidate,), wire.usage(reply), reply.model, reply.id)


def _split(part: wire.OutPart) -> Sequence[wire.OutPart]:
    """A long text in several parts; its signature stays with the last."""
    texts = list(pieces(part.text))
    if len(texts) < 2:
        return (part,)
    split = [wire.OutPart(text, thought=part.thought) for text in texts]
    split[-1].thought_signature = part.thought_signature
    return split


def _model(name: str, context: int) -> dict[str, Any]:
    bare = name.removeprefix("models/")
    return {
        "name": f"models/{bare}",
        "baseModelId": bare,
        "version": "1",
        "displayName": bare,
        "description": "The policy that this gateway serves.",
        "inputTokenLimit": context,
        "outputTokenLimit": context,
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }


def _error(err: TuglineError) -> wire.OutErrorReply:
    message = err.message
    if isinstance(err, ContextOverflow):
        message = (
            f"The input token count ({err.prompt_tokens}) exceeds the maximum number of tokens allowed ({err.limit})."
        )
    details: list[dict[str, object]] = [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": err.detail_code.upper(),
            "domain": "tugline",
        }
    ]
    if isinstance(err, BadRequest) and err.path:
        violation = {"field": sound(err.path), "description": sound(message)}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    if isinstance(err, Overloaded):
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{retry_after(err)}s"})
    status = STATUS.get(err.status, "INTERNAL")
    return wire.OutErrorReply(wire.OutError(err.status, sound(message), status, details))
