"""Anthropic Messages while they are sampled."""

from __future__ import annotations

from tugline.core.items import Delta, Pending, Reply
from tugline.dialects import anthropic_reply as spell
from tugline.dialects import anthropic_wire as wire
from tugline.dialects.anthropic_blocks import signature
from tugline.dialects.said import Said
from tugline.dialects.sse import pieces


class AnthropicLive:
    """Implements core LiveStream."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._said = Said()
        self._index = -1
        """Of the open block."""

    def open(self, prompt: int) -> bytes:
        """message_start. What of the prompt came from a cache is known at the end only: message_delta tells."""
        pending, usage = self._pending, wire.OutUsage(prompt, 0, 1, wire.OutputDetails(0))
        head = wire.OutMessage(f"msg_{pending.id}", "message", "assistant", pending.model, [], None, None, usage)
        return spell.spelled(wire.MessageStart(head)) + spell.PING

    def delta(self, more: Delta) -> bytes:
        """A block begins with its first delta."""
        before = b""
        if more.kind == "reasoning" and self._index < 0:
            before = self._begin(wire.OutThinking("", ""))
        elif more.kind == "text" and not self._said.begun("text"):
            before = self._end_thinking() + self._begin(wire.OutText(""))
        self._said.add(more)
        return before + self._more(more.kind, more.text)

    def beat(self) -> bytes:
        """A ping."""
        return spell.PING

    def close(self, reply: Reply) -> tuple[bytes, bytes]:
        """The rest of the open block, the blocks behind it, message_delta; then message_stop."""
        reasoning, text = self._said.rest(reply)
        whole = spell.message(reply)
        parts = []
        if self._said.begun("text"):
            parts += [self._more("text", piece) for piece in pieces(text)]
            parts.append(spell.spelled(wire.BlockStop(self._index)))
        elif self._said.begun("reasoning"):
            for piece in pieces(reasoning):
                parts.append(self._more("reasoning", piece))
                self._said.add(Delta("reasoning", piece))
            parts.append(self._end_thinking())
        for index in range(self._index + 1, len(whole.content)):
            parts += spell.block_events(index, whole.content[index])
        parts.append(spell.stopped(reply, whole.usage))
        return b"".join(parts), spell.STOP

    def _begin(self, block: wire.OutBlock) -> bytes:
        self._index += 1
        return spell.spelled(wire.BlockStart(self._index, block))

    def _more(self, kind: str, text: str) -> bytes:
        delta = wire.ThinkingDelta(text) if kind == "reasoning" else wire.TextDelta(text)
        return spell.spelled(wire.BlockDelta(self._index, delta))

    def _end_thinking(self) -> bytes:
        if not self._said.begun("reasoning"):
            return b""
        signed = wire.BlockDelta(self._index, wire.SignatureDelta(signature(self._said.reasoning)))
        return spell.spelled(signed) + spell.spelled(wire.BlockStop(self._index))
