"""What every dialect needs to decode hostile bytes: one door, errors with a path, no crash."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from tugline.core.errors import BadRequest

T = TypeVar("T")

_PATH = re.compile(r" - at `\$?\.?(.*)`$", re.DOTALL)


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a body. Raises BadRequest whose path is that of the wrong field, e.g. `messages[3].content`."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as err:
        text = str(err)
        match = _PATH.search(text)
        path = match.group(1).replace("[...]", "[]") if match else ""
        raise BadRequest(_PATH.sub("", text), path=path) from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise BadRequest(f"the body is not valid JSON: {err}") from err
    except RecursionError as err:
        raise BadRequest("the body nests too deeply") from err


def raw_text(raw: msgspec.Raw) -> str:
    """The exact JSON text of an undecoded value."""
    return bytes(raw).decode("utf-8")


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no blanks: equal values give equal text."""
    return msgspec.json.encode(value, order="deterministic").decode()
