"""Reads objects of the Gemini wire by name: camelCase or snake_case, with the path of what is wrong or not used."""

from __future__ import annotations

from math import isfinite
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from tugline.core.errors import BadRequest
from tugline.dialects.ignored import Names
from tugline.dialects.wire import decode

T = TypeVar("T")


class Decoders:
    """Compiled decoders. Immutable, shared by threads."""

    __slots__ = ("flag", "number", "row", "rows", "text", "texts", "value")

    def __init__(self) -> None:
        self.row = msgspec.json.Decoder(dict[str, Raw])
        self.rows = msgspec.json.Decoder(list[dict[str, Raw]])
        self.text = msgspec.json.Decoder(str)
        self.texts = msgspec.json.Decoder(list[str])
        self.flag = msgspec.json.Decoder(bool)
        self.number = msgspec.json.Decoder(int | float | str)
        self.value = msgspec.json.Decoder[Any]()


class Fields:
    """One object. What is read is taken out; `rest` names what is left. null is the same as absent.

    `path` is that of this very object, for errors; `where` the same without indexes, for names.
    """

    __slots__ = ("_decoders", "_names", "_row", "path", "where")

    def __init__(self, decoders: Decoders, row: dict[str, Raw], names: Names, path: str = "", where: str = "") -> None:
        self._row = row
        self._decoders = decoders
        self._names = names
        self.path = path
        self.where = where

    def at(self, name: str) -> str:
        """Path of one of its fields."""
        return f"{self.path}.{name}" if self.path else name

    def raw(self, name: str) -> Raw | None:
        """JSON text of a field, by its camelCase name. If both spellings are there, snake_case is left over."""
        if not self._row:
            return None
        raw = self._row.pop(name, None)
        if raw is None and (snake := SNAKE.get(name)):
            raw = self._row.pop(snake, None)
        return None if raw is None or _null(raw) else raw

    def get(self, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
        """A field's value. Raises BadRequest."""
        raw = self.raw(name)
        return None if raw is None else decode(decoder, raw, self.at(name))

    def text(self, name: str) -> str | None:
        """A string."""
        return self.get(name, self._decoders.text)

    def flag(self, name: str) -> bool:
        """A truth value; absent is false."""
        return self.get(name, self._decoders.flag) is True

    def texts(self, name: str) -> list[str]:
        """A list of strings, or one string."""
        raw = self.raw(name)
        if raw is None:
            return []
        if first(raw) == b'"':
            return [decode(self._decoders.text, raw, self.at(name))]
        return decode(self._decoders.texts, raw, self.at(name))

    def number(self, name: str) -> float | None:
        """A finite number, also as text, which protocol buffers write for some."""
        value = self.get(name, self._decoders.number)
        return None if value is None else self._float(name, value)

    def integer(self, name: str) -> int | None:
        """A whole number, however it is spelled."""
        value = self.get(name, self._decoders.number)
        if value is None or isinstance(value, int):
            return value
        number = self._float(name, value)
        if not number.is_integer():
            raise BadRequest("expected a whole number", path=self.at(name))
        return int(number)

    def _float(self, name: str, value: float | str) -> float:
        try:
            number = float(value)
        except (ValueError, OverflowError) as err:
            raise BadRequest("expected a number", path=self.at(name)) from err
        if not isfinite(number):
            raise BadRequest("expected a finite number", path=self.at(name))
        return number

    def object(self, name: str) -> Fields | None:
        """An object inside this one."""
        raw = self.raw(name)
        return None if raw is None else self.under(raw, name)

    def under(self, raw: Raw, name: str) -> Fields:
        """An object that `raw(name)` gave."""
        path = self.at(name)
        return Fields(self._decoders, decode(self._decoders.row, raw, path), self._names, path, self._below(name))

    def objects(self, name: str) -> list[Fields]:
        """A list of objects. One object alone is a list of one, as the real API takes it."""
        raw = self.raw(name)
        if raw is None:
            return []
        path, where = self.at(name), self._below(name)
        if first(raw) == b"{":
            return [Fields(self._decoders, decode(self._decoders.row, raw, path), self._names, path, where)]
        rows, where = decode(self._decoders.rows, raw, path), f"{where}[]"
        return [Fields(self._decoders, row, self._names, f"{path}[{i}]", where) for i, row in enumerate(rows)]

    def drop(self, what: str) -> None:
        """Name something of this object that has no effect."""
        self._names.add(self.where, what)

    def rest(self) -> None:
        """Name every field that nobody has asked for."""
        if not self._row:
            return
        joint = "." if self.where else ""
        for name, raw in self._row.items():
            if not _null(raw):
                self._names.add(f"{self.where}{joint}", name)

    def left(self) -> list[str]:
        """Names of the fields that nobody has asked for."""
        return [name for name, raw in self._row.items() if not _null(raw)]

    def _below(self, name: str) -> str:
        return f"{self.where}.{name}" if self.where else name


def first(raw: Raw) -> bytes:
    """The first byte of JSON text, which tells its kind. Copies nothing."""
    return bytes(memoryview(raw)[:1])


def _null(raw: Raw) -> bool:
    return len(memoryview(raw)) == 4 and bytes(raw) == b"null"


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


SNAKE = {
    name: _snake(name)
    for name in (
        *("systemInstruction", "generationConfig", "toolConfig", "cachedContent", "generateContentRequest"),
        *("functionDeclarations", "parametersJsonSchema", "functionCallingConfig", "allowedFunctionNames"),
        *("maxOutputTokens", "topP", "stopSequences", "candidateCount", "continuationToken"),
        *("responseMimeType", "responseSchema", "responseJsonSchema", "responseFormat"),
        *("functionCall", "functionResponse", "inlineData", "fileData", "mimeType", "fileUri"),
        *("executableCode", "codeExecutionResult", "thoughtSignature"),
    )
}
"""The other spelling of fields with more than one word."""
