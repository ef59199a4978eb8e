"""Names of everything in an Anthropic request that has no effect here, by wire path."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Raw

from tugline.core.errors import BadRequest
from tugline.dialects import anthropic_wire as wire
from tugline.dialects.ignored import Names
from tugline.dialects.wire import decode

TEXT_KEYS = frozenset({"type", "text"})
BLOCK_KEYS: Mapping[str, frozenset[str]] = {
    "text": TEXT_KEYS,
    "thinking": frozenset({"type", "thinking", "signature"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error"}),
    "image": frozenset({"type", "source"}),
    "document": frozenset({"type", "source", "title", "context"}),
    "search_result": frozenset({"type", "source", "title", "content"}),
    "tool_reference": frozenset({"type", "tool_name"}),
    "compaction": frozenset({"type", "content"}),
}
"""Keys that have an effect, by type of block. A block of another type is named whole where it is read."""

MESSAGE_KEYS = frozenset(wire.Message.__struct_fields__)
Row = dict[str, Raw]


class BlockNames(Names):
    """Names found by several passes over one body."""

    __slots__ = ()

    def keys(self, where: str, row: Row, used: Collection[str]) -> None:
        """Add the keys of `row` that are not used and not null."""
        for key, raw in row.items():
            if key not in used and bytes(raw) != b"null":
                self.add(where, key)

    def all(self) -> tuple[str, ...]:
        """In a fixed order, whatever the order of keys was."""
        return tuple(sorted(super().all()))


class KeyReader:
    """Names unused keys at every level that has an effect. For bodies that have been decoded: their shape is known."""

    __slots__ = ("_row", "_rows")

    def __init__(self) -> None:
        self._row = msgspec.json.Decoder(Row)
        self._rows = msgspec.json.Decoder(list[Row])

    def read(self, data: bytes, names: BlockNames) -> None:
        """One pass over the body's structure; values without effect are skipped, not read."""
        body = decode(self._row, data)
        names.keys("", body, wire.Body.__struct_fields__)
        for row in decode(self._rows, body["messages"]):
            names.keys("messages[].", row, MESSAGE_KEYS)
            self._blocks("messages[].content[].", row.get("content"), names)
        self._blocks("system[].", body.get("system"), names)
        for row in self._list(body.get("tools")):
            if bytes(row.get("type", wire.ABSENT)) in (b"null", b'"custom"'):
                names.keys("tools[].", row, wire.Tool.__struct_fields__)
        self._object("tool_choice.", body.get("tool_choice"), wire.ToolChoice.__struct_fields__, names)
        self._object("output_config.", body.get("output_config"), wire.OutputConfig.__struct_fields__, names)

    def _object(self, where: str, raw: Raw | None, used: Collection[str], names: BlockNames) -> None:
        if raw is not None and bytes(raw) != b"null":
            names.keys(where, decode(self._row, raw), used)

    def _blocks(self, where: str, raw: Raw | None, names: BlockNames) -> None:
        for row in self._list(raw):
            kind = bytes(row["type"]).decode("utf-8", "replace").strip('"')
            used = BLOCK_KEYS.get(kind)
            if used is None:
                continue
            names.keys(where, row, used)
            if kind == "tool_result":
                self._blocks(f"{where}content[].", row.get("content"), names)

    def _list(self, raw: Raw | None) -> list[Row]:
        if raw is None or not bytes(raw).startswith(b"["):
            return []
        try:
            return decode(self._rows, raw)
        except BadRequest:
            return []  # content of a block that is dropped whole may have any shape
