"""Reading JSON and event streams with argument texts kept as they were spelled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from tugline.core.errors import EngineError

_T = TypeVar("_T")


def parse(data: bytes | str, kind: type[_T]) -> _T:
    """JSON of a shape. Raises EngineError."""
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        shown = data if isinstance(data, str) else data.decode("utf-8", "replace")
        raise EngineError(f"{err}: {shown[:200]!r}") from err


def events(data: bytes) -> Iterator[str]:
    """The `data` of each event of a stream."""
    lines: list[str] = []
    for line in data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"):
        if line.startswith("data:"):
            lines.append(line[5:].removeprefix(" "))
        elif not line and lines:
            yield "\n".join(lines)
            lines = []


def is_object(text: str) -> bool:
    """Whether arguments can stand in an API that has them as an object."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        return False


def text_of(raw: msgspec.Raw) -> str:
    """What a value was spelled like."""
    return bytes(raw).decode()
