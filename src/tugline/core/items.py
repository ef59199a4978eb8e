"""What a harness said, free of any wire format: a head, ordered items, options.

Items are blocks, not messages, so that the first n wire items translate to a prefix of the translation of n + 1, even
when a harness grows its last message in place. Text is verbatim: never stripped, merged across messages or re-encoded.
Adjacent text parts of one wire message are one item; all parts of one model turn are one `Assistant`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Tool:
    """A function offered to the model.

    `spec` is the text of the JSON object that the chat template gets: {"type": "function", "function": {...}}. Chat
    sends it so, and it stays as sent; other APIs' declarations are written in this form.
    """

    name: str
    """What the model calls it. A namespaced tool has its namespace in front."""
    spec: str
    kind: Literal["function", "custom"] = "function"
    """custom: takes one free text on the wire; the model sees a function with the one string parameter `input`."""
    namespace: str | None = None
    """Where the wire splits a tool's name in two."""


@dataclass(frozen=True, slots=True)
class Head:
    """What stands before the conversation and changes the rendered prompt's front. Part of every match key."""

    tools: tuple[Tool, ...] = ()
    template_kwargs: str = "{}"
    """Canonical JSON object of chat-template arguments (sorted keys)."""
    clock: int = 0
    """What a template that prints the time is told, in Unix seconds, for all of a session. 0: it prints none, or the
    turn was stored before this was recorded. The gateway sets it; no match key holds it."""


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
    """The result of one call. `call_id` is the wire id it answers; `name` only if the wire gave one.

    `media` are the result's images and files in order; they stand behind its text.
    """

    call_id: str
    text: str
    name: str | None = None
    media: tuple[UserMedia, ...] = ()


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
    output: str | None = None
    """Constrained output: "json_object", or the canonical text of a JSON schema."""
    form: str = ""
    """How the reply is spelled, in the dialect's own words. Changes no sample."""


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded call. `ignored` names everything of the wire that has no effect here: keys by their path, dropped
    tools as `tools[]:<type>`, dropped content as `<where>:<type>`. Nothing is dropped without being named."""

    model: str
    head: Head
    items: tuple[Item, ...]
    options: Options = Options()
    ignored: tuple[str, ...] = ()
    previous: str | None = None
    """Id of the reply whose conversation these items continue, for APIs that keep history on the server. Leading
    `System` items with role "instructions" replace those of that conversation."""


@dataclass(frozen=True, slots=True)
class Usage:
    """True token counts of a call."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@dataclass(frozen=True, slots=True)
class Pending:
    """A reply of which only the frame is known yet. `created` is Unix seconds. `id` is unique per reply."""

    id: str
    model: str
    created: int
    request: Request


@dataclass(frozen=True, slots=True)
class Delta:
    """More of a reply under way, behind what was said of it before. All reasoning comes before all text."""

    kind: Literal["reasoning", "text"]
    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """What goes back to the harness, before the dialect spells it.

    `finish` is stop | tool_calls | length. `created` is Unix seconds. `id` is unique per reply. `request` is what it
    answers: some APIs repeat parts of it. `stop` is the stop string that ended the text.
    """

    id: str
    model: str
    created: int
    assistant: Assistant
    finish: str
    usage: Usage
    request: Request
    stop: str | None = None
