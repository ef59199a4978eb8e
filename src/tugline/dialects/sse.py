"""Server-sent events."""

from __future__ import annotations

from collections.abc import Iterator

DELTA_CHARS = 32 * 1024
"""Longer texts leave in several deltas: some clients limit the length of one event."""


def pieces(text: str | None) -> Iterator[str]:
    """The text in deltas of at most DELTA_CHARS; nothing for no text."""
    for start in range(0, len(text or ""), DELTA_CHARS):
        yield (text or "")[start : start + DELTA_CHARS]


def event(data: bytes) -> bytes:
    """One `data:` event of JSON text."""
    return b"data: " + escape_separators(data) + b"\n\n"


def escape_separators(data: bytes) -> bytes:
    """Escape the line separators that JSON allows raw inside strings: U+0085, U+2028, U+2029.

    Some clients split event lines on them.
    """
    if b"\xc2\x85" in data:
        data = data.replace(b"\xc2\x85", b"\\u0085")
    if b"\xe2\x80" in data:
        data = data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")
    return data
