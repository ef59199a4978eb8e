"""What a harness said, free of any wire format: a head, ordered items, options.

Items are blocks, not messages, so that the first n wire items translate to a prefix of the translation of n + 1, even
when a harness grows its last message in place. Text is verbatim: never stripped, merged across messages or re-encoded.
Adjacent text parts of one wire message are one item; all parts of one model turn are one `Assistant`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Tool:
    """A function offered to the model. `spec` is the exact JSON object text as sent, e.g. {"type":"function",...}."""

    name: str
    spec: str


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the conversation and changes the rendered prompt's front. Part of every match key."""

    tools: tuple[Tool, ...] = ()
    template_kwargs: str = "{}"
    """Canonical JSON object of chat-template arguments (sorted keys)."""


@dataclass(frozen=True, slots=True)
class System:
    """System or developer text. `role` is the wire's word."""

    text: str
    role: str = "system"


@dataclass(frozen=True, slots=True)
class UserText:
    """User text. `joined` = continues the wire message of the item before it (e.g. text after an image)."""

    text: str
    joined: bool = False


@dataclass(frozen=True, slots=True)
class UserMedia:
    """An image or other media part: never inlined here, only its digest. `joined` as in UserText."""

    media_type: str
    digest: str
    joined: bool = False


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one call. `call_id` is the wire id it answers; `name` only if the wire gave one."""

    call_id: str
    text: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a model turn. `arguments` is the JSON text exactly as on the wire (possibly invalid JSON)."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Assistant:
    """One whole model turn as the harness saw or echoes it. Absent, null and "" are the same: None."""

    text: str | None = None
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefill:
    """An assistant fragment that the model is to continue (last item only)."""

    text: str


Item: TypeAlias = System | UserText | UserMedia | ToolResult | Assistant | Prefill


@dataclass(frozen=True, slots=True)
class Options:
    """Generation options as asked by the harness. None = not asked. The task's sampling policy may override them."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tool_choice: str = "auto"
    """auto | none | required | a tool's name."""
    parallel_calls: bool = True
    stream: bool = False
    include_usage: bool = False
    """Chat only: send the usage chunk at the end of a stream."""


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded call. `ignored` lists wire keys that we saw, understood to be harmless and dropped."""

    model: str
    head: Head
    items: tuple[Item, ...]
    options: Options = Options()
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """True token counts of a call."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back to the harness, before the dialect spells it.

    `finish` is stop | tool_calls | length. `created` is Unix seconds. `id` is unique per call.
    """

    id: str
    model: str
    created: int
    assistant: Assistant
    finish: str
    usage: Usage
