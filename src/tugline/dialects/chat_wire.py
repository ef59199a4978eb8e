"""The OpenAI Chat Completions wire, as clients really send it. Unknown keys are tolerated everywhere."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType


class ImageUrl(msgspec.Struct):
    url: str


class Part(msgspec.Struct):
    """A content part. The type decides which other key counts."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    input_audio: Any = None
    file: Any = None


Content = str | list[Part] | None


class Function(msgspec.Struct):
    name: str
    arguments: Any = None
    """JSON text; some clients send the object itself."""


class Call(msgspec.Struct):
    function: Function | None = None
    id: str | None = None
    type: str | None = None
    index: int | None = None


class Message(msgspec.Struct):
    role: str
    content: Content = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Call] | None = None
    function_call: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Body(msgspec.Struct):
    """A request. Keys that we know and drop are listed in `HARMLESS`; the rest of the unknown is tolerated."""

    messages: list[Message]
    model: str
    tools: list[Raw] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    response_format: Any = None
    functions: Any = None
    function_call: Any = None
    reasoning_effort: Any | UnsetType = UNSET
    store: Any | UnsetType = UNSET
    user: Any | UnsetType = UNSET
    metadata: Any | UnsetType = UNSET
    logprobs: Any | UnsetType = UNSET
    top_logprobs: Any | UnsetType = UNSET
    logit_bias: Any | UnsetType = UNSET
    presence_penalty: Any | UnsetType = UNSET
    frequency_penalty: Any | UnsetType = UNSET
    service_tier: Any | UnsetType = UNSET
    prompt_cache_key: Any | UnsetType = UNSET
    safety_identifier: Any | UnsetType = UNSET
    verbosity: Any | UnsetType = UNSET
    thinking: Any | UnsetType = UNSET


HARMLESS = (
    "reasoning_effort",
    "store",
    "user",
    "metadata",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "presence_penalty",
    "frequency_penalty",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
    "verbosity",
    "thinking",
)


class ToolFunction(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Any = None


class Tool(msgspec.Struct):
    type: str = "function"
    function: ToolFunction | None = None


# ------------------------------------------------------------------------------------------------- replies


class OutFunction(msgspec.Struct, omit_defaults=True):
    arguments: str
    name: str | None = None


class OutCall(msgspec.Struct, omit_defaults=True):
    function: OutFunction
    index: int | None = None
    id: str | None = None
    type: str | None = None


class OutMessage(msgspec.Struct):
    role: str
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[OutCall] | UnsetType = UNSET


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[OutCall] | None = None


class Choice(msgspec.Struct):
    index: int
    message: OutMessage
    finish_reason: str
    logprobs: None = None


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: None = None


class PromptDetails(msgspec.Struct):
    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int


class OutUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Completion(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: OutUsage
    system_fingerprint: str | None = None


class Chunk(msgspec.Struct):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: OutUsage | UnsetType | None = UNSET
    system_fingerprint: str | None = None


class ErrorBody(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(msgspec.Struct):
    error: ErrorBody
