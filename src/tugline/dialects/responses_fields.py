"""Objects of a request, read field by field: errors know their path, and what nobody reads is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tugline.core.errors import BadRequest
from tugline.dialects.wire import compact, decode

MAX_IGNORED = 64
"""Names listed of keys that have no effect; a hostile body may hold thousands."""

_NOTHING = (b"null", b"[]", b"{}", b'""', b"false")
_STRUCTURE = ("type", "id", "status")


class Decoders:
    """Compiled decoders of pieces. Immutable, shared by threads."""

    __slots__ = ("keys", "rows", "said", "text", "value")

    def __init__(self) -> None:
        self.keys = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self.rows = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
        self.said = msgspec.json.Decoder(str | list[dict[str, msgspec.Raw]] | None)
        self.text = msgspec.json.Decoder(str | None)
        self.value = msgspec.json.Decoder()


class Ignored:
    """Names of what has no effect, each once, in wire order."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        if len(self._names) < MAX_IGNORED:
            self._names[name[:100]] = None

    def names(self) -> tuple[str, ...]:
        return tuple(self._names)


class Fields:
    """One JSON object of the wire. `at` is its path in errors, `where` the path under which its keys are named."""

    __slots__ = ("_decoders", "_raw", "_used", "at", "where")

    def __init__(self, decoders: Decoders, raw: Mapping[str, msgspec.Raw], at: str, where: str) -> None:
        self._decoders = decoders
        self._raw = raw
        self._used = set(_STRUCTURE)
        self.at = at
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self._raw

    def raw(self, key: str) -> bytes:
        """JSON text of a value; `null` if absent."""
        self._used.add(key)
        return bytes(self._raw[key]) if key in self._raw else b"null"

    def text(self, key: str) -> str | None:
        """A string; None if absent, null or empty. Raises BadRequest for anything else."""
        self._used.add(key)
        raw = self._raw.get(key)
        if raw is None:
            return None
        try:  # the path is spelled only for an error: this runs for every field of a long conversation
            return self._decoders.text.decode(raw) or None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return decode(self._decoders.text, raw, f"{self.at}.{key}")

    def said(self, key: str) -> str | list[Fields]:
        """A string, or the objects of a list; "" if absent. Raises BadRequest."""
        self._used.add(key)
        if key not in self._raw:
            return ""
        at, where = f"{self.at}.{key}", f"{self.where}.{key}[]"
        value: str | list[dict[str, msgspec.Raw]] | None = decode(self._decoders.said, self._raw[key], at)
        if value is None or isinstance(value, str):
            return value or ""
        return [Fields(self._decoders, row, f"{at}[{i}]", where) for i, row in enumerate(value)]

    def need(self, key: str, what: str) -> str:
        """A string that may be empty but not missing. Raises BadRequest."""
        found = self.text(key)
        if found is None and self.raw(key) == b"null":
            raise BadRequest(f"{what} needs {key}", path=f"{self.at}.{key}")
        return found or ""

    def rows(self, key: str) -> Iterator[Fields]:
        """The objects of a list; none if absent. Raises BadRequest."""
        data = self.raw(key)
        rows: list[dict[str, msgspec.Raw]] = []
        if data != b"null":
            rows = decode(self._decoders.rows, data, f"{self.at}.{key}")
        for i, row in enumerate(rows):
            yield Fields(self._decoders, row, f"{self.at}.{key}[{i}]", f"{self.where}.{key}[]")

    def inner(self, key: str) -> Fields | None:
        """An object; None if absent. Raises BadRequest."""
        data = self.raw(key)
        if data == b"null":
            return None
        at = f"{self.at}.{key}"
        row: dict[str, msgspec.Raw] = decode(self._decoders.keys, data, at)
        return Fields(self._decoders, row, at, f"{self.where}.{key}")

    def json(self, key: str) -> str:
        """The value as JSON text without blanks, numbers as they were spelled; "" if absent."""
        data = self.raw(key)
        if data == b"null":
            return ""
        decode(self._decoders.value, data, f"{self.at}.{key}")
        return compact(data)

    def name_unused(self, ignored: Ignored) -> None:
        """Name the keys that nobody asked for and that say something."""
        for key, raw in self._raw.items():
            if key not in self._used and bytes(raw) not in _NOTHING:
                ignored.add(f"{self.where}.{key}")
        status = bytes(self._raw.get("status", b"null"))
        if status not in (b"null", b'"completed"'):
            ignored.add(f"{self.where}.status")
