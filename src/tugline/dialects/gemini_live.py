"""Gemini replies while they are sampled."""

from __future__ import annotations

from typing import Protocol

from tugline.core.items import Delta, Pending, Reply, ToolCall
from tugline.dialects import gemini_wire as wire
from tugline.dialects.said import Said
from tugline.dialects.sse import event, pieces


class Speller(Protocol):
    """The slice of the dialect that is needed."""

    def chunk(self, reply: Reply | Pending, part: wire.OutPart) -> bytes: ...
    def last(self, reply: Reply) -> bytes: ...
    def calls(self, calls: tuple[ToolCall, ...]) -> list[wire.OutPart]: ...


class GeminiLive:
    """Implements core LiveStream.

    The last character of what was said stays here until more comes: the reasoning itself is packed into the signature
    of the last text, or of the first call, and nobody knows before the end which one that is.
    """

    def __init__(self, dialect: Speller, pending: Pending) -> None:
        self._dialect = dialect
        self._pending = pending
        self._said = Said()
        self._signature = wire.live_signature(pending.id)
        self._kind = ""
        self._kept = ""

    def open(self, prompt: int) -> bytes:
        """Chunks need no opening."""
        return b""

    def delta(self, more: Delta) -> bytes:
        """Chunks of one part; nothing for the first character."""
        self._said.add(more)
        out = b""
        if more.kind != self._kind:
            out, self._kind, self._kept = self._flush(), more.kind, ""
        text = self._kept + more.text
        self._kept = text[-1:]
        return out + b"".join([self._chunk(self._part(piece)) for piece in pieces(text[:-1])])

    def beat(self) -> bytes:
        """A blank line."""
        return b"\n\n"

    def close(self, reply: Reply) -> tuple[bytes, bytes]:
        """What is left of the texts, calls; then finishReason and usage."""
        reasoning, text = self._said.rest(reply)
        kept = {"reasoning": reasoning, "text": text}
        kept[self._kind] = self._kept + kept[self._kind]
        parts = []
        for self._kind, left in kept.items():
            parts += [self._part(piece) for piece in pieces(left)]
        mark = len(parts) if reply.assistant.calls else len(parts) - 1
        parts += self._dialect.calls(reply.assistant.calls)
        for part in parts:
            part.thought_signature = self._signature
        parts[mark].thought_signature = wire.live_signature(self._pending.id, reply.assistant.reasoning)
        return b"".join([self._chunk(part) for part in parts]), event(self._dialect.last(reply))

    def _flush(self) -> bytes:
        return self._chunk(self._part(self._kept)) if self._kept else b""

    def _part(self, text: str) -> wire.OutPart:
        return wire.OutPart(text, thought=self._kind == "reasoning", thought_signature=self._signature)

    def _chunk(self, part: wire.OutPart) -> bytes:
        return event(self._dialect.chunk(self._pending, part))
