"""The OpenAI Chat Completions wire, as clients really send it. Unknown keys are tolerated everywhere."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

ABSENT = Raw(b"null")


class ImageUrl(msgspec.Struct, gc=False):
    url: str


class Part(msgspec.Struct, gc=False):
    """A content part. The type decides which other key counts."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    input_audio: Raw = ABSENT
    file: Raw = ABSENT


Content = str | list[Part] | None


class Function(msgspec.Struct, gc=False):
    name: str
    arguments: Raw = ABSENT
    """A string of JSON text; some clients send the object itself."""


class Call(msgspec.Struct, gc=False):
    function: Function | None = None
    id: str | None = None
    type: str | None = None
    index: int | None = None


class Message(msgspec.Struct, gc=False):
    role: str
    content: Content = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[Call] | None = None
    function_call: Any = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    refusal: str | None = None


class NamedFunction(msgspec.Struct, gc=False):
    name: str


class ToolChoice(msgspec.Struct, gc=False):
    type: str
    function: NamedFunction | None = None


class JsonSchema(msgspec.Struct, gc=False):
    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct, gc=False):
    type: str
    json_schema: JsonSchema | None = None


class StreamOptions(msgspec.Struct, gc=False):
    include_usage: bool | None = None


class Body(msgspec.Struct, gc=False):
    """A request: the keys that have an effect. Every other key is tolerated and reported as ignored."""

    messages: list[Message]
    model: str
    tools: list[Raw] | None = None
    tool_choice: str | ToolChoice | None = None
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
    add_generation_prompt: bool | None = None
    response_format: ResponseFormat | None = None
    functions: Any = None
    function_call: Any = None


class ToolFunction(msgspec.Struct, gc=False):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | bool | None = None


class Tool(msgspec.Struct, gc=False):
    type: str = "function"
    function: ToolFunction | None = None


# ------------------------------------------------------------------------------------------------- replies


class OutFunction(msgspec.Struct, omit_defaults=True, gc=False):
    arguments: str
    name: str | None = None


class OutCall(msgspec.Struct, omit_defaults=True, gc=False):
    function: OutFunction
    index: int | None = None
    id: str | None = None
    type: str | None = None


class OutMessage(msgspec.Struct, gc=False):
    role: str
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[OutCall] | UnsetType = UNSET


class Delta(msgspec.Struct, omit_defaults=True, gc=False):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[OutCall] | None = None


class Choice(msgspec.Struct, gc=False):
    index: int
    message: OutMessage
    finish_reason: str
    logprobs: None = None


class ChunkChoice(msgspec.Struct, gc=False):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: None = None


class PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int


class CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int


class OutUsage(msgspec.Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Completion(msgspec.Struct, gc=False):
    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: OutUsage
    system_fingerprint: str | None = None


class Chunk(msgspec.Struct, gc=False):
    id: str
    object: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: OutUsage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
