"""The Gemini reply on the wire, and the signature by which a turn of ours is known again, reasoning and all."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tugline.core.items import Reply

RAW_ARGUMENTS = "__raw_arguments"
"""Key of `args` that stands for arguments which are no JSON object: {RAW_ARGUMENTS: text}."""

_MAGIC = b"tugline1"
_DIGEST = 12
_CHECK = 4
_FIXED = len(_MAGIC) + _DIGEST
_STANDARD = str.maketrans("-_", "+/")


class OutCall(msgspec.Struct, omit_defaults=True, gc=False):
    name: str
    args: Raw | UnsetType = UNSET
    id: str = ""


class OutPart(msgspec.Struct, omit_defaults=True, gc=False, rename="camel"):
    text: str | None = None
    thought: bool = False
    function_call: OutCall | None = None
    thought_signature: str | None = None


class OutContent(msgspec.Struct, gc=False):
    parts: Sequence[OutPart]
    role: str = "model"


class OutCandidate(msgspec.Struct, omit_defaults=True, gc=False, rename="camel"):
    content: OutContent
    finish_reason: str | None = None
    index: int | UnsetType = UNSET


class ModalityCount(msgspec.Struct, gc=False, rename="camel"):
    modality: str
    token_count: int


class OutUsage(msgspec.Struct, omit_defaults=True, gc=False, rename="camel"):
    prompt_token_count: int | UnsetType = UNSET
    cached_content_token_count: int = 0
    candidates_token_count: int | UnsetType = UNSET
    thoughts_token_count: int = 0
    total_token_count: int | UnsetType = UNSET
    prompt_tokens_details: Sequence[ModalityCount] = ()


class OutResponse(msgspec.Struct, gc=False, rename="camel", omit_defaults=True):
    """A whole reply, or one chunk of a stream."""

    candidates: Sequence[OutCandidate]
    usage_metadata: OutUsage | None = None
    model_version: str | UnsetType = UNSET
    response_id: str | UnsetType = UNSET


class OutError(msgspec.Struct, omit_defaults=True, gc=False):
    code: int
    message: str
    status: str
    details: Sequence[dict[str, object]] = ()


class OutErrorReply(msgspec.Struct, gc=False):
    error: OutError


def usage(reply: Reply) -> OutUsage:
    """True counts. The real API counts thoughts beside the candidates' tokens, not among them."""
    counts = reply.usage
    return OutUsage(
        counts.prompt,
        counts.cached,
        counts.completion - counts.reasoning,
        counts.reasoning,
        counts.prompt + counts.completion,
        (ModalityCount("TEXT", counts.prompt),),
    )


def signature(reply: Reply, *, sealed: bool) -> str:
    """The thought signature of a reply, opaque to clients, in base64 as the real API's.

    Sealed, it holds the reasoning itself, packed: as with the real API, clients that drop thoughts and send signatures
    back lose nothing. In either form it tells one reply from others.
    """
    said = reply.assistant
    calls = [t for call in said.calls for t in (call.id, call.name, call.arguments)]
    digest = blake2b(digest_size=_DIGEST)
    for text in (reply.id, said.reasoning or "", said.text or "", *calls):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data) + data)
    return _signed(digest.digest(), said.reasoning if sealed else None)


def live_signature(reply_id: str, sealed: str | None = None) -> str:
    """The signature of a reply of which the beginning leaves before its end is known. `sealed`: its reasoning."""
    return _signed(blake2b(b"live:" + reply_id.encode(), digest_size=_DIGEST).digest(), sealed)


def _signed(mark: bytes, reasoning: str | None) -> str:
    body = _MAGIC + mark
    if reasoning:
        body += zlib.compress(reasoning.encode("utf-8"), 1)
    return base64.b64encode(body + _check(body)).decode("ascii")


def unseal(text: str, limit: int) -> Seal | None:
    """A signature of ours; None if it is foreign, has been altered, or unpacks to more than `limit` bytes.

    Clients write bytes in either alphabet of base64.
    """
    try:
        data = base64.b64decode(text.translate(_STANDARD), validate=True)
    except (binascii.Error, ValueError):
        return None
    body, check = data[:-_CHECK], data[-_CHECK:]
    if not body.startswith(_MAGIC) or check != _check(body):
        return None
    mark, packed = body[len(_MAGIC) : _FIXED], body[_FIXED:]
    if not packed:
        return Seal(mark, None)
    worker = zlib.decompressobj()
    try:
        reasoning = worker.decompress(packed, max(1, limit)).decode("utf-8")
    except (zlib.error, UnicodeDecodeError):
        return None
    return Seal(mark, reasoning) if worker.eof else None


class Seal(NamedTuple):
    """What a signature of ours says: whose it is, and the reasoning, if it is sealed in."""

    mark: bytes
    reasoning: str | None


def _check(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECK).digest()
