"""Server-sent events."""

from __future__ import annotations


def event(data: bytes) -> bytes:
    """One `data:` event. U+2028 and U+2029 are escaped: some clients split lines on them."""
    return b"data: " + escape_separators(data) + b"\n\n"


def escape_separators(data: bytes) -> bytes:
    """Escape the two line separators that JSON allows raw inside strings."""
    if b"\xe2\x80" not in data:
        return data
    return data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
