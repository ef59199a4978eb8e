"""The Gemini reply on the wire, and the signature by which a turn of ours is known again."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from hashlib import blake2b

import msgspec
from msgspec import UNSET, Raw, UnsetType

from tugline.core.items import Reply

RAW_ARGUMENTS = "__raw_arguments"
"""Key of `args` that stands for arguments which are no JSON object: {RAW_ARGUMENTS: text}."""

_MAGIC = b"tugline1"
_DIGEST = 12
_CHECK = 4
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


def signature(reply: Reply) -> str:
    """The thought signature of a reply: opaque to clients, the same for all its parts, base64 as the real API's."""
    said = reply.assistant
    calls = [f"{len(t)}:{t}" for call in said.calls for t in (call.id, call.name, call.arguments)]
    text = "\0".join((reply.id, said.reasoning or "", said.text or "", *calls))
    body = _MAGIC + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST).digest()
    return base64.b64encode(body + _check(body)).decode("ascii")


def known(text: str) -> bytes | None:
    """What tells the turn of a signature of ours from other turns; None if it is foreign or has been altered.

    Clients write bytes in either alphabet of base64.
    """
    if len(text) > 2 * (len(_MAGIC) + _DIGEST + _CHECK):
        return None
    try:
        data = base64.b64decode(text.translate(_STANDARD), validate=True)
    except (binascii.Error, ValueError):
        return None
    body, check = data[:-_CHECK], data[-_CHECK:]
    return body[len(_MAGIC) :] if body.startswith(_MAGIC) and check == _check(body) else None


def _check(body: bytes) -> bytes:
    return blake2b(body, digest_size=_CHECK).digest()
