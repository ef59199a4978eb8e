"""Provider APIs: bytes on the wire to and from our own values. Pure; one file per API."""

from tugline.core.contracts import Dialect
from tugline.dialects.chat import ChatDialect

DIALECTS: tuple[Dialect, ...] = (ChatDialect(),)
"""Every dialect that a gateway serves. The first gives unknown paths their error shape."""

__all__ = ["DIALECTS", "ChatDialect"]
