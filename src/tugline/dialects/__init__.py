"""Provider APIs: bytes on the wire to and from our own values. Pure; the files of an API begin with its name."""

from tugline.core.contracts import Dialect
from tugline.core.errors import NotFound
from tugline.dialects.anthropic import AnthropicDialect
from tugline.dialects.chat import ChatDialect
from tugline.dialects.gemini import GeminiDialect
from tugline.dialects.responses import ResponsesDialect

DIALECTS: tuple[Dialect, ...] = (ChatDialect(), AnthropicDialect(), ResponsesDialect(), GeminiDialect())
"""Every dialect that a gateway serves. The first gives unknown paths their error shape."""


def dialect_named(name: str) -> Dialect:
    """The dialect of that name. Raises NotFound, naming those there are."""
    for dialect in DIALECTS:
        if dialect.name == name:
            return dialect
    raise NotFound(f"no dialect {name!r}; there are: {', '.join(d.name for d in DIALECTS)}")


__all__ = ["DIALECTS", "AnthropicDialect", "ChatDialect", "GeminiDialect", "ResponsesDialect", "dialect_named"]
