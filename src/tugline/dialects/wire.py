"""What every dialect needs to decode hostile bytes: one door, errors with a path, no crash."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, TypeVar

import msgspec

from tugline.core.errors import BadRequest, EngineError, Overloaded, TuglineError
from tugline.core.items import UserMedia

T = TypeVar("T")

MAX_INTEGER = 2**53
"""Beyond it a JavaScript client has already lost digits."""
HALF_SURROGATE = "half_surrogate"
"""Code of a BadRequest whose cause may be half of a surrogate pair: `whole_characters` mends that."""

_PATH = re.compile(r" - at `\$?\.?(.*)`$", re.DOTALL)
_ESCAPE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.", re.DOTALL)
"""One escape of JSON text; a pair of surrogates is one. Found in order, so that an escaped backslash hides nothing."""
_HALVES = b"89abcdefABCDEF"
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def decode(decoder: msgspec.json.Decoder[T], body: bytes | msgspec.Raw, at: str = "") -> T:
    """Decode a body or a part of it. Raises BadRequest whose path is that of the wrong field.

    `at` is the path of the part itself, e.g. `tools[0]`.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as err:
        raise invalid(err, at) from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        half = _SURROGATE.search(bytes(body)) is not None
        hint = " (a string may hold half of a surrogate pair, which no encoding can carry)" if half else ""
        raise BadRequest(f"not valid JSON: {err}{hint}", path=at, code=HALF_SURROGATE if half else None) from err
    except RecursionError as err:
        raise BadRequest("the body nests too deeply", path=at) from err


def whole_characters(body: bytes) -> bytes:
    r"""JSON with every half of a surrogate pair as U+FFFD. Programs in JavaScript cut strings in the middle of a
    character and write the half as an escape, such as `\ud83d`, which is JSON to them and no text to anybody."""
    return _ESCAPE.sub(_whole, body)


def _whole(found: re.Match[bytes]) -> bytes:
    escape = found.group()
    return escape if len(escape) != 6 or escape[2:3] not in b"dD" or escape[3:4] not in _HALVES else b"\\ufffd"


def invalid(err: msgspec.ValidationError, at: str = "") -> BadRequest:
    """The error with the wire path that msgspec names: `$.messages[3].content` becomes `messages[3].content`."""
    text = str(err)
    match = _PATH.search(text)
    path = match.group(1).replace("[...]", "[]") if match else ""
    joint = "." if at and path and not path.startswith("[") else ""
    return BadRequest(_PATH.sub("", text), path=f"{at}{joint}{path}")


def compact(raw: bytes) -> str:
    """JSON text without blanks between its tokens; numbers and escapes stay as they are spelled."""
    return msgspec.json.format(raw, indent=-1).decode("utf-8")


def canonical_json(value: Any, path: str) -> str:
    """JSON with sorted keys and no blanks: equal values give equal text. Raises BadRequest naming `path`."""
    try:
        return msgspec.json.encode(value, order="deterministic").decode()
    except (OverflowError, RecursionError, ValueError) as err:
        raise BadRequest(f"cannot be written as JSON: {err}", path=path) from err


def bearer(headers: Mapping[str, str]) -> str | None:
    """The key of `Authorization: Bearer KEY`. Header names are lower case."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def retry_after(err: Overloaded) -> int:
    """Whole seconds to wait, at least one."""
    return max(1, math.ceil(err.retry_after))


def error_headers(err: TuglineError) -> dict[str, str]:
    """Headers of an error that the SDKs of OpenAI and Anthropic act on: 429 always says when to come back, for a client
    may take one without `retry-after` for final; what is not worth another try says so."""
    headers = {"content-type": "application/json"}
    if isinstance(err, Overloaded):
        headers["retry-after"] = f"{retry_after(err)}"
    elif isinstance(err, EngineError) and not err.retryable:
        headers["x-should-retry"] = "false"
    return headers


def check_sampling(limit: tuple[str, int | None], temperature: float | None, top_p: float | None) -> None:
    """`limit`: the wire's name for the most tokens, and what was asked. Raises BadRequest naming the field."""
    name, asked = limit
    if asked is not None and not 1 <= asked <= MAX_INTEGER:
        raise BadRequest("must be at least 1", path=name)
    if temperature is not None and not 0 <= temperature <= 100:
        raise BadRequest("must be between 0 and 100", path="temperature")
    if top_p is not None and not 0 <= top_p <= 1:
        raise BadRequest("must be between 0 and 1", path="top_p")


def sound(text: str) -> str:
    """Text that UTF-8 can carry: half surrogates, which only an error that quotes hostile input has, become `?`."""
    return text.encode("utf-8", "replace").decode("utf-8")


def inline_media(media_type: str, data: str, *, joined: bool) -> UserMedia:
    """Media sent as base64, in either alphabet, padded or not. The digest is that of the bytes, so that every API's
    spelling of one image is the same item; text that is no base64 is digested as it is."""
    text = data.translate(_STANDARD)
    try:
        content = base64.b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        content = data.encode()
    return UserMedia(media_type[:100], sha256(content).hexdigest(), joined)


def linked_media(media_type: str, url: str, *, joined: bool) -> UserMedia:
    """Media named by a URL or file id, or held in a data: URL."""
    head, comma, data = url.partition(",")
    if head.startswith("data:") and head.endswith(";base64") and comma:
        return inline_media(head[5:-7] or media_type, data, joined=joined)
    return UserMedia(media_type[:100], sha256(url.encode()).hexdigest(), joined)


_STANDARD = str.maketrans("-_", "+/", " \r\n\t")
