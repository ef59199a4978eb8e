"""What arrives on a connection, and reading it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tugline.core.contracts import Dialect
from tugline.core.errors import BadRequest
from tugline.core.items import Request
from tugline.dialects.wire import HALF_SURROGATE, whole_characters


@dataclass(frozen=True, slots=True)
class Incoming:
    """What arrived on a connection, before it is read."""

    dialect: Dialect
    path: str
    params: dict[str, str]
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


def decoded(incoming: Incoming) -> Request:
    """The request. Half surrogates, which cut strings of JavaScript programs end with, become U+FFFD and are named."""
    try:
        return incoming.dialect.decode(incoming.body, incoming.params)
    except BadRequest as err:
        if err.detail_code != HALF_SURROGATE:
            raise
        mended = whole_characters(incoming.body)
        if mended == incoming.body:
            raise
        request = incoming.dialect.decode(mended, incoming.params)
        return replace(request, ignored=(*request.ignored, HALF_SURROGATE))
