"""The Anthropic Messages wire, as clients really send it. Unknown keys are tolerated everywhere."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

ABSENT = Raw(b"null")
UNPARSED = "__unparsedToolInput"
"""Key of an input that stands for arguments which are no JSON object: {UNPARSED: {"raw": text, "len": length}}.

Claude Code writes inputs so that it cannot parse, and answers a call with such an input as it does any bad JSON.
Schemas of other clients refuse it, with an error that quotes it to the model.
"""


class Block(msgspec.Struct, gc=False):
    """A content block. The type decides which other keys count."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = ABSENT
    tool_use_id: str | None = None
    tool_name: str | None = None
    content: Raw = ABSENT
    is_error: bool | None = None
    source: Raw = ABSENT
    title: Raw = ABSENT
    context: Raw = ABSENT


Content = str | list[Block] | None


class Message(msgspec.Struct, gc=False):
    role: str
    content: Content = None


class Source(msgspec.Struct, gc=False):
    """Where the bytes of an image or a document are."""

    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    content: Raw = ABSENT


class Tool(msgspec.Struct, gc=False):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: Raw = ABSENT


class ToolChoice(msgspec.Struct, gc=False):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, gc=False):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, gc=False):
    format: OutputFormat | None = None


class Body(msgspec.Struct, gc=False):
    """A request: the keys that have an effect. Every other key is tolerated and reported as ignored."""

    model: str
    messages: list[Message]
    max_tokens: int | None = None
    system: Content = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class Unparsed(msgspec.Struct, gc=False):
    raw: str
    len: float


class Wrapped(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    unparsed: Unparsed = msgspec.field(name=UNPARSED)


# ------------------------------------------------------------------------------------------------- replies


class OutText(msgspec.Struct, gc=False, tag_field="type", tag="text"):
    text: str
    citations: None = None


class OutThinking(msgspec.Struct, gc=False, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class OutToolUse(msgspec.Struct, gc=False, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: Raw


OutBlock = OutText | OutThinking | OutToolUse


class OutTurn(msgspec.Struct, gc=False):
    """The part of a reply that a client echoes."""

    role: str
    content: list[OutBlock]


class CacheCreation(msgspec.Struct, gc=False):
    ephemeral_5m_input_tokens: int = 0
    ephemeral_1h_input_tokens: int = 0


class OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: int


class OutUsage(msgspec.Struct, gc=False):
    """`input_tokens` leaves out what came from the cache: the three input counts add up to the prompt."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails
    cache_creation_input_tokens: int = 0
    cache_creation: CacheCreation = msgspec.field(default_factory=CacheCreation)
    server_tool_use: None = None
    service_tier: str = "standard"


class DeltaUsage(msgspec.Struct, gc=False):
    """Totals so far, at the end of a stream."""

    input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputDetails
    cache_creation_input_tokens: int = 0
    server_tool_use: None = None


class OutMessage(msgspec.Struct, gc=False):
    id: str
    type: str
    role: str
    model: str
    content: list[OutBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: OutUsage


class MessageStart(msgspec.Struct, gc=False, tag_field="type", tag="message_start"):
    message: OutMessage


class BlockStart(msgspec.Struct, gc=False, tag_field="type", tag="content_block_start"):
    index: int
    content_block: OutBlock


class TextDelta(msgspec.Struct, gc=False, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, gc=False, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, gc=False, tag_field="type", tag="signature_delta"):
    signature: str


class InputDelta(msgspec.Struct, gc=False, tag_field="type", tag="input_json_delta"):
    partial_json: str


OutDelta = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(msgspec.Struct, gc=False, tag_field="type", tag="content_block_delta"):
    index: int
    delta: OutDelta


class BlockStop(msgspec.Struct, gc=False, tag_field="type", tag="content_block_stop"):
    index: int


class Stopped(msgspec.Struct, gc=False):
    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, gc=False, tag_field="type", tag="message_delta"):
    delta: Stopped
    usage: DeltaUsage


class ErrorBody(msgspec.Struct, gc=False):
    type: str
    message: str


class ErrorReply(msgspec.Struct, gc=False, tag_field="type", tag="error"):
    error: ErrorBody


class ModelInfo(msgspec.Struct, gc=False, tag_field="type", tag="model"):
    id: str
    display_name: str
    max_input_tokens: int
    max_tokens: int
    created_at: str = "1970-01-01T00:00:00Z"
    lifecycle: str = "active"
    capabilities: None = None
    line: None = None
    deprecated_at: None = None
    retires_at: None = None


class ModelList(msgspec.Struct, gc=False):
    data: list[ModelInfo]
    has_more: bool
    first_id: str
    last_id: str


class TokenCount(msgspec.Struct, gc=False):
    input_tokens: int
