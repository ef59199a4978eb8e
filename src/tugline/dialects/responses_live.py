"""Responses while they are sampled."""

from __future__ import annotations

import msgspec

from tugline.core.items import Delta, Pending, Reply
from tugline.dialects import responses_stream as spell
from tugline.dialects import responses_wire as wire
from tugline.dialects.said import Said


class ResponsesLive:
    """Implements core LiveStream."""

    def __init__(self, pending: Pending, beats: int) -> None:
        self._pending = pending
        self._beats = beats
        self._events = spell.Events(beats + 1 if beats else 2)
        self._said = Said()
        self._index = -1
        self._item: spell.Spoken = wire.OutReasoning(f"rs{wire.MARK}{pending.id}", [])
        """The open item; its text is known at its end only."""

    def open(self, prompt: int) -> bytes:
        """response.created and response.in_progress, unless the first beat was that."""
        return b"" if self._beats else spell.beat(self._pending, 0)

    def delta(self, more: Delta) -> bytes:
        """An item begins with its first delta."""
        if more.kind == "text" and not self._said.begun("text"):
            self._end_reasoning()
            self._item = wire.OutMessage(f"msg{wire.MARK}{self._pending.id}", "in_progress", [])
        if not self._said.begun(more.kind):
            self._index += 1
            spell.begin(self._events, self._index, self._item)
        self._said.add(more)
        spell.say(self._events, self._index, self._item, more.text)
        return self._take()

    def beat(self) -> bytes:
        """A delta that says nothing: clients' idle timers count events, and comments are none."""
        spell.add_delta(self._events, self._index, self._item, "")
        return self._take()

    def close(self, reply: Reply) -> tuple[bytes, bytes]:
        """The rest of the open item, the items behind it; then the whole response."""
        reasoning, text = self._said.rest(reply)
        items, raws = spell.output_items(reply), spell.encoded_items(reply)
        item = items[self._index]
        if isinstance(item, wire.OutReasoning | wire.OutMessage):
            spell.say(self._events, self._index, item, text if self._said.begun("text") else reasoning)
            spell.end(self._events, self._index, item, raws[self._index])
        terminal = spell.finish(self._events, reply, self._index + 1)
        return self._take(), terminal

    def _end_reasoning(self) -> None:
        if self._said.begun("reasoning"):
            text = self._said.reasoning
            item = wire.OutReasoning(self._item.id, [wire.OutSummary(text)], wire.seal(text))
            spell.end(self._events, self._index, item, msgspec.Raw(msgspec.json.encode(item)))

    def _take(self) -> bytes:
        parts, self._events.parts = self._events.parts, []
        return b"".join(parts)
