"""Errors as OpenAI's APIs spell them. Chat and Responses share them."""

from __future__ import annotations

import msgspec

from tugline.core.errors import (
    BadRequest,
    ContextOverflow,
    Forbidden,
    NotFound,
    Overloaded,
    TooLarge,
    TuglineError,
    Unauthorized,
)
from tugline.dialects.sse import escape_separators
from tugline.dialects.wire import error_headers, sound


class ErrorBody(msgspec.Struct, gc=False):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(msgspec.Struct, gc=False):
    error: ErrorBody


def error_reply(err: TuglineError) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, {"error": {message, type, param, code}}) that OpenAI clients act on."""
    return err.status, error_headers(err), escape_separators(msgspec.json.encode(ErrorReply(error_body(err))))


def error_body(err: TuglineError) -> ErrorBody:
    """What stands under `error`. A context overflow has the real API's words: clients look for them."""
    message, kind, code = err.message, "server_error", err.detail_code
    if isinstance(err, ContextOverflow):
        kind = "invalid_request_error"
        message = (
            f"This model's maximum context length is {err.limit} tokens. "
            f"However, your messages resulted in {err.prompt_tokens} tokens. Please reduce the length of the messages."
        )
    elif isinstance(err, Unauthorized):
        kind, code = "authentication_error", "invalid_api_key"
    elif isinstance(err, Forbidden):
        kind = "permission_error"
    elif isinstance(err, Overloaded):
        kind, code = "rate_limit_error", "rate_limit_exceeded"
    elif isinstance(err, BadRequest | NotFound | TooLarge):
        kind = "invalid_request_error"
    param = err.path or None if isinstance(err, BadRequest) else None
    return ErrorBody(sound(message), kind, param, code)
