"""The OpenAI Responses wire: what counts of a request, and what a reply is made of."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

ABSENT = Raw(b"null")

MARK = "_tug_"
"""Stands in every item id of ours, behind the API's own prefix: no other provider's id can be taken for one."""

_TOKEN = "tug1."
_MAX_REASONING = 16 << 20
"""Bytes that a reasoning token may unpack to."""


class TextFormat(msgspec.Struct, gc=False):
    type: str
    schema: dict[str, Any] | None = None


class Text(msgspec.Struct, gc=False):
    format: TextFormat | None = None


class AllowedTool(msgspec.Struct, gc=False):
    name: str | None = None
    namespace: str | None = None


class ToolChoice(msgspec.Struct, gc=False):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[AllowedTool] | None = None


class Body(msgspec.Struct, gc=False):
    """A request: the keys that have an effect. Every other key is tolerated and reported as ignored."""

    model: str | None = None
    input: Raw = ABSENT
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Raw] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: Text | None = None
    stream: bool | None = None
    background: bool | None = None
    conversation: Raw = ABSENT
    prompt: Raw = ABSENT
    chat_template_kwargs: dict[str, Any] | None = None


class CustomArguments(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What the model writes to call a custom tool."""

    input: str


# ------------------------------------------------------------------------------------------------- replies


class SpecFunction(msgspec.Struct, gc=False):
    name: str
    description: str | UnsetType = UNSET
    parameters: Raw | UnsetType = UNSET


class Spec(msgspec.Struct, gc=False):
    """A tool as the chat template gets it."""

    function: SpecFunction
    type: str = "function"

    def text(self) -> str:
        return msgspec.json.encode({"type": self.type, "function": self.function}).decode()


class OutText(msgspec.Struct, gc=False):
    text: str
    type: str = "output_text"
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutSummary(msgspec.Struct, gc=False):
    text: str
    type: str = "summary_text"


class OutReasoning(msgspec.Struct, gc=False):
    id: str
    summary: list[OutSummary]
    encrypted_content: str | UnsetType = UNSET
    status: str | UnsetType = UNSET
    type: str = "reasoning"


class OutMessage(msgspec.Struct, gc=False):
    id: str
    status: str
    content: list[OutText]
    role: str = "assistant"
    type: str = "message"


class OutCall(msgspec.Struct, gc=False):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET
    type: str = "function_call"


class OutCustomCall(msgspec.Struct, gc=False):
    id: str
    status: str
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET
    type: str = "custom_tool_call"


OutItem = OutReasoning | OutMessage | OutCall | OutCustomCall


class InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int


class OutUsage(msgspec.Struct, gc=False):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Failure(msgspec.Struct, gc=False):
    code: str
    message: str


class Response(msgspec.Struct, gc=False):
    """The response object: the same in whole replies and in the events that frame a stream."""

    id: str
    created_at: int
    model: str
    status: str
    output: list[Raw]
    parallel_tool_calls: bool
    tool_choice: Any
    tools: list[Any]
    text: Any
    error: Failure | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    previous_response_id: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    usage: OutUsage | None = None
    completed_at: int | None = None
    object: str = "response"
    background: bool = False
    store: bool = True
    truncation: str = "disabled"
    service_tier: str = "default"
    top_logprobs: int = 0
    max_tool_calls: int | None = None
    reasoning: dict[str, None] = msgspec.field(default_factory=lambda: {"effort": None, "summary": None})
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    user: str | None = None


def seal(reasoning: str) -> str:
    """`encrypted_content` of ours: the reasoning itself, packed. Clients that keep only this lose nothing."""
    packed = zlib.compress(reasoning.encode("utf-8"), 1)
    return _TOKEN + base64.urlsafe_b64encode(packed).decode("ascii")


def unseal(token: str) -> str | None:
    """The reasoning in a token of ours; None for another's, or a damaged one (zlib ends with a checksum)."""
    if not token.startswith(_TOKEN):
        return None
    worker = zlib.decompressobj()
    try:
        packed = base64.b64decode(token[len(_TOKEN) :].encode("ascii"), altchars=b"-_", validate=True)
        text = worker.decompress(packed, _MAX_REASONING)
        return text.decode("utf-8") if worker.eof and not worker.unused_data else None
    except (binascii.Error, zlib.error, ValueError):
        return None
